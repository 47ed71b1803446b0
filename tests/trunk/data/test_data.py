"""Queries, tools and views over stored episodes."""

import asyncio
import math
import operator
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.data import (
    TOKEN_ROLES,
    Decontamination,
    add_reports,
    chat,
    chosen,
    contaminated,
    copy,
    decontaminated,
    family,
    merge,
    parse_query,
    preferences,
    regrade,
    repeats,
    reporting,
    reports_of,
    sample,
    split,
    split_into,
    statistics,
    step_rows,
    token_rows,
)  # fmt: skip
from envgym.env import Grade, Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure, GraderFailure, StoreCorrupt
from envgym.messages import ImagePart, Message, ParseError, ToolCall
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task
from envgym.testing.strategies import episodes

relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
FAILED = Failure(boundary=Boundary.GRADER, kind="GraderFailure", message="m", where="grade", turn=0)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def seen(text: str) -> Message:
    return Message(role="user", content=text)


def episode(name: str, *turns: str, reward: float | None = 1.0, task: str = "t", **fields: Any) -> Episode:
    """Turns that say what they are called, with a reward in the last one."""
    own = [Turn("agent", (said(text),), Step((seen(f"saw {text}"),))) for text in turns]
    if own and reward is not None:
        own[-1] = replace(own[-1], step=replace(own[-1].step, reward=reward, submission=f"by {name}"))
    given_: dict[str, Any] = {"root": Step((seen("begin"),)), "seed": 0, "stop": StopReason.SUBMITTED}
    return Episode(id=name, task_id=task, turns=tuple(own), **(given_ | fields))


def judged(grader: str, **channels: float) -> Grade:
    return Grade(grader=grader, version="1", channels=channels)


def paid(one: Episode, *given: dict[str, float]) -> Episode:
    """An episode with a cost for each turn, then channels for each turn."""
    half = len(given) // 2
    turns = (
        replace(turn, step=replace(turn.step, cost=cost, channels=channels))
        for turn, cost, channels in zip(one.turns, given[:half], given[half:], strict=True)
    )
    return replace(one, turns=tuple(turns))


def made() -> list[Episode]:
    return [
        episode("a", "x", "y", reward=1.0),
        episode("b", "x", "z", reward=0.25, task="u", provenance=(("agent", "me"), ("environment", "there"))),
        episode("a/0", "w", reward=0.0, parent=ForkPoint("a", 1)),
        episode("c", "x", stop=None, failure=FAILED, reward=None, task="v"),
        episode("d", "x", "y", reward=1.0),
    ]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StoreReader]:
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend(made())
    with StoreReader(tmp_path / "s") as opened:
        yield opened


