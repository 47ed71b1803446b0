"""Laws of formats: nothing is lost in silence, export after import changes no byte, forks come back."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from envgym.env import Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.episode_json import episode_to_json
from envgym.formats import Exported, FormatError, Options, export, format_named, read_groups
from envgym.formats.chat import CHAT
from envgym.formats.exact import Told, apply, difference, packed
from envgym.formats.files import write_lines
from envgym.formats.losses import Losses
from envgym.formats.record_format import RecordFormat
from envgym.formats.report import report
from envgym.messages import Message, ToolSpec
from envgym.registry import names as registered
from envgym.testing.check_format import check_format, check_loss_is_told, sample_groups
from envgym.testing.strategies import groups, json_values, some_parts

FORMATS = ("atif", "chat", "datasets", "minari", "sharegpt", "swe-agent", "verifiers")
ONLY_NAMED = {"image bytes"}
relaxed = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def several(most: int) -> st.SearchStrategy[list[Group]]:
    """Groups of the same parts, or hypothesis has no room for them."""
    return some_parts().flatmap(lambda parts: st.lists(groups(parts=parts), max_size=most))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_the_whole_contract(name: str) -> None:
    check_format(format_named(name))


def test_a_format_that_forgets_more_at_every_round_is_no_format() -> None:
    def encode(told: Told, options: Options) -> dict[str, Any]:
        again = "again" in told.root.info.get("foreign", {}).get("record", {})
        record = CHAT.encode(told, options)
        said = [{**raw, "content": ""} if again else raw for raw in record["messages"]]
        return {**record, "messages": said, "again": True}

    fading = RecordFormat(name="fading", encode=encode, decode=CHAT.decode)
    with pytest.raises(
        AssertionError, match=r"what one export keeps, the next one does \(extra=False\); .*content"
    ):
        check_format(fading)


def test_every_format_is_found_by_its_name() -> None:
    assert set(FORMATS) <= set(registered("formats"))
    with pytest.raises(ValueError, match=r"unknown format 'aitf'; did you mean 'atif'\?"):
        format_named("aitf")


def _same(before: list[Group], after: list[Group]) -> None:
    assert [[episode_to_json(e, packed) for e in group] for group in after] == [
        [episode_to_json(e, packed) for e in group] for group in before
    ]
    for one, other in zip(before, after, strict=True):
        assert one.task_id == other.task_id
        assert one.episodes == other.episodes


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "minari"])
@relaxed
@given(written=several(3))
def test_what_is_read_is_what_was_written_bit_for_bit(tmp_path: Path, name: str, written: list[Group]) -> None:
    target = tmp_path / "export"
    _clear(target)
    told = export(written, target, name, redact=False)
    _same(written, list(read_groups(target, name)))
    assert {one.field for one in told.dropped} <= ONLY_NAMED


@pytest.mark.slow
@pytest.mark.turns
@relaxed
@given(written=several(2))
def test_minari_drops_only_episodes_without_a_turn_and_says_so(tmp_path: Path, written: list[Group]) -> None:
    target = tmp_path / "export"
    _clear(target)
    told = export(written, target, "minari", redact=False)
    back = [episode for group in read_groups(target, "minari") for episode in group]
    played = [e for group in written for e in group if group.path(e)]
    assert [episode.id for episode in back] == [episode.id for episode in played]
    assert {one.field for one in told.dropped} <= ONLY_NAMED | {"episodes", "parent"}
    for before, after in zip(played, back, strict=True):
        assert after.turns == before.turns
        assert after.root == before.root


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", FORMATS)
@relaxed
@given(written=groups())
def test_without_our_key_everything_that_is_lost_is_listed(tmp_path: Path, name: str, written: Group) -> None:
    target = tmp_path / "export"
    _clear(target)
    told = export([written], target, name, options=Options(extra=False), redact=False)
    check_loss_is_told(written, read_groups(target, name), told)
    assert b'"envgym":' not in b"".join(
        p.read_bytes() for p in _files(target) if p.suffix in (".json", ".jsonl", "")
    )


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", FORMATS)
@relaxed
@given(written=several(2))
def test_export_after_import_gives_the_same_bytes(tmp_path: Path, name: str, written: list[Group]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    _clear(one, two)
    export(written, one, name, redact=False)
    export(read_groups(one, name), two, name, redact=False)
    assert [p.read_bytes() for p in _files(one)] == [p.read_bytes() for p in _files(two)]


def _clear(*targets: Path) -> None:
    for target in targets:
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _files(target: Path) -> list[Path]:
    return sorted(p for p in target.rglob("*") if p.is_file()) if target.is_dir() else [target]


@given(said=json_values, true=json_values)
def test_a_patch_makes_the_true_value_of_what_was_said(said: object, true: object) -> None:
    patch = json.loads(json.dumps(difference(said, true)))
    assert json.dumps(apply(said, patch)) == json.dumps(true)


def test_a_patch_is_silent_where_what_was_said_was_edited_since() -> None:
    patch = difference({"text": "a?", "reward": 0.0}, {"text": "a\ud800", "reward": None})
    assert apply({"text": "a?", "reward": 0.0}, patch) == {"text": "a\ud800", "reward": None}
    assert apply({"text": "better", "reward": 0.0}, patch) == {"text": "better", "reward": None}
    with pytest.raises(ValueError, match="which it did not when it was written"):
        apply({"text": "better", "reward": 0.0}, patch, strict=True)


def test_an_edit_in_the_other_tools_field_is_read(tmp_path: Path) -> None:
    """The message is the other tool's; what it has no field for is ours and stays."""
    export(sample_groups()[:1], tmp_path / "a.jsonl", "chat")
    edited = (tmp_path / "a.jsonl").read_text().replace("Looking.", "I look.")
    (tmp_path / "a.jsonl").write_text(edited)
    (group,) = read_groups(tmp_path / "a.jsonl", "chat")
    turn = group.episodes[0].turns[0]
    assert turn.messages[0].content == "I look."
    assert turn.sampled_ids.tolist() == [4, 5]


