"""`envgym collect` in real sandboxes, killed in the middle: each prompt is played once, and nothing is left."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.taskset import write_tasks
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.cli import run
from envgym.env import Durable, Snapshot, Step
from envgym.episode import Episode
from envgym.errors import SnapshotGone
from envgym.holding import sweep
from envgym.messages import Action
from envgym.regain import starts
from envgym.registry import make_backend
from envgym.run_backend import SNAPSHOTS
from envgym.sandbox import SandboxBackend
from envgym.store import StoreReader
from envgym.task import Task

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]

_PROGRAM = """
import asyncio, sys
from dataclasses import replace
from envgym_environments.code_repair.env import SPEC, CodeRepair
from envgym.cli import run
from envgym.messages import Action
from envgym.policy import Reply
from envgym.registry import register

told = sys.argv[1]

def tell(what):
    with open(told, "a") as file:
        file.write(what)

class Counted(CodeRepair):
    async def step(self, action):
        tell("s")
        return await super().step(action)

CALLS = [
    Action.call("view", path="small.py"),
    Action.call("edit", path="small.py", old="return values[-count:]", new="return values[-count:] or []"),
    Action.call("shell", command="cd tests && export MARK=here"),
    Action.call("edit", path="small.py", old="return 1 + 1", new="return 3"),
    Action.call("undo"),
    Action.call("shell", command="pwd; echo $MARK"),
    Action.call("run_tests", selection="tests/test_small.py::test_total"),
    Action.call("edit", path="small.py", old="result -= value", new="result += value"),
    Action.call("run_tests"),
    Action.call("submit"),
]

class Fixer:
    name = "agent"
    def __init__(self):
        self.said = 0
    async def act(self, step):
        tell("a")
        await asyncio.sleep(0.01)
        self.said += 1
        return Reply(CALLS[self.said - 1])
    def recall(self, step, turn):
        self.said += 1
    def fork(self, *, seed):
        raise NotImplementedError
    async def close(self):
        pass

def fixer(task, *, seed):
    return Fixer()

