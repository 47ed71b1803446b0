"""`envgym data`: every command on a store that `envgym collect` made."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from envgym.env import Step, StopReason
from envgym.episode import Began, Episode, Turn
from envgym.messages import Message
from envgym.store import StoreReader, StoreWriter
from envgym.whole import new_target


@pytest.fixture
def played(envgym, tmp_path):
    store = tmp_path / "played"
    ran = envgym("collect", "guess", "--agent", "random", "-n", "12", "--out", str(store))
    assert ran.code == 0
    return store


def told(ran):
    assert (ran.code, ran.err) == (0, ""), ran
    return json.loads(ran.out)


def test_stats_count_by_environment_and_agent(envgym, played):
    found = told(envgym("data", "stats", str(played), "--json"))
    assert (found["episodes"], found["failed"], found["unfinished"]) == (12, 0, 0)
    assert [(row["environment"], row["agent"]) for row in found["by"]] == [("guess", "random")]
    shown = envgym("data", "stats", str(played)).out
    assert "guess" in shown
    assert "0 unfinished episodes" in shown
    facts = dict(next(iter(StoreReader(played))).provenance)
    assert facts["environment package"] == facts["agent package"] == f"envgym {facts['envgym']}"


def test_filter_sample_split_and_merge_make_stores(envgym, played, tmp_path):
    paths = {name: str(tmp_path / name) for name in ("good", "some", "parts", "all", "renamed")}
    good = told(envgym("data", "filter", str(played), "--out", paths["good"], "--where", "reward > 0", "--json"))
    assert (
        good["copied"]
        == len(StoreReader(paths["good"]))
        == sum((one.reward or 0) > 0 for one in StoreReader(played))
    )
    assert told(envgym("data", "sample", str(played), "--out", paths["some"], "-n", "5", "--json"))["copied"] == 5
    cut = told(envgym("data", "split", str(played), "a=0.5", "b=0.5", "--out", paths["parts"], "--json"))
    assert cut["a"] + cut["b"] == 12
    both = (f"{paths['parts']}/a", f"{paths['parts']}/b")
    assert told(envgym("data", "merge", *both, "--out", paths["all"], "--json"))["copied"] == 12
    assert {one.id: one for one in StoreReader(paths["all"])} == {one.id: one for one in StoreReader(played)}
    ran = envgym("data", "merge", str(played), paths["all"], "--out", paths["renamed"])
    assert (ran.code, "--rename" in ran.err) == (2, True)
    ran = envgym("data", "merge", str(played), paths["all"], "--out", paths["renamed"], "--rename", "--json")
    assert told(ran)["copied"] == 24
    ran = envgym("data", "filter", paths["renamed"], "--no-repeats", "--out", str(tmp_path / "once"), "--json")
    assert told(ran)["repeats"] >= 12


def test_contexts_are_packed_into_a_file(envgym, tmp_path):
    def turn(*words):
        said = Message(role="assistant", content=" ".join(words))
        ids = np.arange(len(words), dtype=np.int32)
        return Turn("agent", (said,), Step(), ids + 50, ids + 70, -ids.astype(np.float32))

    def stored(name, *words):
        return Episode(name, "t", Step(), (turn(*words),), 0, StopReason.GOAL)

    with StoreWriter(tmp_path / "s") as writer:
        writer.append(stored("a", "one", "two"))
        writer.append(stored("b", "one", "two", "three"))
        writer.append(stored("secret", "it", "is", "ghp_" + "a1B2" * 9))
    pack = ("data", "pack", str(tmp_path / "s"), "--length", "12", "--out")
    found = told(envgym(*pack, str(tmp_path / "r.parquet"), "--json"))
    assert (found["rows"], found["contexts"], found["redacted"]["turns[].sampled_ids"]) == (1, 2, 1)
    (row,) = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert [one["episode"] for one in row["contexts"]] == ["a", "b"]
    assert row["ids"] == [50, 51, 70, 71, 50, 51, 52, 70, 71, 72, 0, 0]
    everything = told(envgym(*pack, str(tmp_path / "all.parquet"), "--no-redact", "--json"))
    assert everything["contexts"] == 3
    some = told(envgym(*pack, str(tmp_path / "some.parquet"), "--where", "id == 'b'", "--json"))
    assert some["contexts"] == 1
    ran = envgym(*pack[:-2], "5", "--out", str(tmp_path / "no.parquet"))
    assert (ran.code, "has 6 ids, and a row 5 places" in ran.err) == (2, True)
    assert not (tmp_path / "no.parquet").exists()
    cut = told(envgym(*pack[:-2], "5", "--longer", "cut", "--out", str(tmp_path / "cut.parquet"), "--json"))
    assert (cut["rows"], cut["contexts"], cut["too_long"]) == (2, 2, 1)
    assert envgym(*pack, str(tmp_path / "no.parquet"), "--train", "everything").code == 2
    ran = envgym(*pack, str(tmp_path / "tool.parquet"), "--train", "tool")
    assert (ran.code, "none of its 3 episodes has a token of the role tool with its id" in ran.err) == (0, True)
    ran = envgym(
        *pack[:-2], "5", "--longer", "drop", "--out", str(tmp_path / "five.parquet"), "--where", "id == 'b'"
    )
    assert (ran.code, "all 1 contexts are longer than --length 5, and --longer drop leaves none" in ran.err) == (
        0,
        True,
    )


def test_a_pack_of_nothing_is_not_taken_for_a_data_set(envgym, played, tmp_path):
    ran = envgym("data", "pack", str(played), "--length", "8", "--out", str(tmp_path / "r.parquet"), "--json")
    assert (ran.code, json.loads(ran.out)["rows"]) == (0, 0)
    assert ran.err == (
        f"envgym: {played}: none of its 12 episodes has a token of the role sampled with its id, so nothing was "
        "packed\n"
    )
    with StoreWriter(tmp_path / "empty"):
        pass
    ran = envgym("data", "pack", str(tmp_path / "empty"), "--length", "8", "--out", str(tmp_path / "e.parquet"))
    assert (ran.code, "it holds no episode that has ended, so nothing was packed" in ran.err) == (0, True)


def test_damage_that_costs_nothing_is_told_and_does_not_fail(envgym, played):
    (about,) = played.glob("shards/*/shard.json")
    about.write_bytes(b"{}")
    for command in (("data", "stats", str(played)), ("show", str(played))):
        ran = envgym(*command)
        assert (ran.code, f"{about.parent}" in ran.err) == (0, True), "it is told"
    assert len(json.loads(envgym("data", "stats", str(played), "--json").out)["damage"]) == 1


def test_contaminated_episodes_are_dropped_and_named(envgym, played, tmp_path):
    (tmp_path / "held").write_text(next(iter(StoreReader(played))).root.text + "\n")
    out = tmp_path / "clean"
    ran = envgym("data", "filter", str(played), "--out", str(out), "--held-out", str(tmp_path / "held"), "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["contaminated"] >= 1) == (0, True)
    assert "contaminated: guess-s0-" in ran.err
    (report,) = told(envgym("data", "stats", str(out), "--json"))["decontamination"]
    assert (report["held_out"], report["texts"], report["words"], report["checked"]) == ("held", 1, 13, 12)
    assert len(report["leaks"]) == found["contaminated"]
    said = f"{found['contaminated']} of 12 episodes shared 13 words in a row with one of 1 held-out texts (held)"
    assert said in envgym("data", "stats", str(out)).out
    assert told(envgym("data", "stats", str(played), "--json"))["decontamination"] == [], "it is left as it is"

    (tmp_path / "more").write_text("words that nobody said " * 4 + "\n")
    again = ("data", "filter", str(out), "--held-out", str(tmp_path / "more"), "--out", str(tmp_path / "twice"))
    assert told(envgym(*again, "--json"))["contaminated"] == 0
    reports = told(envgym("data", "stats", str(tmp_path / "twice"), "--json"))["decontamination"]
    assert [one["held_out"] for one in reports] == ["held", "more"], "what was looked for before was looked for"
    (tmp_path / "short").write_text("three short words\n")
    again = ("data", "filter", str(out), "--held-out", str(tmp_path / "short"), "--out", str(tmp_path / "thrice"))
    assert (
        "1 of the 1 texts of --held-out short have fewer than 13 words: they are only found" in envgym(*again).err
    )
    set_ = tmp_path / "set"
    told(envgym("data", "export", str(tmp_path / "twice"), "--to", "datasets", "--out", str(set_), "--json"))
    assert said in (set_ / "README.md").read_text()

    (out / "decontamination.json").write_text("[{}]")
    ran = envgym("data", "stats", str(out))
    assert (ran.code, "decontamination.json: no list of reports" in ran.err) == (1, True)


def test_a_filter_that_was_killed_before_its_episodes_came_can_be_run_again(envgym, played, tmp_path):
    out, held = tmp_path / "clean", tmp_path / "held"
    held.write_text("fifteen words that nobody said in any of these episodes that were played for this test\n")
    again = ("data", "filter", str(played), "--out", str(out), "--held-out", str(held), "--json")
    told(envgym(*again))
    shutil.rmtree(out / "shards")
    assert told(envgym(*again))["copied"] == 12
    assert len(told(envgym("data", "stats", str(out), "--json"))["decontamination"]) == 1


def test_a_damaged_image_is_told_and_blocks_no_copying_of_what_is_whole(envgym, tmp_path):
    store, out = tmp_path / "s", tmp_path / "t"
    with StoreWriter(store) as writer:
        images = [writer.put_image(content) for content in (b"first", b"second")]
        for number, image in enumerate(images):
            shown = Message(role="user", content=(image,))
            writer.append(Episode(f"e{number}", "t", Step((shown,)), (), 0, StopReason.GOAL))
    (file,) = store.glob(f"images/*/{images[0].sha256}")
    file.write_bytes(b"f1rst")
    ran = envgym("data", "stats", str(store), "--json")
    assert (ran.code, [str(file) in one for one in json.loads(ran.out)["damage"]]) == (1, [True])
    ran = envgym("data", "filter", str(store), "--out", str(out))
    assert (ran.code, f"{file}, the whole image: its 5 bytes" in ran.err, "--damaged" in ran.err) == (1, True, True)
    assert not out.exists()
    ran = envgym("data", "filter", str(store), "--damaged", "--out", str(out), "--json")
    assert (ran.code, json.loads(ran.out)["copied"], str(file) in ran.err) == (0, 2, True)
    with StoreReader(out) as reader:
        assert reader.image(images[1]) == b"second"
        with pytest.raises(KeyError):
            reader.image(images[0])


def test_compaction_makes_a_store_smaller_and_changes_nothing(envgym, played):
    before = list(StoreReader(played))
    found = told(envgym("data", "compact", str(played), "--json"))
    assert found["episodes"] == 12
    assert list(StoreReader(played)) == before
    assert list(played.glob("shards/*/turns.parquet"))
    told(envgym("data", "compact", str(played), "--hot", "--json"))
    assert list(StoreReader(played)) == before


def test_damage_is_named_and_can_be_left_out(envgym, played, tmp_path):
    (victim,) = played.glob("shards/*/turns.arrow")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    ran = envgym("data", "stats", str(played), "--json")
    assert (ran.code, str(victim) in ran.err, len(json.loads(ran.out)["damage"])) == (1, True, 1)
    ran = envgym("data", "filter", str(played), "--out", str(tmp_path / "rest"))
    assert (ran.code, str(victim) in ran.err) == (1, True)
    ran = envgym("data", "credit", str(played), "--out", str(tmp_path / "credit"))
    assert (ran.code, str(victim) in ran.err, "--damaged --out OTHER" in ran.err) == (1, True, True)
    ran = envgym("data", "filter", str(played), "--damaged", "--out", str(tmp_path / "rest"), "--json")
    assert json.loads(ran.out) == {
        "copied": 0,
        "of": 12,
        "damaged": 12,
        "unfinished": 0,
        "out": str(tmp_path / "rest"),
    }
    assert f"left out: {victim}, record batch 0" in ran.err


@pytest.mark.parametrize(
    "command",
    [
        ["export", "--to", "chat"], ["export", "--to", "atif"], ["credit"], ["split", "a=0.5", "b=0.5"],
        ["sample", "-n", "3"], ["filter"], ["filter", "--where", "reward > 0"], ["merge"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_takes_a_store_with_damaged_episodes_for_a_smaller_one(envgym, played, tmp_path, command):
    (victim,) = played.glob("shards/*/episodes.arrow")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    name, *rest = command
    ran = envgym("data", name, str(played), *rest, "--out", str(tmp_path / "out"))
    assert (ran.code, ran.out) == (1, "")
    assert str(victim) in ran.err
    assert not (tmp_path / "out").exists()
    if name != "merge":
        assert f"envgym data filter {played} --damaged --out OTHER" in ran.err
    ran = envgym("data", "filter", str(played), "--damaged", "--out", str(tmp_path / "rest"), "--json")
    found = json.loads(ran.out)
    assert (found["copied"], found["of"], found["damaged"]) == (0, 12, 12)


def test_a_collection_with_a_damaged_record_goes_on_in_a_copy(envgym, tmp_path):
    whole, store, rest = (str(tmp_path / name) for name in ("whole", "s", "rest"))
    played = ["collect", "guess", "--agent", "random", "-n", "6", "--out"]
    assert envgym(*played, whole).code == 0
    with StoreReader(whole) as reader:
        first, second, third, *_ = reader
    with StoreWriter(store) as writer:
        writer.append(first)
        writer.append(second)
        at = writer._log.bytes - 30  # in the record of the second one's end
        writer.begin(Began.of(third))
        writer.turn(third.id, 0, third.turns[0])
        (log,) = writer.path.glob("logs/*.log")
        content = bytearray(log.read_bytes())
    shutil.rmtree(store)
    content[at] ^= 1
    (tmp_path / "s/logs").mkdir(parents=True)
    (tmp_path / "s/logs/00000001.log").write_bytes(content)
    ran = envgym(*played, store)
    assert ran.code == 1
    assert f"envgym data filter {store} --damaged --out OTHER" in ran.err
    ran = envgym("data", "filter", store, "--damaged", "--out", rest, "--json")
    assert json.loads(ran.out) == {"copied": 1, "of": 1, "damaged": 0, "unfinished": 2, "out": rest}
    assert "left out: " in ran.err
    assert set(StoreReader(rest).unfinished) == {second.id, third.id}
    assert envgym(*played, rest).code == 0
    assert [(one.id, one.reward) for one in sorted(StoreReader(rest), key=lambda one: one.id)] == [
        (one.id, one.reward) for one in sorted(StoreReader(whole), key=lambda one: one.id)
    ]


@pytest.mark.parametrize("form", ["chat", "atif", "verifiers", "sharegpt", "swe-agent", "datasets"])
def test_what_is_exported_and_imported_is_the_same(envgym, played, tmp_path, form):
    out, back = tmp_path / "out", tmp_path / "back"
    found = told(envgym("data", "export", str(played), "--to", form, "--out", str(out), "--json"))
    assert (found["episodes"], found["dropped"]) == (12, [])
    assert told(envgym("data", "import", str(out), "--from", form, "--out", str(back), "--json"))["imported"] == 12
    assert {one.id: one for one in StoreReader(back)} == {one.id: one for one in StoreReader(played)}
    ran = envgym("data", "export", str(played), "--to", form, "--out", str(out))
    assert (ran.code, "exists" in ran.err) == (2, True)


def test_an_import_lists_what_no_episode_holds_and_stores_images(envgym, tmp_path):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}
    message = {"role": "user", "content": [picture]}
    said = {"message": {"role": "assistant", "content": "a"}, "sampled": True, "token_ids": [3], "mask": [True]}
    nodes = [{"parent": None, "message": message, "token_ids": [1, 2]}, {"parent": 0, **said}]
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(json.dumps({"traces": [{"id": "x", "nodes": nodes}]}) + "\n")
    found = told(envgym("data", "import", str(source), "--from", "verifiers", "--out", str(out), "--json"))
    assert (found["imported"], found["images"]) == (1, 1)
    assert {one["field"] for one in found["dropped"]} == {"turns[].sampled_ids", "token_ids"}
    with StoreReader(out) as reader:
        (episode,) = reader
        assert reader.image(episode.root.observation[0].content[0]) == b"\x89PNG\r"
    ran = envgym("data", "import", str(source), "--from", "verifiers", "--out", str(tmp_path / "again"))
    assert "DROPPED: not in the episodes" in ran.out


def test_the_card_of_a_data_set_tells_splits_scores_and_the_check_for_contamination(envgym, played, tmp_path):
    (tmp_path / "held").write_text("words that nobody said " * 4 + "\n")
    out = tmp_path / "set"
    card = ("--licence", "apache-2.0", "--scores", "0", "1", "--held-out", str(tmp_path / "held"))
    parts = ("--split", "train=0.5", "--split", "test=0.5")
    told(envgym("data", "export", str(played), "--to", "datasets", "--out", str(out), *card, *parts, "--json"))
    text = (out / "README.md").read_text()
    assert 'license: "apache-2.0"' in text
    assert "0 of 12 episodes shared 13 words in a row with one of 1 held-out texts (held)" in text
    tables = {path: pq.read_table(path) for path in out.rglob("*.parquet")}
    assert {"train", "test"} == {part for part in ("train", "test") for path in tables if part in path.name}
    assert sum(table.num_rows for table in tables.values()) == 12
    assert all("normalised_score" in table.column_names for table in tables.values())
    ran = envgym(
        "data", "export", str(played), "--to", "datasets", "--out", str(tmp_path / "x"), "--split", "a=0.5"
    )
    assert (ran.code, "add up to 1" in ran.err) == (2, True)


def test_what_an_export_drops_is_listed(envgym, played, tmp_path):
    options = ("--to", "chat", "--no-extra", "--where", "turns > 0", "--out", str(tmp_path / "out"))
    ran = envgym("data", "export", str(played), *options)
    assert ran.code == 0
    assert "turns[].step.reward" in ran.out + ran.err


def test_credit_is_a_table_beside_the_store(envgym, played, tmp_path):
    out = tmp_path / "credit.parquet"
    options = ("--scheme", "turn-relative", "--option", "gamma=0.9", "--out", str(out))
    ran = envgym("data", "credit", str(played), *options, "--json")
    assert (ran.code, json.loads(ran.out)["episodes"]) == (0, 12)
    table = pq.read_table(out)
    assert sorted(table.column("episode").to_pylist()) == sorted(StoreReader(played).ids)
    ran = envgym("data", "credit", str(played), *options)
    assert (ran.code, ran.err) == (2, f"envgym: {out} exists already; remove it or choose another name\n")
    for command in (options[:-1], ("--length", "8", "--out")):
        name = "credit" if "--scheme" in command else "pack"
        ran = envgym("data", name, str(played), *command, str(tmp_path / "none/x.parquet"))
        assert (ran.code, ran.err.endswith(f"there is no folder {tmp_path / 'none'}\n")) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["credit"], ["pack", "--length", "8"]], ids=" ".join)
def test_a_table_whose_writing_is_killed_is_not_there_and_can_be_made_again(envgym, played, tmp_path, command):
    """A half of a Parquet file under its name would be in the way, and no reader could tell why."""
    out = tmp_path / "table.parquet"
    name, *rest = command
    arguments = ["data", name, str(played), *rest, "--out", str(out)]
    killing = (
        "import os, signal, sys, envgym.cli, pyarrow.parquet\n"
        "pyarrow.parquet.ParquetWriter.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit(envgym.cli.run(sys.argv[1:]))"
    )
    ran = subprocess.run([sys.executable, "-c", killing, *arguments], capture_output=True, timeout=60)
    assert (ran.returncode, out.exists()) == (-9, False), ran
    assert len(list(tmp_path.glob(".table.parquet.part-*"))) == 1, "it was killed while it wrote"
    assert envgym(*arguments).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["played", "table.parquet"]


def test_a_store_that_is_not_ours_to_write_is_named_and_not_its_lock(envgym, played):
    with tempfile.TemporaryDirectory() as top:  # which others may enter, unlike pytest's
        os.chmod(top, 0o755)
        store = shutil.copytree(played, f"{top}/store")
        Path(store, "lock").chmod(0o444)
        root = os.geteuid() == 0
        if root:
            os.seteuid(4242)
        try:
            ran = envgym("data", "compact", store)
        finally:
            if root:
                os.seteuid(0)
        assert (ran.code, ran.err) == (2, f"envgym: {store}: Permission denied\n")


def test_a_full_disk_names_what_was_to_be_made_and_not_where_it_was_begun(tmp_path):
    target = tmp_path / "out"
    for named in ((), (str(tmp_path / f".out.part-{os.getpid()}"),)):
        with pytest.raises(OSError, match="No space left") as caught, new_target(target):
            raise OSError(errno.ENOSPC, "as told", *named)
        assert caught.value.filename == str(target)
    with pytest.raises(OSError, match="other") as caught, new_target(target):
        raise OSError(errno.EIO, "other", "source")
    assert caught.value.filename == "source", "what was read is not what is made"
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_credited_is_said(envgym, tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(Episode("e", "t", Step(reward=1.0), (), 0, StopReason.GOAL))
    ran = envgym("data", "credit", str(tmp_path / "s"), "--out", str(tmp_path / "c"))
    assert (ran.code, "none of its 1 episodes has a sampled token" in ran.err) == (0, True)
    with StoreWriter(tmp_path / "empty"):
        pass
    ran = envgym("data", "credit", str(tmp_path / "empty"), "--out", str(tmp_path / "d"))
    assert (ran.code, "it holds no episode that has ended" in ran.err) == (0, True)


def sampled(name, reward, channels):
    step = Step(observation=(Message(role="tool", content="so"),), reward=reward, channels=channels)
    one = np.ones(1, np.int32)
    turn = Turn("agent", (Message(role="assistant", content="do"),), step, one, one, np.zeros(1, np.float32))
    return Episode(name, "t", Step(), (turn,), 0, StopReason.GOAL, group="g")


def test_credit_that_says_nothing_is_not_taken_for_credit(envgym, tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([sampled("a", 1.0, {"speed": 1.0}), sampled("b", 0.0, {"speed": 2.0})])

    def credited(*options):
        return envgym("data", "credit", str(tmp_path / "s"), "--out", str(tmp_path / str(options)), *options)

    ran = credited("--scheme", "prefix-restarts")
    assert (ran.code, "all credit is 0: of 2 episodes in 1 groups, 0 were forked and 0 failed" in ran.err) == (
        0,
        True,
    )
    ran = credited("--scheme", "p-grpo", "--option", "channel=speed")
    assert (ran.code, ran.err) == (0, "")
    ran = credited("--scheme", "p-grpo", "--option", "channel=sped")
    assert (
        ran.code,
        "channel is 'sped', which no turn of these 1 groups has; channels here: speed" in ran.err,
    ) == (
        2,
        True,
    )
    ran = credited("--option", "gamma=nan")
    assert (ran.code, "gamma is nan; it must be from 0 to 1" in ran.err) == (2, True)
    ran = credited("--scheme", "hierarchical", "--option", "gate=typo")
    assert (ran.code, "gate is 'typo'; it must be 'improbable', 'succeeded'" in ran.err) == (2, True)
    ran = credited("--scheme", "timed-subgoals", "--option", "goal=abc")
    assert (ran.code, "goal is 'abc'; it must be a TimedGoal" in ran.err) == (2, True)
    assert credited("--scheme", "hierarchical", "--option", "gate=succeeded").code == 0
    assert credited("--scheme", "grpo", "--option", "scale=ranked").code == 0


def test_a_channel_that_no_turn_has_is_said_also_where_none_has_any(envgym, tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([sampled("a", 1.0, {}), sampled("b", 0.0, {})])
    options = ("--scheme", "p-grpo", "--option", "channel=passed", "--out", str(tmp_path / "c"))
    ran = envgym("data", "credit", str(tmp_path / "s"), *options)
    assert (ran.code, "no turn has the channel 'passed', nor any other" in ran.err) == (0, True)


def test_what_a_terminal_cannot_show_is_escaped(tmp_path):
    """``python -m envgym`` is the program."""
    with StoreWriter(tmp_path / "s") as writer:
        writer.extend([sampled("a", 1.0, {}), sampled("b", 0.0, {})])
    out = tmp_path / "na\u00efve.parquet"
    ran = subprocess.run(
        [sys.executable, "-m", "envgym", "data", "credit", str(tmp_path / "s"), "--out", str(out)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr, out.exists()) == (0, b"", True)
    assert b"na\\xefve.parquet" in ran.stdout


def test_a_path_that_the_caller_named_needs_no_traceback(envgym, tmp_path):
    ran = envgym("data", "import", str(tmp_path), "--from", "chat", "--out", str(tmp_path / "s"))
    assert (ran.code, "Is a directory" in ran.err, "--debug" in ran.err) == (2, True, False)


def test_what_means_nothing_is_said_and_does_not_fail(envgym, played, tmp_path):
    ran = envgym("data", "filter", str(played), "--out", str(tmp_path / "f"), "--where", "reward > 99")
    assert (ran.code, f"no episode of {played} is meant by 'reward > 99'" in ran.err) == (0, True)
    (tmp_path / "empty").touch()
    ran = envgym("data", "import", str(tmp_path / "empty"), "--from", "chat", "--out", str(tmp_path / "i"))
    assert (ran.code, "holds no episode in the format chat" in ran.err) == (0, True)
    scores = ("--to", "datasets", "--scores", "5", "6", "--out", str(tmp_path / "d"))
    ran = envgym("data", "export", str(played), *scores)
    assert (ran.code, "12 of 12 rewards lie outside --scores 5 6 (they go from " in ran.err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stats", "{none}"), "does not exist"),
        (("stats", "{tmp}"), "is no store"),
        (("filter", "{store}", "--out", "{out}", "--where", "rewrd > 1"), "there is no column 'rewrd'"),
        (("filter", "{store}", "--out", "{tmp}"), "holds other things and no store"),
        (("filter", "{store}", "--out", "{store}/lock/x"), "{store}/lock/x: Not a directory"),
        (("filter", "{store}", "--out", "{out}", "--where", ""), "the query '' says nothing; write a comparison"),
        (("export", "{store}", "--to", "chat", "--out", "{tmp}"), "{tmp} exists already"),
        (("pack", "{store}", "--length", "8", "--out", "{tmp}"), "{tmp} exists already"),
        (("credit", "{store}", "--out", "{tmp}"), "{tmp} exists already"),
        (("sample", "{store}", "--out", "{out}", "-n", "99"), "holds 12; draw fewer"),
        (("split", "{store}", "a=x", "--out", "{out}"), "'a=x' is not of the form name=share"),
        (("split", "{store}", "a=0.5", "--out", "{out}"), "add up to 1"),
        (("split", "{store}", "a=0.5", "a=0.5", "--out", "{out}"), "the name 'a' is given twice"),
        (("grade", "{store}", "--env", "guess", "--sandbox", "dockr"), "did you mean 'docker'?"),
        (
            ("export", "{store}", "--to", "chat", "--out", "{out}", "--split", "a=1"),
            "--split says nothing to the format",
        ),
        (("export", "{store}", "--to", "atif", "--out", "{out}", "--scores", "0", "1"), "--scores says nothing to"),
        (
            ("export", "{store}", "--to", "minari", "--out", "{out}", "--licence", "mit"),
            "--licence says nothing to",
        ),
        (("grade", "{store}", "--env", "guess"), "has no grader of its own"),
        (("grade", "{store}", "--env", "gues"), "did you mean 'guess'?"),
        (("export", "{store}", "--to", "cht", "--out", "{out}"), "did you mean 'chat'?"),
        (("import", "{store}", "--from", "cht", "--out", "{out}"), "did you mean 'chat'?"),
        (("credit", "{store}", "--out", "{out}", "--scheme", "dr-grp"), "did you mean 'dr-grpo'?"),
        (("credit", "{store}", "--out", "{out}", "--option", "gama=1"), "did you mean 'gamma'?"),
    ],
)
def test_a_mistake_is_one_line(envgym, played, tmp_path, arguments, said):
    names = {"none": tmp_path / "none", "tmp": tmp_path, "store": played, "out": tmp_path / "out"}
    ran = envgym("data", *(argument.format(**names) for argument in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert said.format(**names) in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["played"], "nothing is left of it"


def test_export_replaces_directories_that_are_named(envgym, tmp_path):
    told = Step(observation=(Message(role="user", content=f"see /data/lab7/x, {tmp_path / 's'}/logs and /work/a"),))
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(Episode("e", "t", told, (), 0, StopReason.GOAL))
    export = ("data", "export", str(tmp_path / "s"), "--to", "chat", "--out", str(tmp_path / "a"))
    assert envgym(*export, "--redact-path", "/data/lab7").code == 0
    text = (tmp_path / "a").read_text()
    assert "/data/lab7" not in text
    assert str(tmp_path) not in text
    assert "/work/a" in text
    for wrong in (("--redact-path", "lab7"), ("--redact-path", "/data/lab7", "--no-redact")):
        ran = envgym(*export[:-1], str(tmp_path / "b"), *wrong)
        assert (ran.code, "redact" in ran.err) == (2, True)
        assert not (tmp_path / "b").exists()
