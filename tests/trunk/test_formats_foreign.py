"""Files that other tools wrote, by their documentation, and ours opened by the other tools themselves."""

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from envgym.env import StopReason
from envgym.episode import ForkPoint, Group
from envgym.errors import Boundary
from envgym.formats import Card, FormatError, Options, export, read_groups
from envgym.messages import ImagePart, Message, TextPart, ToolCall
from envgym.testing.check_format import sample_groups


def _write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def _stable(path: Path, name: str, tmp_path: Path) -> list[Group]:
    """What a foreign file holds; exported and read again it is the same."""
    groups = list(read_groups(path, name))
    export(groups, tmp_path / "again", name, redact=False)
    assert [g.episodes for g in read_groups(tmp_path / "again", name)] == [g.episodes for g in groups]
    return groups


def test_chat_messages_of_openai(tmp_path: Path) -> None:
    seen = base64.b64encode(b"png bytes").decode()
    record = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{seen}", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AA=="}},
            ]},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": "{\"by\": 2}"}},
                {"id": "c2", "type": "function", "function": {"name": "zoom", "arguments": "by: 2"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok", "name": "zoom"},
            {"role": "assistant", "content": "A cat.", "reasoning_content": "whiskers"},
        ],
        "tools": [{"type": "function", "function": {"name": "zoom", "parameters": {}}}],
        "parallel_tool_calls": False,
    }  # fmt: skip
    path = _write(tmp_path / "data.jsonl", record, {"messages": [{"role": "user", "content": "only this"}]})
    first, second = _stable(path, "chat", tmp_path)
    (episode,) = first
    assert episode.id == "data-1"
    assert episode.root.observation[0] == Message(role="system", content="Be brief.")
    text, image, audio = episode.root.observation[1].content
    assert text == TextPart(text="What is it?")
    assert image == ImagePart(sha256=hashlib.sha256(b"png bytes").hexdigest(), media_type="image/jpeg")
    assert "input_audio" in audio.text
    zoom, spoken = episode.turns
    assert zoom.messages[0].tool_calls[0] == ToolCall(name="zoom", arguments={"by": 2}, id="c1")
    assert zoom.messages[0].tool_calls[1].arguments == {"_text": "by: 2"}
    assert zoom.step.observation[0].tool_call_id == "c1"
    assert spoken.messages[0].content == "A cat."
    assert spoken.step.stop is StopReason.SUBMITTED
    assert episode.root.info["tools"] == record["tools"]
    kept = episode.root.info["foreign"]
    assert kept["record"] == {"parallel_tool_calls": False}
    assert kept["messages"]["4"] == {"reasoning_content": "whiskers"}
    assert second.episodes[0].turns == ()


ATIF = {
    "schema_version": "ATIF-v1.8",
    "session_id": "run-1",
    "trajectory_id": "main",
    "agent": {"name": "coder", "version": "2", "model_name": "m", "tool_definitions": [{"type": "function"}]},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Fix it."},
        {"step_id": 2, "source": "agent", "message": "I did before.", "is_copied_context": True},
        {
            "step_id": 3, "source": "agent", "message": "", "reasoning_content": "hm", "llm_call_count": 1,
            "tool_calls": [{"tool_call_id": "a", "function_name": "sh", "arguments": {"c": "ls"}}],
            "observation": {"results": [
                {"source_call_id": "a", "content": [{"type": "text", "text": "x.py"}, {"type": "image",
                 "source": {"media_type": "image/png", "path": "shots/1.png"}}]},
                {"content": "done", "subagent_trajectory_ref": [{"trajectory_id": "sub"}]},
            ]},
            "metrics": {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -1.5],
                        "cost_usd": 0.1},
        },
        {"step_id": 4, "source": "system", "message": "Context was compacted."},
        {"step_id": 5, "source": "agent", "message": "Fixed.",
         "metrics": {"prompt_token_ids": [1, 2, 3, 4, 9], "completion_token_ids": [5], "logprobs": [-0.25]}},
        {"step_id": 6, "source": "agent", "message": "Bye.",
         "metrics": {"prompt_token_ids": [7], "completion_token_ids": [8], "logprobs": [-0.125]}},
        {"step_id": 7, "source": "agent", "message": "Really.", "metrics": {"completion_token_ids": [8]}},
    ],
    "subagent_trajectories": [
        {"schema_version": "ATIF-v1.8", "trajectory_id": "sub", "agent": {"name": "s", "version": "1"},
         "steps": [{"step_id": 1, "source": "agent", "message": "sub says"}]},
    ],
}  # fmt: skip