def test_a_record_that_is_read_otherwise_than_when_it_was_written_is_refused(tmp_path: Path) -> None:
    """Nobody edited it, so it must give what was written; a reader that has changed since is found out."""
    path = tmp_path / "a.jsonl"
    export(sample_groups()[:1], path, "chat")
    changed = replace(
        format_named("chat"), decode=lambda *given: [replace(format_named("chat").decode(*given)[0], seed=3)]
    )
    with pytest.raises(FormatError, match=r"line 1: its key 'envgym' does not fit .* did not when it was written"):
        list(changed.read(path))


def test_a_record_whose_turns_were_cut_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    export(sample_groups()[:1], path, "chat")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["messages"] = lines[1]["messages"][:-1]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(FormatError, match=r"a\.jsonl, line 2: its key 'envgym' does not fit .* remove the key"):
        list(read_groups(path, "chat"))


def test_a_fork_whose_parent_was_filtered_out_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    export(sample_groups()[1:2], path, "chat")
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    with pytest.raises(FormatError, match=r"a\.jsonl, line 1: .* forked from t, .* are records missing\?"):
        list(read_groups(path, "chat"))


def test_groups_of_several_files_stay_apart_when_the_files_are_joined(tmp_path: Path) -> None:
    one, two = sample_groups()[:1], sample_groups()[1:2]
    export(one, tmp_path / "a", "chat")
    export(two, tmp_path / "b", "chat")
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    _same([*one, *two], list(read_groups(tmp_path / "c", "chat")))


def test_shared_turns_train_once_in_every_format_that_can_say_so(tmp_path: Path) -> None:
    """A fork's record repeats its parent's turns as context."""
    tree = sample_groups()[1:2]
    export(tree, tmp_path / "c", "chat")
    fork = [json.loads(line) for line in (tmp_path / "c").read_text().splitlines()][1]
    assert [m.get("weight") for m in fork["messages"] if m["role"] == "assistant"] == [0, None, None]
    export(tree, tmp_path / "s", "sharegpt")
    lines = json.loads((tmp_path / "s").read_text())[1]["conversations"]
    assert [line["loss"] for line in lines if line["from"] == "gpt"] == [False, True, True]
    export(tree, tmp_path / "v", "verifiers")
    nodes = [json.loads(line) for line in (tmp_path / "v").read_text().splitlines()][1]["traces"][0]["nodes"]
    assert [sum(node["mask"]) for node in nodes if "mask" in node] == [0, 3, 3]
    export(tree, tmp_path / "h", "atif")
    steps = json.loads((tmp_path / "h" / "00000001-t_a.json").read_text())["steps"]
    assert [step.get("is_copied_context") for step in steps if step["source"] == "agent"] == [True, None, None]


