"""The registry: names, hints, and what is refused where it is given."""

import importlib
import inspect
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym import registry
from envgym.env import Step
from envgym.messages import Action
from envgym.replay import Replaying
from envgym.task import Task, TaskSet
from envgym.testing.fakes import MEMORY, MemoryEnv


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    registry.register("environments", "memory", MEMORY)
    try:
        with pytest.raises(ValueError, match="did you mean 'memory'"):
            registry.spec("memroy")
        with pytest.raises(ValueError, match="environment 'memory' is already registered"):
            registry.register("environments", "memory", replace(MEMORY))
        registry.register("environments", "memory", MEMORY)
    finally:
        registry.unregister("environments", "memory")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: registry.find("sandboxes", "foo"), "unknown sandbox 'foo'"),
        (lambda: registry.register("environment", "x", MEMORY), "unknown group 'environment'; did you mean"),
        (lambda: registry.find("environment", "x"), "unknown group 'environment'; did you mean 'environments'"),
        (lambda: registry.register("environments", "Bad Name", MEMORY), "name 'Bad Name' is not kebab-case"),
        (lambda: registry.register("environments", "number", 3), "environment 'number' is an int; give an EnvSpec"),
        (lambda: registry.register("agents", "number", 3), "agent 'number' is an int; give what makes one"),
        (lambda: registry.EnvSpec("x", 3, MEMORY.make), "environment 'x': tasks is 3; it must be a function"),
        (lambda: registry.EnvSpec("x", MEMORY.tasks, 4), "environment 'x': make is 4; it must be a function"),
        (lambda: registry.EnvSpec("X y", MEMORY.tasks, MEMORY.make), "environment name 'X y' is not kebab-case"),
        (lambda: registry.make(MEMORY, "memory/1"), "task of environment 'memory' is 'memory/1'; it must be a"),
    ],
)  # fmt: skip
def test_a_wrong_thing_name_or_group_is_refused_where_it_is_given(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert not {"x", "Bad Name", "number"} & {*registry.names("environments"), *registry.names("agents")}


def gives(tasks: Any, name: str = "odd") -> registry.EnvSpec:
    return replace(MEMORY, name=name, tasks=tasks)


def raises(error: Exception) -> Any:
    def tasks(*, many: int = 1) -> TaskSet:
        raise error

    return tasks


def test_the_mistakes_of_a_task_set_name_its_environment() -> None:
    for spec in (gives(lambda: [1]), replace(gives(lambda: [1], "other"), name="odd")):
        for call in (spec.tasks, lambda spec=spec: registry.make(spec)):
            with pytest.raises(
                TypeError, match="the tasks of environment 'odd' are a list; its `tasks` must give a"
            ):
                call()
    for error, kind, said in (
        (KeyError("k"), ValueError, "KeyError: 'k'"),
        (ValueError("many is 0"), ValueError, "had: many is 0"),
        (TypeError("no such option"), TypeError, "had: no such option"),
    ):
        with pytest.raises(kind, match=f"the tasks of environment 'odd' cannot be had: .*{said}|{said}") as caught:
            gives(raises(error)).tasks()
        assert "environment 'odd'" in str(caught.value)
        assert caught.value.__cause__ is error
    with pytest.raises(FileNotFoundError, match="no such file"):
        gives(raises(FileNotFoundError("no such file"))).tasks()
    assert list(inspect.signature(gives(raises(KeyError())).tasks).parameters) == ["many"]
    assert len(pickle.loads(pickle.dumps(replace(MEMORY, make=MemoryEnv))).tasks()) == len(MEMORY.tasks())


def test_what_an_entry_point_lacks_decides_the_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "odd_worlds-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-worlds\nVersion: 1\n")
    lines = (
        "odd-attribute = odd_worlds:SPCE",
        "odd-module = odd_worlds.gone:SPEC",
        "odd-extra = odd_worlds.extra:SPEC",
    )
    number = "odd-number = odd_worlds:SPEC"
    (place / "entry_points.txt").write_text("\n".join(["[envgym.environments]", *lines, number]))
    (tmp_path / "odd_worlds").mkdir()
    (tmp_path / "odd_worlds" / "__init__.py").write_text("SPEC = 3\n")
    (tmp_path / "odd_worlds" / "extra.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("odd-attribute", "odd-module"):
        with pytest.raises(ImportError, match=f"see the entry point '{name}' of odd-worlds") as caught:
            registry.spec(name)
        assert "install" not in str(caught.value)
    with pytest.raises(ImportError, match="install the extra it needs"):
        registry.spec("odd-extra")
    with pytest.raises(TypeError, match="environment 'odd-number' is an int; its entry point must name an EnvSpec"):
        registry.spec("odd-number")


def test_an_environment_that_needs_a_sandbox_says_so() -> None:
    boxed = replace(MEMORY, name="boxed", sandbox=True)
    with pytest.raises(ValueError, match="'boxed' acts in a sandbox: pass backend="):
        registry.make(boxed)


def test_a_playable_is_wrapped_and_an_env_is_not() -> None:
    class Bare:
        def __init__(self, task: Task) -> None:
            self._env = MemoryEnv(task)
            self.task, self.tools = task, self._env.tools

        async def reset(self, *, seed: int) -> Step:
            return await self._env.reset(seed=seed)

        async def step(self, action: Action) -> Step:
            return await self._env.step(action)

        async def close(self) -> None: ...

    assert isinstance(registry.make(replace(MEMORY, make=Bare)), Replaying)
    assert isinstance(registry.make(MEMORY, 1), MemoryEnv)


def test_gymnasium_ids_are_derived_from_names() -> None:
    assert registry.gymnasium_id("code-repair") == "envgym/CodeRepair-v0"
    assert registry.gymnasium_id("guess") == "envgym/Guess-v0"


def test_a_package_that_is_installed_meanwhile_is_found_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "late-agent" not in registry.names("agents")
    facts = tmp_path / "late-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[envgym.agents]\nlate-agent = json:loads\n")
    importlib.invalidate_caches()
    assert registry.find("agents", "late-agent") is json.loads
    shutil.rmtree(facts)
    importlib.invalidate_caches()
    assert "late-agent" not in registry.names("agents")
