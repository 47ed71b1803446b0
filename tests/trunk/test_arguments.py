"""What callers give is refused by name, value and bound, before a sandbox sees it."""

import asyncio
import math
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest

from envgym import arguments
from envgym.limits import Resources
from envgym.registry import make_backend
from envgym.task import World
from envgym.testing.fake_sandbox import FakeBackend
from envgym.testing.sandbox_checks import wrong_use

RESOURCES = Resources()


def program(command, *, argv_only=False, **given):
    found = {"stdin": b"", "env": None, "cwd": None} | given
    return arguments.program(command, RESOURCES, argv_only=argv_only, **found)


def test_a_command_is_a_text_or_words_and_paths_are_words():
    assert program("echo").command == "echo"
    assert program(("cat", Path("a"))).command == ["cat", "a"]
    assert program(word for word in ["a", "b"]).command == ["a", "b"]
    assert program("x", stdin=memoryview(b"in"), env={"A": "1"}, cwd=Path("/w")) == arguments.Program(
        "x", b"in", {"A": "1"}, "/w"
    )


def test_a_shell_takes_only_names_that_are_variables_of_its_own():
    assert program(["env"], env={"A.B": "1"}).env == {"A.B": "1"}, "a program takes any name"
    for name in ("A.B", "$(id)", "1A", "é", "A B"):
        with pytest.raises(ValueError, match="no variable of a shell"):
            program("env", env={name: "1"})


def test_bytes_of_file_names_that_are_no_text_can_be_said_and_halves_of_characters_cannot():
    assert arguments.checked_path("path", "caf\udce9") == "caf\udce9"
    with pytest.raises(ValueError, match=r"path is .*ud800.* no character"):
        arguments.checked_path("path", "a\ud800")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(3), 10**6])
def test_every_finite_number_is_a_time(value):
    assert arguments.checked_seconds("timeout_s", value) == float(value)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf, 10**400])
def test_no_other_number_is(value):
    with pytest.raises(ValueError, match=r"timeout_s is .* finite number of seconds, more than 0"):
        arguments.checked_seconds("timeout_s", value)


def test_counts_are_ints_also_those_of_numpy_and_signals():
    assert arguments.checked_count("output_bytes", np.int64(5), least=1) == 5
    assert arguments.checked_signal(SIGKILL) == 9
    for wrong in (True, 5.0, "5", None):
        with pytest.raises(TypeError, match=r"output_bytes is .* an int"):
            arguments.checked_count("output_bytes", wrong, least=1)


def test_a_value_of_any_length_is_said_in_a_line():
    with pytest.raises(TypeError) as met:
        arguments.checked_bytes("content", "x" * 10_000)
    assert len(str(met.value)) < 200


def test_a_fake_sandbox_refuses_what_a_real_one_does():
    async def main():
        async with FakeBackend() as backend, await backend.create(World()) as sandbox:
            for wrong in (*wrong_use.COMMANDS, *wrong_use.BOUNDS, *wrong_use.FILES):
                await wrong_use.refused(sandbox, wrong)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (None, {}, "name of a backend is None.*namespace"),
        (
            "namespace",
            {"xyz": 1},
            r"backend 'namespace': options.xyz = 1: there is no such option; known: root",
        ),
        ("namespace", {"rot": 1}, "did you mean 'root'"),
        ("auto", {"xyz": 1}, "options.xyz"),
    ],
)
def test_a_backend_that_cannot_be_made_as_asked_says_what_it_takes(name, options, message):
    with pytest.raises(TypeError, match=message):
        make_backend(name, **options)
