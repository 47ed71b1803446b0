"""Laws of the store: what is read is what was written (n), whichever way it took through logs and shards."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.env import Grade, Step, StopReason
from envgym.episode import Began, Episode, ForkPoint, Group, Turn
from envgym.errors import StoreCorrupt
from envgym.messages import Message
from envgym.policy import ROLES, VersionRun
from envgym.store import Ended, Graded, StoreReader, StoreWriter, TokenBatch, Turned, follow
from envgym.store.columns import Gathered, episodes_batch, grades_batch, turns_batch
from envgym.store.compaction import blocks_of
from envgym.store.records import Record, decode, encode
from envgym.store.rows import episodes_of, grades_of, turns_of
from envgym.store.schema import SCHEMA_VERSION
from envgym.store.shard import Shard, ShardWriter
from envgym.testing.strategies import episode_lists, episodes, grades, groups, names, some_parts

relaxed = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
many = episode_lists().map(
    lambda found: [replace(one, id=f"{number}{one.id}", parent=None) for number, one in enumerate(found)]
)


def blocks() -> st.SearchStrategy[list[list[Episode]]]:
    return some_parts().flatmap(lambda parts: st.lists(st.lists(episodes(parts), max_size=3), max_size=3))


def plain(name: str, turns: int = 0, **fields: object) -> Episode:
    own = tuple(
        Turn("agent", (Message(role="assistant", content=f"{name} {number}"),), Step(reward=1.0))
        for number in range(turns)
    )
    given_: dict[str, object] = {"task_id": "t", "root": Step(), "turns": own, "seed": 0, "stop": StopReason.GOAL}
    return Episode(id=name, **(given_ | fields))  # type: ignore[arg-type]


def fresh(folder: Path) -> Path:
    return folder / f"store{len(list(folder.iterdir()))}"


def in_order(episode: Episode) -> list[object]:
    """What equality of mappings does not see."""
    return [(list(turn.step.channels.items()), list(turn.step.cost.items())) for turn in episode.turns]


@pytest.mark.slow
@relaxed
@given(episodes(), grades)
def test_law_n_a_record_is_read_as_it_was_written(episode: Episode, grade: Grade) -> None:
    turned = [Turned(episode.id, index, turn) for index, turn in enumerate(episode.turns)]
    records: list[Record] = [Began.of(episode), *turned, Ended.of(episode), Graded(episode.id, grade)]
    again = [decode(encode(record)) for record in records]
    assert again == records
    assert [encode(record) for record in again] == [encode(record) for record in records]
    for record, mine in zip(again[1:-2], episode.turns, strict=True):
        assert isinstance(record, Turned)
        assert record.turn.logprobs.tobytes() == mine.logprobs.tobytes()
        assert (record.turn.act_s, record.turn.step_s) == (mine.act_s, mine.step_s)


@pytest.mark.slow
@relaxed
@given(episode_lists(), st.lists(st.tuples(names, grades), max_size=3))
def test_law_n_columns_hold_what_rows_did(found: list[Episode], later: list[tuple[str, Grade]]) -> None:
    batches = episodes_batch(found), turns_batch(found)
    for batch in batches:
        batch.validate(full=True)
    again = episodes_of(batches[0], turns_of(batches[1]))
    assert again == found
    assert [in_order(episode) for episode in again] == [in_order(episode) for episode in found]
    assert [episode.wall_s for episode in again] == [episode.wall_s for episode in found]
    assert grades_of(grades_batch(later)) == later


@pytest.mark.slow
@relaxed
@given(blocks(), st.sampled_from(["hot", "cold"]))
def test_law_n_a_shard_holds_its_blocks(
    tmp_path: Path, blocks: list[list[Episode]], kind: Literal["hot", "cold"]
) -> None:
    folder = fresh(tmp_path)
    with ShardWriter(folder, kind) as writer:
        for block in blocks:
            writer.add(episodes_batch(block, writer.turns), turns_batch(block))
        writer.commit()
    shard = Shard(folder)
    for number, block in enumerate(blocks):
        assert episodes_of(shard.batch("episodes", number), turns_of(shard.batch("turns", number))) == block


@pytest.mark.slow
@relaxed
@given(many, st.integers(1, 100_000))
def test_blocks_hold_all_episodes_in_their_order(found: list[Episode], most: int) -> None:
    read: list[Episode] = []
    for block in blocks_of(found * 50, most):  # memory is used again from the third one on
        assert len(block) > 0
        batch = block.episodes()
        mine = episodes_of(batch, turns_of(block.turns()))
        assert batch == episodes_batch(mine)
        read += mine
    assert read == found * 50


def test_a_block_that_is_in_use_is_not_written_over() -> None:
    block = Gathered()
    block.add([plain("one", turns=3)])
    first = block.turns()
    block.begin()
    block.add([plain("two", turns=3)])
    assert [turn.messages[0].content for turn in turns_of(first)] == ["one 0", "one 1", "one 2"]
    assert [turn.messages[0].content for turn in turns_of(block.turns())] == ["two 0", "two 1", "two 2"]


def test_law_n_holds_for_arrays_in_pieces_and_for_other_kinds_of_numbers() -> None:
    numbers = np.arange(12)
    given_ = [
        numbers.astype(np.int32)[::2],
        numbers[::2],
        numbers[::2].astype(">i4"),
        numbers[::2].astype(np.int32),
    ]
    whole = plain("one", turns=len(given_))
    turns = tuple(
        replace(turn, prompt_ids=ids, sampled_ids=ids[:2], logprobs=np.array([-1.0, -0.5]), segment=number)
        for number, (turn, ids) in enumerate(zip(whole.turns, given_, strict=True))
    )
    for turn in turns_of(turns_batch([replace(whole, turns=turns)])):
        assert (turn.prompt_ids.tolist(), turn.prompt_ids.dtype) == ([0, 2, 4, 6, 8, 10], np.int32)
        assert (turn.sampled_ids.tolist(), turn.logprobs.tolist()) == ([0, 2], [-1.0, -0.5])


@pytest.mark.slow
@relaxed
@given(many, st.integers(1, 3000), st.sampled_from(["", "hot", "cold"]), grades)
def test_law_n_a_store_is_the_same_at_every_moment(
    tmp_path: Path, found: list[Episode], log_bytes: int, kind: Literal["", "hot", "cold"], grade: Grade
) -> None:
    path = fresh(tmp_path)
    with StoreWriter(path, log_bytes=log_bytes) as writer:
        for episode in found:
            writer.begin(Began.of(episode))
            for index, turn in enumerate(episode.turns):
                writer.turn(episode.id, index, turn)
            meanwhile = StoreReader(path)
            assert tuple(meanwhile.unfinished[episode.id].turns) == episode.turns
            assert episode.id not in meanwhile
            writer.append(episode)
            assert StoreReader(path)[episode.id] == episode
        if found:
            writer.grade(found[0].id, grade)
        if kind:
            writer.compact(kind)
    want = [episode.graded(grade) if not number else episode for number, episode in enumerate(found)]
    with StoreReader(path) as reader:
        assert list(reader) == want
        assert [reader[episode.id] for episode in want] == want
        assert reader.table("turns").num_rows == sum(len(episode.turns) for episode in want)
    with StoreWriter(path) as writer:
        assert (len(writer), dict(writer.unfinished)) == (len(found), {})
    assert list(StoreReader(path)) == want


@pytest.mark.slow
@relaxed
@given(many)
def test_a_follower_is_told_every_record_once(tmp_path: Path, found: list[Episode]) -> None:
    path = fresh(tmp_path)
    with StoreWriter(path, log_bytes=1 << 30) as writer:
        told: list[Record] = []
        done = False
        following = follow(path, poll_s=0.001, until=lambda: done)
        for episode in found:
            writer.append(episode)
            while not any(isinstance(one, Ended) and one.episode == episode.id for one in told):
                told.append(next(following))
        done = True
        assert list(following) == []
    turns = [(one.episode, one.index) for one in told if isinstance(one, Turned)]
    assert turns == [(episode.id, index) for episode in found for index in range(len(episode.turns))]
    assert [one.id for one in told if isinstance(one, Began)] == [episode.id for episode in found]


def test_what_has_ended_in_a_log_and_in_a_shard_is_read_in_order(tmp_path: Path) -> None:
    made = [plain(f"e{number}", number % 3) for number in range(9)]
    with StoreWriter(tmp_path / "s", log_bytes=300) as writer:
        for episode in made:
            writer.append(episode)
        assert list(StoreReader(tmp_path / "s")) == made
    assert StoreReader(tmp_path / "s").ids == tuple(episode.id for episode in made)


def test_many_episodes_at_once_are_all_there_or_none(tmp_path: Path) -> None:
    made = [plain(f"e{number}", 2) for number in range(5)]
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend(made[:3])
        with pytest.raises(ValueError, match="'e1' already"):
            writer.extend([made[3], made[1], made[4]])
        assert list(StoreReader(tmp_path / "s")) == made[:3]
        writer.extend(made[3:])
    assert list(StoreReader(tmp_path / "s")) == made
    assert not [path for path in (tmp_path / "s/shards").iterdir() if path.name.startswith(".")]


def test_groups_are_those_played_together_and_forks_follow_their_parents(tmp_path: Path) -> None:
    parent = plain("p", 2)
    fork = plain("p/0", 1, parent=ForkPoint("p", 1))
    with StoreWriter(tmp_path / "s") as writer:
        for episode in (fork, plain("a", group="g1"), parent, plain("b", group="g2"), plain("c", group="g1")):
            writer.append(episode)
    found = [[episode.id for episode in group] for group in StoreReader(tmp_path / "s").groups()]
    assert found == [["p", "p/0"], ["a", "c"], ["b"]]


def test_an_episode_that_begins_again_leaves_its_first_turns_behind(tmp_path: Path) -> None:
    made = plain("e", 3)
    with StoreWriter(tmp_path / "s") as writer:
        for turns in (2, 3):
            writer.begin(Began.of(made))
            for index in range(turns):
                writer.turn("e", index, made.turns[index])
        writer.append(made)
    assert list(StoreReader(tmp_path / "s")) == [made]


def test_a_misuse_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("e"))
        size = writer._log.bytes
        bad = plain("bad", root=Step(info={"x": object()}))
        for call, error, said in (
            (lambda: writer.append(plain("e")), ValueError, "holds an episode 'e' already"),
            (lambda: writer.begin(Began.of(plain("e"))), ValueError, "holds an episode 'e' already"),
            (lambda: writer.turn("x", 0, plain("x", 1).turns[0]), ValueError, "not unfinished"),
            (lambda: writer.grade("x", Grade(grader="g", version="1", channels={})), ValueError, "no episode 'x'"),
            (lambda: writer.append(bad), TypeError, "cannot hold object"),
            (lambda: StoreWriter(tmp_path / "s"), ValueError, "another process"),
            (lambda: StoreWriter(tmp_path / "t", sync_s=0), ValueError, "sync_s is 0"),
            (lambda: StoreReader(tmp_path / "none"), ValueError, "does not exist"),
            (lambda: StoreReader(tmp_path), ValueError, "is no store"),
            (lambda: StoreReader(tmp_path / "s").table("rows"), ValueError, "the tables of a store are"),
            (lambda: StoreReader(tmp_path / "s").table("turns", ["x"]), ValueError, "no column 'x'"),
        ):
            with pytest.raises(error, match=re.escape(said)):
                call()
        assert writer._log.bytes == size
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file; a store is a folder"):
        StoreWriter(tmp_path / "file")
    with pytest.raises(KeyError, match="holds no episode 'x'"):
        StoreReader(tmp_path / "s")["x"]


def test_images_are_stored_once_by_their_content(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        one, other = writer.put_image(b"\x89PNG"), writer.put_image(b"\x89PNG")
        assert one == other
    with StoreReader(tmp_path / "s") as reader:
        assert reader.image(one) == b"\x89PNG"
    assert len([path for path in (tmp_path / "s/images").rglob("*") if path.is_file()]) == 1
    (path,) = [path for path in (tmp_path / "s/images").rglob("*") if path.is_file()]
    path.write_bytes(b"other")
    with pytest.raises(StoreCorrupt, match=one.sha256):
        StoreReader(tmp_path / "s").image(one)


def test_tables_open_without_our_code(tmp_path: Path) -> None:
    made = [plain(f"e{number}", 3) for number in range(4)]
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend(made)
        hot = next((tmp_path / "s/shards").glob("*/turns.arrow"))
        with pa.memory_map(str(hot)) as source:
            table = pa.ipc.open_file(source).read_all()
            assert table.column("reward").to_pylist() == [1.0] * 12
            del table
        writer.compact("cold")
    cold = next((tmp_path / "s/shards").glob("*/turns.parquet"))
    table = pq.read_table(cold, page_checksum_verification=True)
    assert table.column("messages")[0].as_py()[0]["content"] == "e0 0"
    assert json.loads(table.schema.metadata[b"envgym.schema"]) == SCHEMA_VERSION


@pytest.mark.slow
@relaxed
@given(many, st.sampled_from(["hot", "cold", "log"]), st.randoms(use_true_random=False))
def test_minibatches_hold_the_tokens_of_their_episodes(
    tmp_path: Path, found: list[Episode], kind: str, chance: random.Random
) -> None:
    with StoreWriter(path := fresh(tmp_path)) as writer:
        if kind == "log":
            for episode in found:
                writer.append(episode)
        else:
            for episode in found:
                writer.extend([episode])
            writer.compact(kind)  # type: ignore[arg-type]
        tokens = StoreReader(path).tokens()
    assert list(tokens.ids) == [episode.id for episode in found]
    drawn = [chance.randrange(len(found)) for _ in range(5)] if found else []
    batch = tokens.take(drawn)
    turns = [turn for number in drawn for turn in found[number].turns]
    assert batch.turns_B.tolist() == [len(found[number].turns) for number in drawn]
    assert batch.prompts_N.tolist() == [len(turn.prompt_ids) for turn in turns]
    assert batch.samples_N.tolist() == [len(turn.sampled_ids) for turn in turns]
    for name in ("prompt_ids", "sampled_ids", "logprobs"):
        want = np.concatenate([getattr(turn, name) for turn in turns]) if turns else np.zeros(0)
        assert getattr(batch, name).tobytes() == want.tobytes()
    _same_facts(batch, turns)
    with pytest.raises(IndexError, match="numbered from 0"):
        tokens.take([len(found)])


def _same_facts(batch: TokenBatch, turns: Sequence[Turn]) -> None:
    """What a minibatch says of its turns and tokens is what they say."""
    rewards = [np.nan if turn.step.reward is None else turn.step.reward for turn in turns]
    assert batch.rewards_N.tobytes() == np.array(rewards, np.float64).tobytes()
    assert batch.segments_N.tolist() == [turn.segment for turn in turns]
    assert batch.positions_N.tolist() == [turn.position for turn in turns]
    roles = [
        ROLES.index(role)
        for turn in turns
        for role, length in turn.roles or (("unknown", len(turn.prompt_ids)),)
        for _ in range(length)
    ]
    assert batch.roles.tolist() == roles
    versions = [
        next((run.version for run in reversed(turn.versions) if run.start <= at), -1)
        for turn in turns
        for at in range(len(turn.sampled_ids))
    ]
    assert batch.versions.tolist() == versions


@pytest.mark.slow
@relaxed
@given(groups(most=5), st.sampled_from(["hot", "cold", "log"]), st.booleans())
def test_a_fork_comes_with_its_whole_context(tmp_path: Path, group: Group, kind: str, backwards: bool) -> None:
    members = list(reversed(group.episodes)) if backwards else list(group)
    with StoreWriter(path := fresh(tmp_path)) as writer:
        for episode in members:
            writer.append(episode)
        if kind != "log":
            writer.compact(kind)  # type: ignore[arg-type]
        tokens = StoreReader(path).tokens()
    batch = tokens.take(range(len(members)), shared=True)
    paths = [group.path(episode) for episode in members]
    turns = [turn for whole in paths for turn in whole]
    assert batch.turns_B.tolist() == list(map(len, paths))
    assert batch.shared_B.tolist() == [len(p) - len(one.turns) for p, one in zip(paths, members, strict=True)]
    assert batch.row_N.tolist() == [k for k, whole in enumerate(paths) for _ in whole]
    assert batch.prompt_ids.tolist() == [int(one) for turn in turns for one in turn.prompt_ids]
    assert batch.sampled_ids.tolist() == [int(one) for turn in turns for one in turn.sampled_ids]
    _same_facts(batch, turns)
    assert tokens.take(range(len(members))).shared_B.tolist() == [0] * len(members)


def test_a_fork_without_its_parent_has_no_whole_context(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(replace(plain("fork"), parent=ForkPoint("gone", 1)))
        tokens = StoreReader(tmp_path / "s").tokens()
    assert tokens.take([0]).shared_B.tolist() == [0]
    with pytest.raises(ValueError, match="'fork' was forked from 'gone', which is not among"):
        tokens.take([0], shared=True)


@pytest.mark.parametrize(("starts", "want"), [((1,), [-1, 5, 5]), ((0, 2, 9), [5, 5, 6]), ((2, 1), [-1] * 3)])
def test_versions_that_say_nothing_are_unknown(tmp_path: Path, starts: tuple[int, ...], want: list[int]) -> None:
    runs = tuple(VersionRun(start, 5 + k) for k, start in enumerate(starts))
    turn = Turn("agent", (), Step(), sampled_ids=np.zeros(3, np.int32), logprobs=np.zeros(3, np.float32))
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(replace(plain("e"), turns=(replace(turn, versions=runs),)))
        assert StoreReader(tmp_path / "s").tokens().take([0]).versions.tolist() == want


def test_tokens_of_hot_shards_are_not_copied(tmp_path: Path) -> None:
    turn = Turn(
        "agent", (), Step(), np.arange(9, dtype=np.int32), np.arange(3, dtype=np.int32), np.zeros(3, np.float32)
    )
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([replace(plain("e"), turns=(turn,))])
    before = pa.total_allocated_bytes()
    column = StoreReader(tmp_path / "s").table("turns", ["prompt_ids"]).column(0)
    assert column.to_pylist() == [list(range(9))]
    assert pa.total_allocated_bytes() - before < 4096