def test_a_trajectory_of_harbor(tmp_path: Path) -> None:
    path = _write(tmp_path / "logs" / "trajectory.json", ATIF)
    main, sub = _stable(path, "atif", tmp_path)
    (episode,) = main
    assert episode.id == "main"
    assert [message.role for message in episode.root.observation] == ["user", "assistant"], "copied context is seen"
    act, fixed, bye, really = episode.turns
    assert act.messages[0].tool_calls == (ToolCall(name="sh", arguments={"c": "ls"}, id="a"),)
    assert [message.role for message in act.step.observation] == ["tool", "user", "system"]
    assert act.step.observation[0].content[1] == TextPart(text="shots/1.png")
    assert (act.prompt_ids.tolist(), act.sampled_ids.tolist(), act.logprobs.tolist()) == (
        [1, 2],
        [3, 4],
        [-0.5, -1.5],
    )
    assert (fixed.prompt_ids.tolist(), fixed.segment, fixed.position) == ([9], 0, 4)
    assert (bye.prompt_ids.tolist(), bye.segment, bye.position) == ([7], 1, 0)
    assert len(really.sampled_ids) == 0, "ids without their prompt and log-probs train nobody"
    assert really.step.info["foreign"]["metrics"] == {"completion_token_ids": [8]}
    assert act.step.info["foreign"]["step"]["reasoning_content"] == "hm"
    assert episode.root.info["foreign"]["agent"]["name"] == "coder"
    assert sub.episodes[0].id == "sub"
    assert sub.episodes[0].turns[0].messages[0].content == "sub says"