def test_a_message_of_a_verifiers_trace_has_its_own_ids_where_they_are_known(tmp_path: Path) -> None:
    export(sample_groups()[:1], tmp_path / "v", "verifiers")
    nodes = json.loads((tmp_path / "v").read_text().splitlines()[0])["traces"][0]["nodes"]
    said = [(node["message"]["role"], node.get("token_ids"), sum(node.get("mask", []))) for node in nodes]
    assert said[:3] == [("system", [1, 2], 0), ("user", [3], 0), ("assistant", [4, 5], 2)]
    assert said[3:] == [("tool", None, 0), ("assistant", [6, 7, 8, 9], 3)], "whose 6 is, nobody said"


def test_declared_tools_travel_in_openais_form(tmp_path: Path) -> None:
    tool = ToolSpec(name="run", description="Run a command.", parameters={"type": "object", "properties": {}})
    for name, of in (("chat", lambda r: r["tools"]), ("atif", lambda r: r["agent"]["tool_definitions"])):
        export(sample_groups()[:1], tmp_path / name, name, options=Options(tools=(tool,)))
        path = _files(tmp_path / name)[0]
        (declared,) = of(json.loads(path.read_text().splitlines()[0]))
        assert declared == {"type": "function", "function": tool.model_dump()}
        (group,) = read_groups(tmp_path / name, name)
        assert group.episodes[0].root.info["tools"] == [declared]


def test_atif_gives_whole_prompts_and_links_results_to_calls(tmp_path: Path) -> None:
    export(sample_groups()[:1], tmp_path / "a", "atif")
    steps = json.loads(_files(tmp_path / "a")[0].read_text())["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent"]
    first, last = steps[2], steps[3]
    assert (
        first["tool_calls"][0]["tool_call_id"] == first["observation"]["results"][0]["source_call_id"] == "call-1"
    )
    assert first["metrics"]["prompt_token_ids"] == [1, 2, 3]
    assert last["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 5, 6]
    assert last["metrics"]["completion_token_ids"] == [7, 8, 9]
    assert len(last["metrics"]["logprobs"]) == 3


def test_what_json_cannot_hold_is_refused_with_the_episode(tmp_path: Path) -> None:
    step = Step(info={"bytes": b"x"})
    broken = Group("t", (Episode("e7", "t", step, (), 0, StopReason.GOAL),))
    for name in FORMATS[:3]:
        with pytest.raises(TypeError, match=r"episode e7 cannot be written"):
            export([broken], tmp_path / name, name)
        assert not (tmp_path / name).exists()


def test_the_report_names_everything_that_was_dropped(tmp_path: Path) -> None:
    told = export(sample_groups(), tmp_path / "a", "chat", options=Options(extra=False))
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(report(told))
        shown = console.export_text()
    assert "DROPPED" in shown
    for one in told.dropped:
        assert one.field in shown
    assert json.loads(json.dumps(told.to_json()))["dropped"][0]["field"] == told.dropped[0].field
    assert isinstance(told, Exported)


def test_a_loss_is_counted_per_place_with_the_first_example() -> None:
    def group(*rewards: float | None) -> Group:
        made = tuple(Turn("agent", (Message(role="assistant"),), Step(reward=r)) for r in rewards)
        return Group("t", (Episode("e", "t", Step(), made, 0, StopReason.GOAL),))

    losses = Losses()
    losses.compare(group(1.0, None, 2.0), group(0.0, None, 0.0).episodes)
    assert [(one.field, one.times, one.example) for one in losses.all] == [
        ("turns[].step.reward", 2, "episode e: 1.0")
    ]


def test_what_is_ended_while_it_writes_leaves_nothing_and_what_was_killed_goes_with_the_next(tmp_path):
    target = tmp_path / "a.jsonl"
    other = tmp_path / f".a.jsonl.part-{os.getppid()}"  # of a process that lives
    gone = tmp_path / f".a.jsonl.part-{2**22 + 1}"  # more than any pid is
    named = tmp_path / ".a.jsonl.part-mine"
    for one in (other, gone, named):
        one.write_text("{}")

    def records():
        yield {"a": 1}
        os.kill(os.getpid(), signal.SIGTERM)
        yield {"a": 2}

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        write_lines(target, records())
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert sorted(tmp_path.iterdir()) == sorted([other, named])
    assert write_lines(target, iter([{"a": 1}])) == 1
    assert target.read_text() == '{"a":1}\n'
