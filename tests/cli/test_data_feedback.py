"""`envgym data feedback`: a judge says what stored turns are worth, and `data credit` listens."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from envgym.messages import Message
from envgym.store import StoreReader, StoreWriter
from envgym.testing.credit_groups import made_episode, made_turn


@pytest.fixture
def played(envgym, tmp_path):
    store = tmp_path / "played"
    ran = envgym("collect", "guess", "--agent", "random", "-n", "6", "--out", str(store))
    assert ran.code == 0
    return store


def told(ran):
    assert (ran.code, ran.err) == (0, ""), ran
    return json.loads(ran.out)


JUDGE = ("--agent", "scripted-judge", "--agent-option", "good=lower", "--agent-option", "bad=higher")


def test_subgoals_and_goals_are_said_of_real_episodes_once_and_read_again(envgym, played, tmp_path):
    out = str(tmp_path / "said.jsonl")
    first = told(envgym("data", "feedback", str(played), "--kind", "subgoals", *JUDGE, "--out", out, "--json"))
    assert (first["said"], first["before"], first["unread"], first["failed"]) == (6, 0, 0, 0)
    again = told(envgym("data", "feedback", str(played), "--kind", "subgoals", *JUDGE, "--out", out, "--json"))
    assert (again["said"], again["before"]) == (0, 6)
    goals = told(envgym("data", "feedback", str(played), "--kind", "goals", *JUDGE, "--out", out, "--json"))
    tasks = {episode.task_id for episode in StoreReader(played)}
    assert goals["said"] == len(tasks)
    lines = [json.loads(line) for line in Path(out).read_text().splitlines()]
    reached = {
        (line["episode"], one["turn"]) for line in lines if line["kind"] == "subgoals" for one in line["reached"]
    }
    first_lower = set()
    for episode in StoreReader(played):
        at = next((k for k, turn in enumerate(episode.turns) if "lower" in turn.step.text), None)
        first_lower |= set() if at is None else {(episode.id, at)}
    assert reached == first_lower
    assert first_lower


@pytest.mark.slow
def test_span_feedback_is_credited_by_the_words_a_tokenizer_finds(envgym, tmp_path):
    from envgym_agents.tokenizer import train_tokenizer  # torch, which no core test of the command line needs

    tokenizer = train_tokenizer(["go left go right"], vocab_size=280)
    tokenizer.save_pretrained(tmp_path / "model")
    store, out = tmp_path / "store", str(tmp_path / "said.jsonl")
    ids = tokenizer("go left", add_special_tokens=False)["input_ids"]
    turn = made_turn(1.0, sampled=len(ids))

    turn = replace(
        turn,
        messages=(Message(role="assistant", content="go left"),),
        sampled_ids=turn.sampled_ids * 0 + ids,
        step=replace(turn.step, observation=(Message(role="user", content="fine"),)),
    )
    with StoreWriter(store) as writer:
        writer.extend([made_episode("e0", [turn], task="t")])
    said = ("data", "feedback", str(store), "--agent", "scripted-judge", "--agent-option", "good=fine")
    assert told(envgym(*said, "--tokenizer", str(tmp_path / "model"), "--out", out, "--json"))["said"] == 1
    (span,) = json.loads(Path(out).read_text())["spans"]
    assert (span["begin"], span["end"], span["quote"], span["reward"]) == (0, len(ids), "go left", 1.0)
    credit = str(tmp_path / "credit.parquet")
    ran = envgym("data", "credit", str(store), "--scheme", "span-feedback", "--feedback", out, "--out", credit)
    assert ran.code == 0, ran
    assert pq.read_table(credit)["credit"].to_pylist() == [[1.0] * len(ids)]


def test_what_makes_no_sense_is_refused_before_anyone_is_asked(envgym, played, tmp_path):
    out = str(tmp_path / "said.jsonl")
    for more, says in (
        (("--kind", "words"), "must be one of spans, subgoals, goals"),
        (("--kind", "goals", "--tokenizer", str(tmp_path)), "leave it out"),
        (("--agent-option", "goood=x"), "there is no such option"),
    ):
        ran = envgym("data", "feedback", str(played), "--agent", "scripted-judge", "--out", out, *more)
        assert (ran.code, says in ran.err) == (2, True), ran
    ran = envgym("data", "credit", str(played), "--scheme", "grpo", "--feedback", str(played / "x"), "--out", out)
    assert ran.code == 2