register("environments", "counted", replace(SPEC, name="counted", make=Counted))
register("agents", "fixer", fixer)
sys.exit(run(sys.argv[2:]))
"""

TURNS = 10
COUNT = 20


def collect(told: Path, out: Path, tasks: Path, count: int, *more: str) -> list[str]:
    options = ("--agent", "fixer", "-n", str(count), "--task-option", f"path={tasks}")
    kept = ("--concurrency", "8", "--out", str(out), "--json", *more)
    return [sys.executable, "-c", _PROGRAM, str(told), "collect", "counted", *options, *kept]


def played(out: Path) -> dict[str, Episode]:
    """The episodes of a store, without the names of snapshots, which are drawn."""

    def plain(episode: Episode) -> Episode:
        return replace(episode, turns=tuple(replace(turn, snapshot=None) for turn in episode.turns))

    return {episode.id: plain(episode) for episode in StoreReader(out)}


def write_many(broken: Task, count: int, path: Path) -> Path:
    write_tasks([broken.model_copy(update={"id": f"small/{number}"}) for number in range(count)], path)
    return path


@pytest.fixture(scope="module")
def whole(broken_for_all: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Episode]]:
    """A task file, and what a collection plays of it that nobody stops."""
    place = tmp_path_factory.mktemp("whole")
    tasks = write_many(broken_for_all, COUNT, place / "tasks.jsonl")
    command = collect(place / "told", place / "store", tasks, COUNT, "--sandbox", "namespace")
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return tasks, played(place / "store")


@pytest.mark.slow
@pytest.mark.parametrize(("sandbox", "snapshot_every"), [("namespace", 0), ("namespace", 2), ("pool", 2)])
def test_a_collection_in_real_sandboxes_is_killed_and_goes_on(
    whole: tuple[Path, dict[str, Episode]], tmp_path: Path, sandbox: str, snapshot_every: int
) -> None:
    out, told, count, (tasks, unstopped) = tmp_path / "store", tmp_path / "told", COUNT, whole
    option = ("--sandbox", sandbox, *(("--snapshot-every", str(snapshot_every)) if snapshot_every else ()))
    rng, kills = random.Random(snapshot_every), 3
    for kill in range(kills):
        before = told.read_text().count("a") if told.exists() else 0
        upto = before + rng.randrange(TURNS * 3, TURNS * 5)
        command = collect(told, out, tasks, count, *option)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            while not told.exists() or told.read_text().count("a") < upto:
                assert running.poll() is None, running.communicate()
                time.sleep(0.002)
            running.send_signal(signal.SIGKILL)
            running.communicate(timeout=60)
        assert running.returncode == -signal.SIGKILL
        with StoreReader(out) as reader:
            assert len(reader) + len(reader.unfinished) >= kill + 1
            for found in reader.unfinished.values():
                behind = snapshot_every and len(found.turns) > snapshot_every
                assert bool(list(starts(found))) >= bool(behind), "it can begin at a snapshot"
                assert snapshot_every or not any(turn.snapshot for turn in found.turns)
    ended = subprocess.run(
        collect(told, out, tasks, count, *option), capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    summary: dict[str, Any] = json.loads(ended.stdout)
    assert (summary["episodes"], summary["failed"], summary["mean_reward"]) == (count, 0, 1.0), summary
    assert not StoreReader(out).unfinished
    turns = count * TURNS
    assert turns <= told.read_text().count("a") <= turns + kills * 8, "what was said is not said again"
    if snapshot_every:
        most = turns + kills * 8 * (snapshot_every + 1)
        assert told.read_text().count("s") <= most, "only turns since the last snapshot are played again"
    assert "begins again" not in ended.stderr
    replayed = [line for line in ended.stderr.splitlines() if "no snapshot of it can be restored" in line]
    assert replayed == []
    assert not (out / SNAPSHOTS).exists(), "the run's snapshots went with its last episode"
    assert played(out) == unstopped
    NamespaceBackend().reap()
    assert NamespaceBackend().reap() == [], "what the killed processes left can be removed"


async def acted(env: CodeRepair, *calls: Action) -> Step:
    for call in calls:
        step = await env.step(call)
    return step


@pytest.mark.slow
def test_a_durable_snapshot_holds_all_of_an_episode_and_nothing_else(broken: Task, tmp_path: Path) -> None:
    edit = Action.call("edit", path="small.py", old="-= value", new="+= value")
    noted = Action.call("shell", command="cd tests; echo note > note")

    async def first() -> tuple[Snapshot, str]:
        async with make_backend("namespace", snapshots=str(tmp_path / "kept")) as backend:
            env = CodeRepair(broken, backend)
            assert isinstance(env, Durable)
            await env.reset(seed=3)
            key = (await acted(env, noted, edit, Action.call("run_tests"))).state_key
            for _ in range(2):  # every snapshot is its own
                snapshot = await env.durable_snapshot()
                await env.release(snapshot)
                assert await backend.snapshots() == []
            return await env.durable_snapshot(), key  # and the process ends without giving anything back

    async def second(snapshot: Snapshot, key: str) -> None:
        async with make_backend("namespace", snapshots=str(tmp_path / "kept")) as backend:
            assert len(await backend.snapshots()) == 3, "the sandbox, and two states to go back to"
            env = CodeRepair(broken, backend)
            assert (await env.reset(seed=0, start=snapshot)).state_key == key
            assert (await acted(env, Action.call("shell", command="pwd"))).text.endswith("/tests")
            assert "1 more" in (await acted(env, Action.call("undo"), Action.call("undo"))).text
            assert (
                "no such"
                in (await acted(env, Action.call("undo"), Action.call("shell", command="cat note"))).text.lower()
            )
            await env.close()
            assert len(await backend.snapshots()) == 3
            await env.release(snapshot)
            assert await backend.snapshots() == []
            with pytest.raises(SnapshotGone):
                await env.release(snapshot)

    snapshot, key = asyncio.run(first())
    asyncio.run(second(snapshot, key))


@pytest.mark.slow
def test_a_sweep_leaves_what_unfinished_episodes_go_on_from(
    broken: Task, tmp_path: Path, in_backend: Callable[..., None]
) -> None:
    async def body(_backend: SandboxBackend) -> None:
        async with make_backend("namespace", snapshots=str(tmp_path / "kept")) as backend:
            env = CodeRepair(broken, backend)
            await env.reset(seed=3)
            await acted(env, Action.call("list_files"))
            for _ in range(2):
                await env.durable_snapshot()
            (one, other) = await backend.snapshots()
            await backend.retain(one)
            assert await sweep(backend, []) == 2
            assert await backend.snapshots() == []
            assert other is not one
            await env.close()

    in_backend(body)


def test_episodes_of_any_task_file_are_graded_again(
    broken_for_all: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert broken_for_all.world is not None
    code = (Path(broken_for_all.world.trees[0].source) / "small.py").read_text()
    gold = {"patch": make_patch({"small.py": code}, {"small.py": code.replace("result -=", "result +=")})}
    answered = broken_for_all.model_copy(update={"metadata": {**broken_for_all.metadata, "gold": gold}})
    tasks, store = write_many(answered, 1, tmp_path / "mine.jsonl"), str(tmp_path / "store")
    given = ("--task-option", f"path={tasks}", "--sandbox", "namespace", "--json")
    assert run(("collect", "code-repair", "--agent", "gold", "-n", "1", "--out", store, *given)) == 0
    grade = ("data", "grade", store, "--env", "code-repair", *given)

    def counts(*more: str) -> object:
        capsys.readouterr()
        assert run((*grade, *more)) == 0
        return json.loads(capsys.readouterr().out)

    assert counts() == {"graded": 0, "left": 1, "failed": 0}
    changed = answered.model_copy(
        update={"id": "small/0", "metadata": {**answered.metadata, "fail_to_pass": ["tests/test_small.py::no"]}}
    )
    write_tasks([changed], tasks)
    assert counts("--env-option", "types=true", "--again") == {"graded": 1, "left": 0, "failed": 0}
    (episode,) = StoreReader(store)
    assert [grade.reward for grade in episode.grades] == [1.0, 0.0]
    assert ["types" in grade.channels for grade in episode.grades] == [False, True]
    assert run((*grade, "--task-option", "pth=x")) == 2
    assert "did you mean 'path'" in capsys.readouterr().err
