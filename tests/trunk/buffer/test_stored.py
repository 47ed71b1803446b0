"""A checkpoint of a buffer: its facts as JSON, its episodes by their names in the store that holds them anyway."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from envgym.buffer import OnPolicyQueue, Partial, QueueState, Replay, ReplayState
from envgym.env import Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.policy import VersionRun
from envgym.store import StoreReader, StoreWriter


def on_disk(folder: Path, state: QueueState | ReplayState) -> tuple[dict[str, object], tuple[Episode, ...]]:
    """What comes back after the process is gone."""
    with StoreWriter(folder) as store:
        store.extend(state.episodes)
    (folder / "checkpoint.json").write_text(json.dumps([state.facts, [one.id for one in state.episodes]]))
    facts, names = json.loads((folder / "checkpoint.json").read_text())
    with StoreReader(folder) as reader:
        return facts, tuple(reader[name] for name in names)


def test_a_queue_goes_on_from_a_store(group_of: Callable[..., Group], tmp_path: Path) -> None:
    queue = OnPolicyQueue(2, bound=1)
    for name in ("b", "a"):
        queue.try_put(group_of(name, members=2))
    queue.try_start()
    again = OnPolicyQueue.restore(QueueState(*on_disk(tmp_path, queue.state())))
    assert (again.counts, again.tickets) == (queue.counts, queue.tickets)
    assert again.try_take() == queue.try_take()


def test_a_replay_goes_on_from_a_store(group_of: Callable[..., Group], tmp_path: Path) -> None:
    replay = Replay(100)
    for index in range(5):
        replay.add(group_of(f"g{index}"), version=index, success=None if index else 0.5)
    again = Replay.restore(ReplayState(*on_disk(tmp_path, replay.state())))
    draws = [one.sample(9, np.random.default_rng(0), version=5) for one in (replay, again)]
    assert draws[0].groups == draws[1].groups


def test_a_partial_that_was_cut_in_the_middle_of_a_turn_comes_back_from_a_store(tmp_path: Path) -> None:
    turn = Turn(
        "agent", (), Step(), np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32),
        np.array([-0.5, -0.25], np.float32), (VersionRun(0, 4), VersionRun(1, 5)),
    )  # fmt: skip
    partial = Partial(Episode("e", "t", Step(), (turn,), 0, stop=StopReason.TOKEN_LIMIT), open=True)
    with StoreWriter(tmp_path) as store:
        store.append(partial.episode)
    with StoreReader(tmp_path) as reader:
        assert replace(partial, episode=reader["e"]) == partial
