"""Contexts packed into rows of one length: all of them, each whole and once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.data import TOKEN_ROLES, TokenRow, packed, packed_rows, token_rows, write_packed
from envgym.env import Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.testing.strategies import groups

relaxed = settings(suppress_health_check=[HealthCheck.too_slow])
SAMPLED = TOKEN_ROLES.index("sampled")


def row(name: str, size: int, learned: Sequence[int] = (1,)) -> TokenRow:
    """A context of ids that count up from 10, of which the given places are learned."""
    ids = np.arange(10, 10 + size, dtype=np.int32)
    mask = np.isin(np.arange(size), learned)
    logprobs = np.where(mask, -np.arange(size), np.nan).astype(np.float32)
    return TokenRow(name, 0, ids, np.where(mask, SAMPLED, 0).astype(np.int8), mask, logprobs)


def test_contexts_lie_side_by_side_and_what_is_left_is_empty() -> None:
    (found,) = packed([row("a", 3), row("b", 2)], 7)
    assert found.ids.tolist() == [10, 11, 12, 10, 11, 0, 0]
    assert found.roles.tolist() == [0, SAMPLED, 0, 0, SAMPLED, 0, 0]
    assert found.mask.tolist() == [False, True, False, False, True, False, False]
    assert found.segment_ids.tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert found.positions.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert repr(found.logprobs.tolist()) == "[nan, -1.0, nan, nan, -1.0, nan, nan]"
    assert found.contexts == (("a", 0), ("b", 0))


def test_a_row_goes_where_it_leaves_the_least_room() -> None:
    found = list(packed([row("a", 5), row("b", 6), row("c", 4), row("d", 5)], 10))
    assert [one.contexts for one in found] == [(("b", 0), ("c", 0)), (("a", 0), ("d", 0))]
    assert not any((one.segment_ids == 0).any() for one in found)


def test_a_longer_row_is_refused_dropped_or_cut() -> None:
    rows = [row("long", 9), row("late", 9, learned=(8,)), row("a", 2)]
    with pytest.raises(ValueError, match="segment 0 of episode 'long' has 9 ids, and a row 4 places"):
        list(packed(rows, 4))
    assert [one.contexts for one in packed(rows, 4, longer="drop")] == [(("a", 0),)]
    cut = list(packed(rows, 4, longer="cut"))
    assert [one.contexts for one in cut] == [(("long", 0),), (("a", 0),)], "nothing of the other is to be learned"
    assert cut[0].ids.tolist() == [10, 11, 12, 13]
    with pytest.raises(ValueError, match="length is 0"):
        list(packed(rows, 0))
    with pytest.raises(ValueError, match="longer is 'split'"):
        list(packed(rows, 4, longer="split"))  # type: ignore[arg-type]


def test_few_rows_are_open_at_a_time() -> None:
    given_ = 0

    def rows() -> Iterator[TokenRow]:
        nonlocal given_
        for number in range(1000):
            given_ += 1
            yield row(str(number), 6)

    next(packed(rows(), 10))
    assert given_ <= 65


@relaxed
@given(st.lists(st.integers(1, 12), max_size=200), st.integers(12, 40))
def test_every_row_is_packed_once_and_whole(sizes: list[int], length: int) -> None:
    rows = {str(number): row(str(number), size, learned=range(1, size, 2)) for number, size in enumerate(sizes)}
    seen: list[str] = []
    for found in packed(rows.values(), length):
        assert {len(part) for part in (found.ids, found.roles, found.mask, found.logprobs)} == {length}
        assert not found.mask[found.segment_ids == 0].any()
        for number, (name, _segment) in enumerate(found.contexts, 1):
            at = found.segment_ids == number
            whole = rows[name]
            assert found.ids[at].tolist() == whole.ids.tolist()
            assert found.roles[at].tolist() == whole.roles.tolist()
            assert found.mask[at].tolist() == whole.mask.tolist()
            assert found.logprobs[at].tobytes() == whole.logprobs.tobytes()
            assert found.positions[at].tolist() == list(range(len(whole.ids)))
            seen.append(name)
    assert sorted(seen) == sorted(rows)


def test_every_sampled_token_of_a_tree_is_learned_once_with_its_logprob() -> None:
    def turn(position: int, value: float) -> Turn:
        prompt, said = np.array([1, 2], np.int32), np.array([3], np.int32)
        return Turn("agent", (), Step(), prompt, said, np.array([value], np.float32), position=position)

    parent = Episode("p", "t", Step(), (turn(0, -1.0), turn(3, -2.0)), 0, StopReason.GOAL)
    fork = Episode("f", "t", Step(), (turn(3, -3.0),), 0, StopReason.GOAL, parent=ForkPoint("p", 1))
    (found,) = packed_rows([Group("t", (parent, fork))], 16)
    assert found.contexts == (("p", 0), ("f", 0))
    assert found.logprobs[found.mask].tolist() == [-1.0, -2.0, -3.0]
    assert found.logprobs[found.roles == SAMPLED].tolist() == [-1.0, -2.0, -1.0, -3.0], "the shared turn as context"


def test_packed_rows_are_a_file_that_any_tool_opens(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    rows = list(packed([row("a\ud800", 3), row("b", 2), row("c", 4)], 7))
    assert write_packed(rows, file) == (2, 3)
    first, second = pq.read_table(file).to_pylist()
    assert first["contexts"] == [{"episode": "a?", "segment": 0}, {"episode": "b", "segment": 0}]
    assert first["ids"] == rows[0].ids.tolist()
    assert second["mask"] == [False, True, False, False, False, False, False]
    assert repr(second["logprobs"]) == repr(rows[1].logprobs.tolist())
    with pytest.raises(FileExistsError):
        write_packed(rows, file)
    with pytest.raises(ValueError, match="has 9 ids"):
        write_packed(packed([row("a", 3), row("long", 9)], 4), tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.slow
@settings(relaxed, max_examples=50)
@given(groups(most=4))
def test_packing_keeps_what_token_rows_say(group: Group) -> None:
    rows = [found for one in group for found in token_rows(group, one)]
    for found in rows:
        sampled = found.roles == SAMPLED
        assert np.isnan(found.logprobs[~sampled]).all()
        assert not np.isnan(found.logprobs[sampled]).any()
    whole = list(packed_rows([group], 300))
    assert sum(found.mask.sum() for found in whole) == sum(found.mask.sum() for found in rows)
    assert sum(len(found.contexts) for found in whole) == len(rows)
