"""Many tasks certified: one that cannot be run stops none, and what was found outlives a kill."""

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.certifying import certified_each
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from typer.testing import CliRunner

from envgym.sandbox import SandboxBackend
from envgym.task import Task, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]

TAP = """. ./calc.sh
echo 1..2
[ "$(add 2 3)" = 5 ] && echo ok 1 - adds || echo not ok 1 - adds
[ "$(same 2)" = 2 ] && echo ok 2 - keeps || echo not ok 2 - keeps
"""
CODE = "add() { echo $(($1 - $2)); }\nsame() { echo $1; }\n"


def shell_task(name: str, *, image: str = "host", patch: str | None = None) -> Task:
    """A few lines of shell whose tests print TAP: the cheapest thing that has a suite."""
    suite = Suite(language="c", test="sh check.sh", reader="tap", source=("calc.sh",), tests=("check.sh",))
    gold = make_patch({"calc.sh": CODE}, {"calc.sh": CODE.replace("$1 - $2", "$1 + $2")})
    return Task(
        id=f"shell/{name}",
        prompt="adds fails",
        world=World(image=image, workdir="/repo", files={"/repo/calc.sh": CODE, "/repo/check.sh": TAP}),
        metadata={
            "suite": suite.model_dump(mode="json"),
            "fail_to_pass": ["adds"],
            "pass_to_pass": ["keeps"],
            "tests": 2,
            "gold": {"patch": gold if patch is None else patch},
        },
    )


MIXED = {
    "noimage": {"image": "nowhere/nothing:1"},
    "good": {},
    "nopatch": {"patch": "not a patch"},
    "last": {},
}


def mixed() -> list[Task]:
    return [shell_task(name, **options) for name, options in MIXED.items()]


def test_what_cannot_be_run_is_named_and_the_others_are_certified(tmp_path: Path) -> None:
    given, out = tmp_path / "mix.jsonl", tmp_path / "certified.jsonl"
    write_tasks(mixed(), given)
    told = ["certify", "--file", str(given), "--out", str(out), "--backend", "namespace", "--json"]
    done = CliRunner().invoke(tasks_command, told)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert (found["tasks"], {*found["wrong"]}) == (4, {"shell/noimage", "shell/nopatch"})
    assert "nowhere/nothing:1" in found["wrong"]["shell/noimage"]
    assert "no file header" in found["wrong"]["shell/nopatch"]
    assert [task.id for task in load_tasks(out)] == ["shell/good", "shell/last"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["certified.jsonl", "mix.jsonl"]


def test_a_stopped_certification_goes_on_where_it_was(
    tmp_path: Path, in_backend: Callable[[Callable[[SandboxBackend], Awaitable[Any]]], None]
) -> None:
    journal, tasks = tmp_path / "certified.journal", mixed()

    async def some(backend: SandboxBackend, count: int) -> list[Task | str]:
        found: list[Task | str] = []
        async with aclosing(certified_each(tasks, backend, journal=journal)) as each:
            async for one in each:
                found.append(one)
                if len(found) == count:
                    break
        return found

    async def body(backend: SandboxBackend) -> None:
        first = await some(backend, 2)
        with journal.open("ab") as file:
            file.write(b'{"key": "cut o')
        second = await some(backend, 4)
        assert isinstance(second[1], Task)
        assert certificate_of(second[1]) is not None
        assert second[1] == first[1], "the certificate of the first time, with its seconds"
        assert isinstance(second[3], Task)
        assert await some(backend, 4) == second
        lines = journal.read_text().splitlines()
        assert len({json.loads(line)["key"] for line in lines}) == len(lines) == 2
        journal.write_text("[]\n")
        with pytest.raises(ValueError, match="line 1: not of a certification's journal"):
            await some(backend, 1)

    in_backend(body)