@pytest.fixture
def judged_reader(tmp_path: Path) -> Iterator[StoreReader]:
    """As `reader`, with costs, channels and grades; two episodes are in a log."""
    a, b, fork, c, d = made()
    a = paid(a, {"usd": 0.25, "s": 1.0}, {"usd": 0.25}, {"tests": 0.5}, {"tests": 0.75})
    b = paid(
        replace(b, grades=(judged("judge", reward=1.0), judged("judge", style=0.5))), {"usd": 0.25}, {}, {}, {}
    )
    d = replace(d, grades=(judged("other", reward=0.0),))
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([a])
        writer.extend([b, paid(fork, {"s": 2.0}, {"tests": 0.25})])
        writer.append(c)
        writer.append(d)
        writer.grade("a", judged("judge", reward=1.0))
        writer.grade("a", judged("judge", reward=2.0))
        with StoreReader(tmp_path / "s") as opened:
            yield opened


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("reward > 0.5", ["a", "d"]),
        ("reward > 0.5 or reward < 0.1", ["a", "a/0", "d"]),
        ("not (reward > 0.5)", ["b", "a/0", "c"]),
        ("failed == True", ["c"]),
        ("turns >= 2 and task_id != 'u'", ["a", "d"]),
        ("task_id in ['u', 'v']", ["b", "c"]),
        ("task_id not in ['u', 'v']", ["a", "a/0", "d"]),
        ("parent is None", ["a", "b", "c", "d"]),
        ("parent is not None and turns < -1", []),
        ("stop == 'submitted' and reward == 0.25", ["b"]),
        ("agent == 'me' and environment in ['here', 'there']", ["b"]),
        ("agent is None", ["a", "a/0", "c", "d"]),
        ("agent != 'you'", ["a", "b", "a/0", "c", "d"]),
        ("not agent == 'me'", ["a", "a/0", "c", "d"]),
        ("agent not in ['me', 'you']", ["a", "a/0", "c", "d"]),
        ("reward != 1", ["b", "a/0", "c"]),
        ("not (reward < 1 or reward >= 1)", ["c"]),
        ("parent != parent", ["a", "b", "c", "d"]),
        ("provenance['agent'] == agent", ["b"]),
        ("provenance['agent'] != 'you'", ["a", "b", "a/0", "c", "d"]),
        ("cost['usd'] > 0.25", ["a"]),
        ("cost['usd'] <= 0.25", ["b"]),
        ("cost['usd'] is None", ["a/0", "c", "d"]),
        ("cost['usd'] not in [0.5]", ["b", "a/0", "c", "d"]),
        ("channels['tests'] == 0.75", ["a"]),
        ("channels['tests'] < 0.5 and reward < 1", ["a/0"]),
        ("grades['judge']['reward'] == 2", ["a"]),
        ("grades['judge']['reward'] < 2 or grades['judge']['style'] > 0", ["b"]),
        ("grades['judge']['reward'] == 1", ["b"]),
        ("grades['other']['reward'] is not None", ["d"]),
    ],
)
def test_a_query_means_what_python_would(judged_reader: StoreReader, text: str, ids: list[str]) -> None:
    assert chosen(judged_reader, parse_query(text)) == ids


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("reward >", "is no expression"),
        ("rewards > 1", "there is no column 'rewards'; there are: id, task_id"),
        ("__import__('os').getcwd()", "is not taken"),
        ("reward + 1 > 2", "'reward \\+ 1' is not taken"),
        ("0 < reward < 1", "is not taken"),
        ("reward", "says of no episode whether it is meant"),
        ("1", "says of no episode whether it is meant"),
        ("reward > 'a'", "reward > 'a'"),
        ("x" * 10_000, "there is no column"),
        ("turns > 1 and True", "turns > 1 and True"),
        ("id in [None]", "id in"),
        ("agent == None", "None is compared with `is`"),
        ("cost > 1", r"cost has values by name: cost\['name'\]"),
        ("cost['usdd'] > 1", r"no episode has cost\['usdd'\]; did you mean .*cost\['usd'\]"),
        ("grades['judge'] > 1", r"is no lookup; they are written: cost\['channel'\]"),
        ("grades['jury']['reward'] > 1", r"no episode has grades\['jury'\]\['reward'\]; did you mean"),
        ("turns['x'] > 1", "is no lookup"),
        ("cost[0] > 1", "is not taken"),
        ("turns > ...", "turns > ..."),
        ("not " * 5000 + "failed", "is no expression"),
    ],
)
def test_what_is_no_query_is_named(judged_reader: StoreReader, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        chosen(judged_reader, parse_query(text))


_SAID = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@relaxed
@given(
    st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5),
    st.sampled_from([*_SAID, "in", "not in"]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_null_is_different_from_everything_and_neither_less_nor_greater(
    rewards: list[float | None], sign: str, value: float, negated: bool
) -> None:
    def meant(reward: float | None) -> bool:
        if sign in _SAID:
            found = sign == "!=" if reward is None else _SAID[sign](reward, value)
        else:
            found = (reward in [value]) == (sign == "in")
        return found != negated

    text = f"reward {sign} {value if sign in _SAID else [value]}"
    query = parse_query(f"not ({text})" if negated else text)
    table = pa.table({"reward": pa.array(rewards, pa.float64())})
    assert query(table).to_pylist() == [meant(reward) for reward in rewards]


def test_a_query_is_any_function_over_columns(reader: StoreReader) -> None:
    import pyarrow.compute as pc

    assert chosen(reader, lambda table: pc.starts_with(table.column("id"), "a")) == ["a", "a/0"]


def test_a_fork_brings_its_ancestors(reader: StoreReader, tmp_path: Path) -> None:
    assert family(reader, ["a/0"]) == ["a", "a/0"]
    with StoreWriter(tmp_path / "t") as writer:
        assert copy(reader, ["a/0"], writer) == 2
        with pytest.raises(ValueError, match="'a' already"):
            copy(reader, ["a", "b"], writer)
    assert [one.id for one in StoreReader(tmp_path / "t")] == ["a", "a/0"]
    with pytest.raises(KeyError, match="no episode 'q'"):
        family(reader, ["q"])


def test_merging_keeps_everything_or_does_nothing(reader: StoreReader, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "t") as writer:
        with pytest.raises(ValueError, match="both hold an episode 'a'"):
            merge([reader, reader], writer)
        assert len(writer) == 0
        assert merge([reader, reader], writer, rename=True) == 10
    with StoreReader(tmp_path / "t") as merged:
        assert merged["1-a/0"].parent == ForkPoint("1-a", 1)
        assert sum(len(group) for group in merged.groups()) == 10


def test_a_sample_is_drawn_without_replacement_and_by_its_seed(reader: StoreReader) -> None:
    one, same, other = (sample(reader, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one)) == 3
    with pytest.raises(ValueError, match="holds 5; draw fewer"):
        sample(reader, 6, np.random.default_rng(0))


def test_a_split_never_cuts_a_task(tmp_path: Path) -> None:
    made = [episode(f"e{number}", "x", task=f"t{number % 50}") for number in range(200)]
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend(made)
    with StoreReader(tmp_path / "s") as whole:
        parts = split(whole, {"train": 0.8, "test": 0.2})
        assert sorted(parts["train"] + parts["test"]) == sorted(whole.ids)
        tasks = {name: {int(one[1:]) % 50 for one in ids} for name, ids in parts.items()}
        assert not tasks["train"] & tasks["test"]
        assert 5 <= len(tasks["test"]) <= 16
        assert split(whole, {"train": 0.8, "test": 0.2}, seed=1) != parts
        for shares in ({"a": 0.5}, {}, {"a": 1.5, "b": -0.5}, {"a": math.nan, "b": 0.1}, {"a": math.inf}):
            with pytest.raises(ValueError, match="add up to 1"):
                split(whole, shares)


def tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[StoreReader]:
    with StoreWriter(tmp_path / "tasks") as writer:
        writer.extend(episode(f"e{number}", "x", task=f"t{number}") for number in range(40))
        add_reports(tmp_path / "tasks", [Decontamination("held", "00", 2, 13, 40)])
    with StoreReader(tmp_path / "tasks") as opened:
        yield opened


HALVES = {"a": 0.5, "b": 0.5}


def test_a_split_is_written_whole_and_added_to(tasks: StoreReader, reader: StoreReader, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "parts"
    counts = split_into(tasks, HALVES, out)
    assert counts == {name: len(ids) for name, ids in split(tasks, HALVES).items()}
    assert {name: len(StoreReader(out / name)) for name in HALVES} == counts
    assert [len(reports_of(out / name)) for name in HALVES] == [1, 1]
    assert [path.name for path in out.parent.iterdir()] == ["parts"]
    more = split_into(reader, {**HALVES, "c": 0.0}, out)
    assert {name: len(StoreReader(out / name)) - counts.get(name, 0) for name in more} == more
    assert sum(more.values()) == len(reader)


def test_a_split_that_fails_leaves_everything_as_it_was(
    tasks: StoreReader, reader: StoreReader, tmp_path: Path
) -> None:
    out = tmp_path / "parts"
    victim = next((tasks.path / "shards").glob("*/turns.arrow"))
    whole = victim.read_bytes()
    middle = len(whole) // 2
    victim.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with StoreReader(tasks.path) as broken, pytest.raises(StoreCorrupt):
        split_into(broken, HALVES, out)
    assert not out.exists()
    victim.write_bytes(whole)

    split_into(reader, HALVES, out)
    before = tree(out)
    for wrong, why in (
        (HALVES, "already; ids are given once"),
        ({"a": 0.5, "../b": 0.5}, "is no name of a folder"),
        ({"a": 0.5, "b": 0.6}, "add up to 1"),
    ):
        with pytest.raises(ValueError, match=why):
            split_into(reader, wrong, out)
    (out / "c").mkdir()
    (out / "c" / "thing").write_text("mine")
    with pytest.raises(ValueError, match="holds other things and no store"):
        split_into(tasks, {"a": 0.4, "b": 0.3, "c": 0.3}, out)
    shutil.rmtree(out / "c")
    with StoreWriter(out / "b"), pytest.raises(ValueError, match="is being written to by another process"):
        split_into(tasks, HALVES, out)
    kept = {path: content for path, content in tree(out).items() if "/logs/" not in path}
    assert kept == {path: content for path, content in before.items() if "/logs/" not in path}
    assert not list(tmp_path.glob(".*"))


KILLED = """
import os, sys
from pathlib import Path
from envgym.data import split_into
from envgym.store import StoreReader

left = int(sys.argv[3])

def count(event, arguments):
    global left
    if event == "os.rename" and Path(sys.argv[2], ".split.json").exists():
        left -= 1
        if left == -1:
            if sys.argv[4] == "kill":
                os._exit(9)
            raise OSError(28, "No space left on device")

sys.addaudithook(count)
with StoreReader(sys.argv[1]) as reader:
    split_into(reader, {"a": 0.3, "b": 0.3, "c": 0.4}, Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("how", ["kill", "error"])
@pytest.mark.parametrize("moves", range(4))
def test_parts_that_were_there_are_added_to_all_or_not_at_all(
    tasks: StoreReader, tmp_path: Path, moves: int, how: str
) -> None:
    out, more = tmp_path / "parts", tmp_path / "more"
    split_into(tasks, HALVES, out)
    with StoreWriter(more) as writer:
        image = writer.put_image(b"seen")
        shown = Step((Message(role="user", content=(image,)),))
        writer.extend(replace(episode(f"m{number}", "x", task=f"m{number}"), root=shown) for number in range(20))
        add_reports(more, [Decontamination("more", "00", 2, 13, 20)])
    before = {name: set(StoreReader(out / name).ids) for name in HALVES}
    kept = {path: content for path, content in tree(out).items() if "/logs/" not in path and "/images/" not in path}
    command = [sys.executable, "-c", KILLED, str(more), str(out), str(moves), how]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    shares = {"a": 0.3, "b": 0.3, "c": 0.4}
    if moves == 3:
        assert ran.returncode == 0, ran.stderr
    elif how == "error":
        assert "No space left" in ran.stderr
        left = {
            path: content for path, content in tree(out).items() if "/logs/" not in path and "/images/" not in path
        }
        assert left == kept, "it was taken back"
        with StoreReader(more) as reader:
            split_into(reader, shares, out)
    else:
        assert ran.returncode == 9
        with StoreReader(more) as reader, pytest.raises(ValueError, match="already"):
            split_into(reader, shares, out)  # finishes the one that was killed
    after = {name: set(StoreReader(out / name).ids) for name in shares}
    with StoreReader(more) as reader:
        want = split(reader, shares)
    assert after == {name: before.get(name, set()) | set(want[name]) for name in shares}
    assert all(StoreReader(out / name).image(image) == b"seen" for name in shares if want[name])
    assert [[one.held_out for one in reports_of(out / name)] for name in shares] == [
        ["held", "more"], ["held", "more"], ["more"],
    ]  # fmt: skip
    assert not [path for path in out.rglob(".*")]


def test_a_report_is_there_before_its_episodes_and_goes_where_they_fail(tmp_path: Path) -> None:
    one, other = Decontamination("held", "00", 2, 13, 4), Decontamination("more", "00", 2, 13, 4)
    with reporting(tmp_path, [one], empty=True):
        assert reports_of(tmp_path) == (one,), "a kill from here on leaves no episode without its report"
    with pytest.raises(KeyError), reporting(tmp_path, [other], empty=False):
        raise KeyError([found.held_out for found in reports_of(tmp_path)].pop())
    assert reports_of(tmp_path) == (one,)
    with reporting(tmp_path, [other], empty=True):
        assert reports_of(tmp_path) == (other,), "what a killed command said of episodes that never came is gone"
    (tmp_path / "decontamination.json").unlink()
    with pytest.raises(KeyError), reporting(tmp_path, [other], empty=False):
        raise KeyError
    with reporting(tmp_path, [], empty=False):
        assert list(tmp_path.iterdir()) == []


def test_repeats_are_those_that_say_and_see_the_same(reader: StoreReader) -> None:
    assert list(repeats(reader)) == ["d"]


def calling(name: str, given: Any, *, id: str = "", seen_: Any = "ok", **fields: Any) -> Episode:
    """A call of a tool, and its answer."""
    said_ = Message(role="assistant", tool_calls=(ToolCall(name="move", arguments=given, id=id),))
    answer = Message(role="tool", content=seen_, tool_call_id=id)
    turn = Turn("agent", (said_,), Step((answer,)), **fields)
    return Episode(id=name, task_id="t", root=Step(), turns=(turn,), seed=0, stop=StopReason.SUBMITTED)


def image(of: str) -> tuple[ImagePart, ...]:
    return (ImagePart(sha256=of * 64),)


@pytest.mark.parametrize(
    "other",
    [
        calling("o", {"x": 2}), calling("o", {"x": 1.0}), calling("o", {"x": True}), calling("o", {"x": [1]}),
        calling("o", {"y": 1}), calling("o", {"x": 1}, seen_="no"), calling("o", {"x": 1}, seen_=image("a")),
        calling("o", {"x": 1}, error=ParseError(message="", text="mo")),
    ],
)  # fmt: skip
def test_what_differs_in_an_argument_or_an_image_is_no_repeat(other: Episode) -> None:
    assert list(repeats([calling("e", {"x": 1}), other])) == []
    pictures = [calling(name, {"x": 1}, seen_=image(name)) for name in "abab"]
    assert list(repeats(pictures)) == ["a", "b"]


def test_a_call_that_a_server_gave_another_name_is_the_same() -> None:
    one, same = (calling(name, {"x": 1, "y": 2}, id=f"call-{name}") for name in "ab")
    assert list(repeats([one, same])) == ["b"]
    assert list(repeats([one, calling("c", {"y": 2, "x": 1}, id="c")])) == ["c"], "arguments have no order"
    two = ToolCall(name="look", id="1"), ToolCall(name="look", id="2")
    turns = [
        Turn("agent", (Message(role="assistant", tool_calls=two),), Step((answer,)))
        for answer in (Message(role="tool", tool_call_id=call.id) for call in two)
    ]
    first, second = (replace(one, id=str(k), turns=(turn,)) for k, turn in enumerate(turns))
    assert list(repeats([first, second])) == [], "they answer another call"


@pytest.mark.slow
@relaxed
@given(st.lists(episodes(), min_size=1, max_size=3))
def test_every_episode_repeats_itself_and_no_other_content(found: list[Episode]) -> None:
    again = [replace(one, id=f"again-{k}", seed=0) for k, one in enumerate(found)]
    assert {f"again-{k}" for k in range(len(found))} <= set(repeats([*found, *again]))
    longer = [replace(one, task_id=f"{one.task_id}!") for one in found]
    assert set(repeats([*found, *longer])).isdisjoint({one.id for one in longer} - {one.id for one in found})


def test_contamination_is_found_by_runs_of_words() -> None:
    words = " ".join(f"word{number}" for number in range(20))
    leak = episode("leak", f"I remember: {words.upper()}!")
    near = episode("near", " ".join(words.split()[:12]))
    assert [name for name, _ in contaminated([leak, near], [words])] == ["leak"]
    assert list(contaminated([near], ["Word3, WORD4"])) == [("near", "word3 word4")]
    assert list(contaminated([near], ["", "..."])) == []
    with pytest.raises(ValueError, match="words is 0"):
        list(contaminated([near], [words], words=0))


def test_a_fork_of_what_is_contaminated_goes_with_it(reader: StoreReader, tmp_path: Path) -> None:
    (tmp_path / "held").write_text("saw y\nnobody said this\n")
    kept, report = decontaminated(reader, ["b", "a/0", "d"], tmp_path / "held")
    assert kept == ["b"], "what a/0 was forked from would come along with it"
    assert (report.leaks, report.forks, report.checked) == ((("a", "saw y"), ("d", "saw y")), 1, 4)
    assert report.dropped == 3
    assert str(report).startswith(
        "2 of 4 episodes shared 13 words in a row with one of 2 held-out texts (held), or the whole of one of "
        "the 2 that are shorter, and 1 were forked from them"
    )


@pytest.mark.parametrize("content", ["", "\n \n", "--- ***\n"])
def test_a_file_without_held_out_texts_is_refused(reader: StoreReader, tmp_path: Path, content: str) -> None:
    (tmp_path / "held").write_text(content)
    with pytest.raises(ValueError, match="held holds no text with a word: nothing could be found"):
        decontaminated(reader, ["b"], tmp_path / "held")


def test_lines_without_words_are_no_held_out_texts(reader: StoreReader, tmp_path: Path) -> None:
    (tmp_path / "held").write_text("\n\nnobody said this\n" + "word " * 13 + "\n")
    _kept, report = decontaminated(reader, ["b"], tmp_path / "held")
    assert (report.texts, report.short) == (2, 1)


def test_reports_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    one = Decontamination("held", "00", 2, 13, 4, (("a\ud800", "words"),), 1)
    other = replace(one, held_out="more", leaks=())
    assert reports_of(tmp_path) == ()
    add_reports(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    add_reports(tmp_path, [one])
    add_reports(tmp_path, [other, one])
    assert reports_of(tmp_path) == (one, other, one)
    assert [path.name for path in tmp_path.iterdir()] == ["decontamination.json"]
    for wrong in ("{", "[1]", '[{"leaks": []}]', "5"):
        (tmp_path / "decontamination.json").write_text(wrong)
        with pytest.raises(StoreCorrupt, match=r"decontamination\.json: no list of reports"):
            reports_of(tmp_path)


def test_statistics_count_what_is_there(reader: StoreReader) -> None:
    found = statistics(reader)
    assert (found.all["episodes"], found.all["failed"], found.all["forked"], found.tasks) == (5, 1, 1, 3)
    assert found.all["turns"] == 8
    assert found.all["mean_reward"] == pytest.approx((1 + 0.25 + 0 + 1) / 4)
    assert found.all["stops"] == {"submitted": 4, "failed: grader": 1}
    assert list(found.by) == [("?", "?"), ("there", "me")]


def test_statistics_add_what_turns_say_they_cost(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(paid(episode("a", "x", "y"), {"usd": 0.5, "prompt_tokens": 10.0}, {"usd": 0.25}, {}, {}))
        writer.append(episode("b", "x"))
    assert statistics(StoreReader(tmp_path / "s")).all["cost"] == {"prompt_tokens": 10.0, "usd": 0.75}


def test_a_conversation_begins_at_the_root_of_its_line(reader: StoreReader) -> None:
    group = next(group for group in reader.groups() if len(group) == 2)
    fork = group.episodes[1]
    assert [message.content for message in chat(group, fork)] == ["begin", "x", "saw x", "w", "saw w"]


def test_steps_know_what_came_before_and_what_came_of_them(reader: StoreReader) -> None:
    group = Group("u", (reader["b"],))
    first, second = step_rows(group, group.episodes[0], gamma=0.5)
    assert [message.content for message in second.prefix] == ["begin", "x", "saw x"]
    assert (first.value, second.value, first.reward, second.reward) == (0.125, 0.25, None, 0.25)
    broken = Group("v", (reader["c"],))
    assert [row.value for row in step_rows(broken, broken.episodes[0])] == [None], "the world's fault is no return"
    with pytest.raises(ValueError, match="gamma is 2"):
        list(step_rows(broken, broken.episodes[0], gamma=2))


def test_preferences_share_their_prefix_and_differ_in_reward(reader: StoreReader) -> None:
    group = next(group for group in reader.groups() if len(group) == 2)
    (found,) = preferences(group)
    assert [message.content for message in found.prefix] == ["begin", "x", "saw x"]
    assert (found.preferred[0].content, found.other[0].content) == ("y", "w")
    assert (found.scores, found.episodes) == ((1.0, 0.0), ("a", "a/0"))
    assert list(preferences(group, margin=1.0)) == []


@pytest.mark.slow
@relaxed
@given(st.lists(episodes(), min_size=1, max_size=4))
def test_prefix_and_what_was_said_make_up_the_conversation(found: list[Episode]) -> None:
    for one in found:
        alone = replace(one, parent=None)
        group = Group(alone.task_id, (alone,))
        whole = chat(group, alone)
        for row in step_rows(group, alone):
            turn = alone.turns[row.turn]
            through = (*row.prefix, *row.said, *turn.step.observation)
            assert whole[: len(through)] == through
        assert {row.episode for row in step_rows(group, alone)} <= {alone.id}


def sampled(turn: Turn, prompt: int, ids: int, at: tuple[int, int], roles: Any = ()) -> Turn:
    made, first = np.arange(at[1], at[1] + prompt + ids, dtype=np.int32), np.zeros(ids, np.float32)
    return replace(
        turn, prompt_ids=made[:prompt], sampled_ids=made[prompt:], logprobs=first, segment=at[0], position=at[1],
        roles=roles,
    )  # fmt: skip


def test_a_row_of_tokens_learns_those_whose_role_is_asked_for() -> None:
    told = (("template", 1), ("user", 2), ("template", 1))
    bare = episode("a", "x", "y", "z", "w").turns
    own = (
        sampled(bare[0], 4, 2, (0, 0), told),
        bare[1],  # without tokens
        sampled(bare[2], 3, 1, (0, 6)),  # nobody knows whose
        sampled(bare[3], 3, 1, (2, 0), (("assistant", 1), ("tool", 2))),
    )
    whole = replace(episode("a"), turns=own)
    fork = replace(episode("b"), turns=(sampled(bare[2], 1, 2, (0, 6), (("tool", 1),)),), parent=ForkPoint("a", 2))
    group = Group("t", (whole, fork))

    def learned(one: Episode, *train: str) -> list[list[int]]:
        return [row.ids[row.mask].tolist() for row in token_rows(group, one, train=train)]

    assert [row.ids.tolist() for row in token_rows(group, whole)] == [list(range(10)), list(range(4))]
    assert learned(whole, "sampled") == [[4, 5, 9], [3]]
    assert learned(whole, "sampled", "tool", "user") == [[1, 2, 4, 5, 9], [1, 2, 3]]
    assert learned(whole, "unknown") == [[6, 7, 8]]
    assert learned(whole, "assistant") == [], "the first id follows nothing"
    assert learned(fork, "sampled", "user", "tool") == [[6, 7, 8]], "what it shares is its parent's"
    (row,) = token_rows(group, fork)
    assert [TOKEN_ROLES[one] for one in row.roles] == [
        "template", "user", "user", "template", "sampled", "sampled", "tool", "sampled", "sampled",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="train names 'humans'; the roles of tokens are: unknown, template"):
        list(token_rows(group, whole, train=("humans",)))


@pytest.mark.slow
@relaxed
@given(st.lists(episodes(), min_size=1, max_size=3), st.sets(st.sampled_from(TOKEN_ROLES)))
def test_every_token_has_one_role_and_masks_add_up(found: list[Episode], train: set[str]) -> None:
    for one in found:
        alone = replace(one, parent=None)
        group = Group(alone.task_id, (alone,))
        whole = list(token_rows(group, alone, train=TOKEN_ROLES))
        apart = [list(token_rows(group, alone, train=part)) for part in (train, set(TOKEN_ROLES) - train)]
        assert sum(row.mask.sum() for row in whole) == sum(row.mask.sum() for rows in apart for row in rows)
        assert all(len(row.ids) == len(row.roles) == len(row.mask) for row in whole)
        said = TOKEN_ROLES.index("sampled")
        assert sum((row.roles == said).sum() for row in whole) <= alone.sampled_tokens


class Judge:
    """Gives half a point to each letter; has no verdict on 'by b'."""

    name, version = "judge", "2"
    asked = 0

    async def grade(self, task: Task, submission: str) -> Grade:
        Judge.asked += 1
        if submission == "by b":
            raise GraderFailure("no verdict")
        return Grade(grader=self.name, version=self.version, channels={"reward": len(submission) / 2})


def test_grades_are_appended_once_and_a_missing_verdict_is_named(reader: StoreReader) -> None:
    async def grade() -> dict[str, Any]:
        with StoreWriter(reader.path) as writer:
            tasks = {name: Task(id=name, prompt="") for name in "tuv"}
            regrading = regrade(writer, reader.ids, Judge(), tasks.__getitem__)
            return {found.episode: found async for found in regrading}

    for asked in (4, 5):  # the second time only the one without a verdict
        found = asyncio.run(grade())
        assert Judge.asked == asked
        assert {name for name, one in found.items() if one.failure is not None} == {"b"}
        assert found["c"].grade is None, "what failed submitted nothing"
    with StoreReader(reader.path) as again:
        assert [(one.id, [grade.reward for grade in one.grades]) for one in again] == [
            ("a", [2.0]), ("b", []), ("a/0", [3.0]), ("c", []), ("d", [2.0]),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "says nothing; write a comparison"),
        (" ", "says nothing"),
        ("reward >", "is no expression: invalid syntax"),
        ("reward > 'a'", "a column of type double cannot be compared with 'a'"),
        ("stop == 'gaol'", "'gaol' is no stop; there are: goal"),
        ("stop in ['goal', 'gaol']", "'gaol' is no stop"),
    ],
)
def test_a_query_that_cannot_mean_anything_is_told_in_words(reader: StoreReader, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        chosen(reader, text)
    assert "<unknown>" not in str(told.value)
    assert "kernel" not in str(told.value)


def test_a_query_may_be_a_text_and_a_mask_any_list_of_booleans(reader: StoreReader) -> None:
    assert chosen(reader, "reward > 0") == chosen(reader, parse_query("reward > 0"))
    assert chosen(reader, lambda table: [True] * table.num_rows) == list(reader.ids)  # type: ignore[arg-type,return-value]
    assert chosen(reader, lambda table: np.zeros(table.num_rows, bool)) == []  # type: ignore[arg-type,return-value]
    for wrong, said in (
        ([True], "1 values of type bool"),
        (object(), "object"),
        ("x", "1 values of type string"),
        ([1] * 99, "99 values of type int64"),
    ):
        with pytest.raises(ValueError, match=f"a query gave {said}.*; it must give a boolean for each"):
            chosen(reader, lambda table, wrong=wrong: wrong)  # type: ignore[misc]


def test_stores_that_share_ids_are_named_and_the_way_out_too(reader: StoreReader, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "other") as writer:
        copy(reader, ["b"], writer)
    with StoreReader(tmp_path / "other") as other, StoreWriter(tmp_path / "both") as writer:
        with pytest.raises(ValueError, match=r"other both hold an episode 'b', and share 1 ids in all; --rename"):
            merge([reader, other], writer)
        assert len(writer) == 0
