"""A fork is worth what its whole path earned, wherever episodes are compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from envgym.buffer import success_rate
from envgym.data import chosen, parse_query, preferences, statistics
from envgym.data.path_rewards import path_reward, path_rewards
from envgym.env import Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.formats import Card, Options, export
from envgym.messages import Message
from envgym.store import StoreReader, StoreWriter
from envgym.testing.strategies import groups

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
FAILED = Failure(boundary=Boundary.GRADER, kind="GraderFailure", message="m", where="grade", turn=0)


def line(name: str, *rewards: float | None, parent: ForkPoint | None = None) -> Episode:
    """An episode whose turns say where they are."""
    turns = tuple(
        Turn("agent", (Message(role="assistant", content=f"{name} {k}"),), Step(reward=reward))
        for k, reward in enumerate(rewards)
    )
    root = Step(observation=(Message(role="user", content="begin"),))
    return Episode(name, "t", root, turns, 0, StopReason.GOAL, parent=parent)


def tree() -> Group:
    """Paths that earn 1, 1.5, 0.25 and nothing."""
    return Group(
        "t",
        (
            line("parent", 1.0, 0.0),
            line("fork", 0.5, parent=ForkPoint("parent", 1)),
            line("again", -0.75, parent=ForkPoint("fork", 1)),
            line("silent", None, parent=ForkPoint("parent", 0)),
        ),
    )


def stored(path: Path, episodes: Sequence[Episode]) -> StoreReader:
    with StoreWriter(path) as writer:
        for episode in episodes:
            writer.append(episode)
    return StoreReader(path)


def same(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Equal to the bit, a NaN (of infinities) included."""
    return repr(list(one)) == repr(list(other))


def test_a_path_earns_what_all_its_turns_did() -> None:
    group = tree()
    assert [group.reward(one) for one in group] == [1.0, 1.5, 0.25, None]
    assert [one.reward for one in group] == [1.0, 0.5, -0.75, None], "an episode's own turns"
    lost = replace(group.episodes[1], stop=None, failure=FAILED)
    assert Group("t", (group.episodes[0], lost)).reward(lost) is None, "a failed world scores nothing"


def test_the_better_path_is_preferred_whatever_was_earned_before_the_fork() -> None:
    group = Group("t", tree().episodes[:2])
    (found,) = preferences(group)
    assert (found.episodes, found.scores) == (("fork", "parent"), (1.5, 1.0))
    assert [message.content for message in found.preferred] == ["fork 0"]


def test_a_fork_succeeds_by_what_its_path_earned() -> None:
    assert success_rate(tree(), above=0.9) == 0.5
    assert success_rate(tree(), above=1.0) == 0.25


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_a_query_and_the_statistics_read_whole_paths(tmp_path: Path, order: Sequence[int]) -> None:
    episodes = [tree().episodes[k] for k in order]
    with stored(tmp_path / "s", episodes) as reader:
        assert set(chosen(reader, parse_query("reward >= 1.0"))) == {"parent", "fork"}
        assert set(chosen(reader, parse_query("reward is None"))) == {"silent"}
        assert set(chosen(reader, parse_query("own_reward == 0.5"))) == {"fork"}
        assert statistics(reader).all["mean_reward"] == pytest.approx((1 + 1.5 + 0.25) / 3)


def test_what_a_fork_without_its_ancestors_earned_is_unknown(tmp_path: Path) -> None:
    group = tree()
    with stored(tmp_path / "s", [group.episodes[0], group.episodes[2]]) as reader:
        assert chosen(reader, parse_query("reward is None")) == ["again"]
        assert statistics(reader).all["mean_reward"] == 1.0
    forks = {"a": ForkPoint("a", 1), "b": ForkPoint("c", 3)}
    assert path_reward("a", {"a": [1.0]}, forks) is None, "its own ancestor"
    assert path_reward("b", {"b": [1.0], "c": [1.0]}, forks) is None, "after a turn that its parent does not have"


def test_statistics_of_a_damaged_store_leave_out_forks_of_what_is_lost(tmp_path: Path) -> None:
    group = tree()
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([group.episodes[0]])
        writer.extend([group.episodes[1], line("whole", 0.25)])
    shard = min(path for path in (tmp_path / "s" / "shards").iterdir())
    bytes_ = bytearray((shard / "turns.arrow").read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    (shard / "turns.arrow").write_bytes(bytes_)
    with StoreReader(tmp_path / "s") as reader:
        found = statistics(reader)
    assert [one.lost for one in found.damage] == [("parent",)]
    assert (found.all["episodes"], found.all["mean_reward"]) == (2, 0.25)


@pytest.mark.slow
@relaxed
@given(groups(most=5))
def test_every_reader_agrees_with_the_group(tmp_path_factory: pytest.TempPathFactory, group: Group) -> None:
    top = tmp_path_factory.mktemp("agree")
    want = [group.reward(one) for one in group]
    with stored(top / "s", group.episodes) as reader:
        table = reader.table("episodes")
        assert same(path_rewards(reader, table).to_pylist(), want)
        known = [reward for reward in want if reward is not None]
        mean = statistics(reader).all["mean_reward"]
        with np.errstate(invalid="ignore", over="ignore"):
            expected = float(np.mean(known)) if known else None
        assert mean == pytest.approx(expected, nan_ok=True) if known else mean is None


def test_exports_agree_on_what_a_path_earned(tmp_path: Path) -> None:
    options = Options(card=Card(name="x", score_range=(0.0, 2.0)))
    export([tree()], tmp_path / "folder", "datasets", options=options, redact=False)
    (file,) = (tmp_path / "folder").rglob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert [(row["id"], row["reward"], row["normalised_score"]) for row in rows] == [
        ("parent", 1.0, 0.5), ("fork", 1.5, 0.75), ("again", 0.25, 0.125), ("silent", None, None),
    ]  # fmt: skip
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "| unknown | 4 | 0.9167 | 0.4583 |" in card