TRAJ = {
    "environment": "swe_main",
    "trajectory": [
        {"action": "ls -F\n", "observation": "AUTHORS.rst\nsrc/", "response": "Let me look.\n```\nls -F\n```",
         "state": {"open_file": "n/a", "working_dir": "/repo"}, "thought": "Let me look.", "execution_time": 0.25,
         "query": [{"role": "system", "content": "You are"}, {"role": "user", "content": "Fix the bug"}],
         "extra_info": {}},
        {"action": "submit", "observation": "diff --git", "response": "submit", "state": {}, "thought": "",
         "execution_time": 1.5, "query": [], "extra_info": {}},
    ],
    "history": [
        {"role": "system", "content": "You are", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": "demo", "agent": "main", "is_demo": True, "message_type": "demonstration"},
        {"role": "assistant", "content": "demo answer", "agent": "main", "is_demo": True},
        {"role": "user", "content": [{"type": "text", "text": "Fix the bug"}], "agent": "main"},
        {"role": "assistant", "content": "Let me look.", "thought": "Let me look.", "action": "ls -F",
         "agent": "main", "tool_calls": [{"function": {"name": "bash", "arguments": "{\"command\":\"ls -F\"}"},
                                          "id": "t1", "type": "function"}], "message_type": "action"},
        {"role": "tool", "content": "AUTHORS.rst\nsrc/", "agent": "main", "tool_call_ids": ["t1"]},
        {"role": "assistant", "content": "submit", "agent": "main", "message_type": "action"},
    ],
    "info": {"exit_status": "submitted (exit_context)", "submission": "diff --git a",
             "model_stats": {"api_calls": 2}},
}  # fmt: skip


def test_a_trajectory_of_swe_agent(tmp_path: Path) -> None:
    path = _write(tmp_path / "run" / "django__django-1.traj", TRAJ)
    (group,) = _stable(path, "swe-agent", tmp_path)
    (episode,) = group
    assert episode.task_id == episode.id == "django__django-1"
    assert [m.role for m in episode.root.observation] == ["system", "user", "assistant", "user"], (
        "demonstrations are seen"
    )
    look, submit = episode.turns
    assert look.messages[0].tool_calls[0].arguments == {"command": "ls -F"}
    assert look.step.observation[0] == Message(role="tool", content="AUTHORS.rst\nsrc/", tool_call_id="t1")
    assert look.step.info == {"state": {"open_file": "n/a", "working_dir": "/repo"}}
    assert look.step_s == 0.25
    assert submit.step.observation == (Message(role="user", content="diff --git"),)
    assert submit.step.submission == "diff --git a"
    assert episode.stop is StopReason.CONTEXT_LIMIT
    assert episode.root.info["foreign"]["info"]["model_stats"] == {"api_calls": 2}


def test_a_trajectory_of_swe_agent_whose_history_was_cut_or_whose_run_broke(tmp_path: Path) -> None:
    cut = {**TRAJ, "history": [], "info": {"exit_status": "exit_environment_error"}}
    (group,) = _stable(_write(tmp_path / "a.traj", cut), "swe-agent", tmp_path)
    (episode,) = group
    assert [m.content for m in episode.root.observation] == ["You are", "Fix the bug"]
    assert episode.turns[0].messages[0].content.startswith("Let me look.")
    assert episode.turns[0].step.observation[0].content == "AUTHORS.rst\nsrc/"
    assert episode.stop is None
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.ENVIRONMENT


def _node(parent: int | None, role: str, content: str, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **({"tool_call_id": "c"} if role == "tool" else {})}
    return {"parent": parent, "message": message, "sampled": "mask" in more, "timestamp": 1.0, **more}


TRACE = {
    "version": 1,
    "id": "trace-1",
    "verifiers": {"version": "0.4.0"},
    "task": {"type": "Math", "data": {"idx": 3, "prompt": "2+2"}, "key": "k3"},
    "agent": {"config": {"model": "m"}, "name": "solver", "trainable": True},
    "nodes": [
        _node(None, "user", "2+2", token_ids=[1, 2]),
        _node(0, "assistant", "look", token_ids=[3, 4, 5], mask=[False, True, True], logprobs=[-0.5, -0.25]),
        _node(1, "tool", "four", token_ids=[6]),
        _node(2, "assistant", "4", token_ids=[7, 8], mask=[False, True], logprobs=[-1.0]),
        _node(1, "user", "no tool", token_ids=[9]),
        _node(4, "assistant", "5", token_ids=[7], mask=[True], logprobs=[-2.0]),
        _node(None, "user", "summary", token_ids=[1, 1]),
        _node(6, "assistant", "4!", token_ids=[2], mask=[True], logprobs=[]),
    ],
    "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "style": None},
    "metrics": {"length": 3.0},
    "is_completed": True, "ok": True, "stop_condition": "agent_completed",
}  # fmt: skip


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_trace_of_verifiers_with_branches(tmp_path: Path, wrapped: bool) -> None:
    line = {"id": "e", "env": {"id": "math"}, "task": TRACE["task"], "traces": [TRACE], "group": {"id": "g1"}}
    path = _write(tmp_path / "traces.jsonl", line if wrapped else TRACE)
    (group,) = _stable(path, "verifiers", tmp_path)
    main, fork, apart = group
    assert (main.id, fork.id, apart.id) == ("trace-1", "trace-1/1", "trace-1/2")
    assert {e.task_id for e in group} == {"k3"}
    first, second = main.turns
    assert (first.prompt_ids.tolist(), first.sampled_ids.tolist()) == ([1, 2, 3], [4, 5])
    assert (second.prompt_ids.tolist(), second.sampled_ids.tolist(), second.position) == ([6, 7], [8], 5)
    assert fork.parent == ForkPoint("trace-1", 0, 2), "the same act, answered in two ways"
    assert [turn.messages[0].content for turn in group.path(fork)] == ["look", "5"]
    assert apart.parent is None
    assert len(apart.turns[0].sampled_ids) == 0, "ids without log-probs train nobody"
    assert main.reward == 0.5
    assert main.grades[0].channels == {"correct": 1.0, "reward": 0.5}
    assert main.stop is StopReason.SUBMITTED
    assert main.group == ("g1" if wrapped else "")


def test_a_trace_of_verifiers_that_failed_is_never_scored(tmp_path: Path) -> None:
    broken = {**TRACE, "ok": False, "stop_condition": "sandbox_error",
              "errors": [{"type": "SandboxError", "message": "gone", "traceback": "tb"}]}  # fmt: skip
    (group,) = _stable(_write(tmp_path / "t.jsonl", broken), "verifiers", tmp_path)
    failure = group.episodes[0].failure
    assert failure is not None
    assert (failure.boundary, failure.kind, failure.trace) == (Boundary.INFRASTRUCTURE, "SandboxError", "tb")
    assert group.episodes[0].reward is None
    assert group.episodes[0].grades == ()


AGENT_TRAJ = [
    {
        "item_id": "webshop_6",
        "conversations": [
            {"from": "human", "loss": None, "value": "You are web shopping."},
            {"from": "gpt", "loss": False, "value": "Ok."},
            {"from": "human", "loss": None, "value": "Find a lamp."},
            {"from": "gpt", "loss": True, "value": "Action: search[lamp]"},
            {"from": "human", "loss": None, "value": "Results: ..."},
            {"from": "gpt", "loss": True, "value": "Action: click[buy]"},
        ],
    },
    {
        "id": "sg",
        "system": "Be kind.",
        "conversations": [{"from": "user", "value": "hi"}, {"from": "gpt", "value": "ho"}],
    },
]


@pytest.mark.parametrize("form", ["array", "lines", "pretty"])
def test_conversations_of_agent_traj_and_share_gpt(tmp_path: Path, form: str) -> None:
    path = tmp_path / "webshop_train.json"
    if form == "lines":
        _write(path, *AGENT_TRAJ)
    else:
        path.write_text(json.dumps(AGENT_TRAJ, indent=2 if form == "pretty" else None))
    first, second = _stable(path, "sharegpt", tmp_path)
    (episode,) = first
    assert episode.task_id == "webshop_6"
    assert [m.role for m in episode.root.observation] == ["user", "assistant", "user"], "what has no loss is seen"
    assert [turn.messages[0].content for turn in episode.turns] == ["Action: search[lamp]", "Action: click[buy]"]
    assert episode.turns[0].step.observation[0].content == "Results: ..."
    (other,) = second
    assert other.root.observation[0] == Message(role="system", content="Be kind.")
    assert other.turns[0].messages[0].content == "ho"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "chat",
            '{"messages": []}\n{"messages": [{"role": "wizard"}]}',
            r"line 2: message 0: role is 'wizard'; it must",
        ),
        ("chat", '{"messages": "hi"}', r"line 1: messages is 'hi'; it must be a list"),
        ("chat", '{"messages": []}\n{', r"line 2: it is no JSON: .* it begins with b'\{'"),
        ("chat", "[1]", r"line 1: a record is a JSON object; it is \[1\]"),
        ("chat", '{"messages": [{"role": "user", "content": 3}]}', r"line 1: message 0: content is 3; it must be"),
        ("chat", '{"messages": [], "envgym": "{"}', r"line 1: its key 'envgym' is no JSON"),
        ("chat", '{"messages": [], "envgym": "{\\"schema\\": 99}"}', r"schema 99; this version of envgym reads 1"),
        (
            "sharegpt",
            '[{"conversations": [{"from": "gpt", "value": 1}]}]',
            r"record 1: conversations 0: content is 1",
        ),
        ("sharegpt", '[{"conversations": []}, {"conversations"', r"record 2: it is no JSON"),
        (
            "sharegpt",
            '[{"conversations": [{"from": "gpt", "value": "", "loss": 1}]}]',
            r"loss is 1; it must be true",
        ),
        ("atif", '{"schema_version": "1.0", "steps": []}', r"schema_version is '1.0'; it must be ATIF"),
        (
            "atif",
            '{"schema_version": "ATIF-v1.8", "steps": [{"source": "x"}]}',
            r"steps 0: source is 'x'; it must be",
        ),
        ("swe-agent", '{"trajectory": 3}', r"trajectory is 3; it must be a list of steps"),
        ("verifiers", '{"traces": 3}', r"line 1: traces is 3; it must be a list of traces"),
        (
            "verifiers",
            '{"nodes": [{"parent": 0, "message": {}}]}',
            r"line 1: nodes 0: parent is 0; it must be null or",
        ),
        (
            "verifiers",
            '{"nodes": [{"message": {"role": "user"}, "token_ids": [1], "mask": [true, false]}]}',
            r"nodes 0: mask is \[True, False\]; it must be 1 booleans",
        ),
    ],
)
def test_a_bad_file_is_one_error_with_file_record_and_value(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    path = tmp_path / "bad.file"
    path.write_text(content)
    with pytest.raises(FormatError, match=says) as caught:
        list(read_groups(path, name))
    assert str(caught.value).startswith(str(path))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl does not exist"):
        read_groups(tmp_path / "nothing.jsonl", "chat")


def test_minari_opens_what_we_write(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    export(sample_groups()[:2], tmp_path / "d", "minari", options=Options(card=Card(name="files/tiny-v2")))
    dataset = minari.MinariDataset(str(tmp_path / "d" / "data"))
    assert dataset.spec.dataset_id == "files/tiny-v2"
    assert dataset.total_episodes == 6, "the fork without a turn is not in it"
    episode = next(iter(dataset.iterate_episodes([0])))
    assert list(episode.actions) == [
        'Looking.\n<tool_call>\n{"name":"run","arguments":{"command":"ls -l","timeout":2.5}}\n</tool_call>',
        "a.py and b.py",
    ]
    assert list(episode.observations)[1:] == ["a.py\nb.py", ""]
    assert episode.rewards.tolist() == [0.0, 1.0]
    assert episode.terminations.tolist() == [False, True]


def test_minari_writes_to_a_place_that_is_named_from_here(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    with contextlib.chdir(tmp_path):
        export(sample_groups(), Path("deep/out"), "minari")
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["out"]
    assert list(read_groups(tmp_path / "deep/out", "minari"))


def test_a_dataset_that_minari_made(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (tmp_path / "d").mkdir()
    seen = Dict({"at": Box(-1, 1, (2,), np.float32), "screen": Box(0, 255, (32, 40, 3), np.uint8)})
    storage = MinariStorage.new(
        tmp_path / "d" / "data", observation_space=seen, action_space=Discrete(4), jpeg_encoding=False
    )
    storage.update_metadata({"dataset_id": "toy/walk-v0", "minari_version": "0.5.4"})
    for seed in (5, 6):
        storage.update_episodes([
            EpisodeBuffer(
                seed=seed,
                observations={
                    "at": np.array([[0, 0.5], [1, 0.5], [1, 1]], np.float32),
                    "screen": np.full((3, 32, 40, 3), seed, np.uint8),
                },
                actions=np.array([3, 1]), rewards=[0.25, 1.0], terminations=[False] * 2, truncations=[False, True],
                infos={"speed": np.array([0.0, 1.0, 2.0])},
            )
        ])  # fmt: skip
    groups = list(read_groups(tmp_path / "d", "minari"))
    assert [g.episodes[0].seed for g in groups] == [5, 6]
    (episode,) = groups[0]
    assert [turn.messages[0].content for turn in episode.turns] == ["3", "1"]
    assert json.loads(episode.root.observation[0].content)["at"] == [0.0, 0.5]
    assert [turn.step.reward for turn in episode.turns] == [0.25, 1.0]
    assert [turn.step.info for turn in episode.turns] == [{"speed": 1.0}, {"speed": 2.0}]
    assert episode.stop is StopReason.TURN_LIMIT
    export(groups, tmp_path / "again", "minari", redact=False)
    assert [g.episodes for g in read_groups(tmp_path / "again", "minari")] == [g.episodes for g in groups]


def test_what_is_no_minari_dataset_is_named(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    (tmp_path / "d").mkdir()
    with pytest.raises(FormatError, match=r"/d: it is no Minari dataset"):
        list(read_groups(tmp_path / "d", "minari"))


LOAD = """
import json, sys
from datasets import load_dataset
loaded = load_dataset(sys.argv[1], cache_dir=sys.argv[2])
print(json.dumps({name: {"rows": len(split), "first": split[0]} for name, split in loaded.items()}, default=str))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_load_dataset_opens_the_folder_offline_with_its_splits(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    card = Card(name="Tiny", licence="apache-2.0", score_range=(0.0, 2.0), decontamination="0 of 4 tasks overlap.")
    options = Options(card=card, split=lambda group: "test" if "tree" in group.task_id else "train")
    export(sample_groups(), tmp_path / "d", "datasets", options=options)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "d"), str(tmp_path / "cache")],
        capture_output=True, text=True, env=environment, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert {name: part["rows"] for name, part in loaded.items()} == {"train": 5, "test": 5}
    first = loaded["train"]["first"]
    assert first["messages"][2]["tool_calls"][0]["function"]["name"] == "run"
    assert first["turns"][1]["sampled_ids"] == [7, 8, 9]
    assert (first["policy"], first["reward"], first["normalised_score"]) == ("tiny-7", 1.0, 0.5)


def test_a_data_card_says_who_played_how_well_under_which_licence(tmp_path: Path) -> None:
    card = Card(name="Tiny", licence="apache-2.0", score_range=(0.0, 2.0), decontamination="0 of 4 tasks overlap.")
    export(sample_groups(), tmp_path / "d", "datasets", options=Options(card=card))
    text = (tmp_path / "d" / "README.md").read_text()
    header = text.split("---")[1]
    assert 'license: "apache-2.0"' in header
    assert '  - split: "train"\n    path: "data/train-*.parquet"' in header
    assert "| tiny-7 | 2 | 1 | 0.5 |" in text
    assert "| unknown | 8 |" in text
    assert "0 of 4 tasks overlap." in text
    assert "| failure: grader | 1 |" in text
    assert "image bytes" in text.split("## What is not in it")[1]
    bare = tmp_path / "bare"
    export(sample_groups()[:1], bare, "datasets")
    unknown = (bare / "README.md").read_text()
    assert "No check against evaluation tasks was reported." in unknown
    assert "Unknown: its author named none." in unknown


def test_plain_pyarrow_opens_the_folder(tmp_path: Path) -> None:
    export(sample_groups(), tmp_path / "d", "datasets")
    table = pq.read_table(tmp_path / "d" / "data" / "train-00000.parquet")
    assert table.num_rows == 10
    assert table.column("turns")[0].as_py()[0]["logprobs"] == pytest.approx([-(2.0**-4) / 3, -(2.0**-5) / 3])


def test_rows_that_other_tools_wrote_as_parquet(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "d" / "data").mkdir(parents=True)
    pq.write_table(
        pa.table({"messages": [messages, messages], "task_id": ["a", "b"], "score": [0.5, None]}),
        tmp_path / "d" / "data" / "train-00000-of-00001.parquet",
    )
    groups = list(read_groups(tmp_path / "d", "datasets"))
    assert [g.task_id for g in groups] == ["a", "b"]
    assert groups[0].episodes[0].turns[0].messages[0].content == "ho"
    assert groups[0].episodes[0].root.info["foreign"]["record"] == {"score": 0.5}
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "no.parquet")
    with pytest.raises(FormatError, match=r"no\.parquet, row 1: a row needs a column messages .* it has text"):
        list(read_groups(tmp_path / "no.parquet", "datasets"))


@pytest.mark.slow
def test_folders_that_datasets_itself_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"conversations": AGENT_TRAJ[0]["conversations"], "item_id": "w"}])
    rows.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parquet").mkdir()
    rows.to_parquet(str(tmp_path / "parquet" / "train.parquet"))
    for name in ("saved", "parquet"):
        (group,) = read_groups(tmp_path / name, "datasets")
        assert group.task_id == "w"
        assert len(group.episodes[0].turns) == 2


def test_a_split_that_datasets_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"split is 'a/b'; it must be letters"):
        export(sample_groups(), tmp_path / "d", "datasets", options=Options(split=lambda group: "a/b"))
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_a_format_whose_package_is_missing_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['minari'] = None\n"
        "from envgym.formats import format_named\n"
        "try:\n    format_named('minari')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'envgym[data]'" in done.stdout
