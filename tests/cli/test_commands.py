"""Each command does what its help says, on real environments, backends and files."""

import hashlib
import json
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distribution

import pytest
from envgym_environments.text.guess import SPEC as GUESS
from envgym_environments.text.guess import Guess

from envgym import Action, Began, StoreReader, StoreWriter, Task
from envgym.cli.extras import extras_of
from envgym.plain_text import visible
from envgym.registry import AUTO_ORDER, names, register, unregister
from envgym.testing import Cheat


@pytest.mark.slow
def test_list_says_what_there_is_and_what_is_missing(envgym, memory):
    rows = json.loads(envgym("list", "--json").out)
    found = {(row["group"], row["name"]): row for row in rows}
    assert found["environments", "guess"]["description"]
    assert found["environments", "code-repair"]["sandbox"] is True
    assert found["environments", "memory"]["gymnasium_id"] == "envgym/Memory-v0"
    assert found["sandboxes", "namespace"]["missing"] == ""
    assert "needs values" in found["schemes", "turn-gae"]["description"]
    assert found["schemes", "grpo"]["claims"] == "d"
    assert {"random", "expert"} <= {name for group, name in found if group == "agents"}
    assert all(row["description"] or row["missing"] for row in rows), rows
    text = envgym("list").out
    assert all(name in text for name in names("environments"))


@pytest.mark.slow
def test_list_survives_a_package_that_cannot_be_imported(envgym, tmp_path, monkeypatch):
    place = tmp_path / "broken-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\nProvides-Extra: food\n"
        "Requires-Dist: no-such-distribution; extra == 'food'\n"
    )
    (place / "entry_points.txt").write_text(
        "[envgym.environments]\nbroken = no_such_package_anywhere:SPEC\n[envgym.agents]\n"
        "broken = no_such_package_anywhere:agent\nhungry = json:dumps [food]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = envgym("list")
    assert ran.code == 0
    assert ran.out.count("broken: there is no module no_such_package_anywhere") == 2
    assert "pip install 'broken[food]' (lacks no-such-distribution)" in ran.out
    assert envgym("collect", "broken").code == 1


def test_an_extra_lacks_what_a_nested_extra_lacks(tmp_path, monkeypatch):
    metadata = {
        "outer": "Provides-Extra: both\nProvides-Extra: own\nRequires-Dist: outer[own]; extra == 'both'\n"
        "Requires-Dist: inner[deep,plain] >=1 ; extra == 'both'\nRequires-Dist: absent-one>=2; extra == 'own'\n"
        "Requires-Dist: outer[both]; extra == 'own'\n",
        "inner": "Provides-Extra: deep\nProvides-Extra: plain\nRequires-Dist: absent-two; extra == 'deep'\n"
        "Requires-Dist: absent-three; sys_platform == 'nowhere' and extra == 'plain'\n",
    }
    for name, lines in metadata.items():
        place = tmp_path / f"{name}-1.0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    lacks = extras_of(distribution("outer"))
    assert {extra: sorted(names) for extra, names in lacks.items()} == {
        "both": ["absent-one", "absent-two"],
        "own": ["absent-one", "absent-two"],
    }


@pytest.mark.slow
def test_doctor_reports_host_backends_and_extras(envgym):
    ran = envgym("doctor", "--json")
    found = json.loads(ran.out)
    assert {"python", "cores", "memory", "tmpfs", "cgroups"} <= set(found["host"])
    reports = {report["backend"]: report for report in found["backends"]}
    assert set(reports) == set(names("sandboxes"))
    working = [name for name in AUTO_ORDER if reports[name]["works"]]
    assert ran.code == (0 if working else 1)
    assert found["auto"] == (working[0] if working else None)
    for report in reports.values():
        assert report["works"] or report["missing"], f"a backend that does not work says why: {report}"
    assert {"code", "train", "endpoint", "dev"} <= set(found["extras"])
    text = envgym("doctor").out
    assert "auto" in text
    assert found["why"] in text


def test_collect_stores_what_show_shows(envgym, memory, tmp_path):
    out = tmp_path / "runs" / "memory.episodes"
    ran = envgym("collect", "memory", "--agent", "player", "-n", "6", "--turns", "5", "--out", str(out), "--json")
    summary = json.loads(ran.out)
    assert ran.code == 0
    assert summary["episodes"] == 6
    assert summary["failures"] == []
    episodes = list(StoreReader(out))
    assert len({episode.id for episode in episodes}) == 6
    assert sum(len(episode.turns) for episode in episodes) == summary["turns"]
    facts = dict(episodes[0].provenance)
    assert (facts["environment"], facts["agent"]) == ("memory", "player")
    assert "agent package" not in facts, "it was registered by the test"
    listed = envgym("show", str(out)).out
    assert all(episode.id in listed for episode in episodes)
    assert len(envgym("show", str(out), "--limit", "2").out.splitlines()) == 4
    facts = [json.loads(line) for line in envgym("show", str(out), "--json").out.splitlines()]
    assert [row["id"] for row in facts] == [episode.id for episode in episodes]
    tree = envgym("show", str(out), "--episode", episodes[3].id).out
    assert tree == envgym("show", str(out), "--episode", "3").out
    assert f"turn {len(episodes[3].turns) - 1}" in tree
    assert json.loads(envgym("show", str(out), "--episode", "3", "--json").out)["id"] == episodes[3].id
    assert "turn 0" in envgym("show", str(out), "--episode", "0", "--turn", "0").out
    assert envgym("show", str(out), "--episode", "0", "--turn", "99").code == 2
    assert envgym("show", str(out), "--turn", "0").code == 2


def test_the_same_plan_gives_the_same_episodes_whatever_the_concurrency(envgym, memory, tmp_path):
    paths = []
    for concurrency in ("1", "8"):
        paths.append(tmp_path / concurrency)
        options = ("--agent", "player", "-n", "8", "--seed", "3", "--concurrency", concurrency)
        assert envgym("collect", "memory", *options, "--out", str(paths[-1])).code == 0
    one, many = ({episode.id: episode for episode in StoreReader(path)} for path in paths)
    assert one == many


def test_a_collection_goes_on_where_an_earlier_one_was_cut_off(envgym, memory, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = ("collect", "memory", "--agent", "player", "-n", "5", "--seed", "2", "--json", "--out")
    first = json.loads(envgym(*options, str(whole)).out)
    episodes = list(StoreReader(whole))
    with StoreWriter(cut) as writer:  # killed while the fourth was played
        for episode in episodes[:3]:
            writer.append(episode)
        writer.begin(Began.of(episodes[3]))
        writer.turn(episodes[3].id, 0, episodes[3].turns[0])
    ran = envgym(*options, str(cut))
    assert (ran.code, f"{cut} holds 3 of 5 episodes; the others are played" in ran.err) == (0, True)
    differ = {"out", "wall_s", "all_calls_s"}
    assert {name: value for name, value in json.loads(ran.out).items() if name not in differ} == {
        name: value for name, value in first.items() if name not in differ
    }
    want, got = ({episode.id: episode for episode in StoreReader(path)} for path in (whole, cut))
    assert got == want
    assert StoreReader(cut).ids[:3] == tuple(episode.id for episode in episodes[:3])
    finished = contents(cut)
    assert envgym(*options, str(cut)).code == 0
    assert contents(cut) == finished


def contents(store):
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("guess", "--agent", "random", "-n", "4", "--seed", "1"), "'guess-s0-00000"),
        (("guess", "--agent", "random", "-n", "2"), "'guess-s0-00000"),
        (("guess", "--agent", "expert", "-n", "4"), "agent was random, now it is expert"),
        (("guess", "--agent", "random", "-n", "4", "--turns", "7"), "turns was 50, now it is 7"),
        (("guess", "--agent", "random", "-n", "4", "--split", "heldout"), "task was "),
        (("guess", "--agent", "random", "-n", "4", "--task-option", "count=9"), "task options was not given, now"),
        (("guess-hidden", "--agent", "random", "-n", "4"), "'guess-s0-00000"),
    ],
)
def test_a_collection_goes_on_with_its_own_plan_only(envgym, tmp_path, arguments, said):
    out = tmp_path / "episodes"
    register("environments", "guess-hidden", GUESS)
    try:
        assert envgym("collect", "guess", "--agent", "random", "-n", "4", "--out", str(out)).code == 0
        before = contents(out)
        ran = envgym("collect", *arguments, "--out", str(out))
    finally:
        unregister("environments", "guess-hidden")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
    assert contents(out) == before


def test_a_collection_into_what_is_no_store_says_so_and_leaves_it(envgym, tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("mine")
    for out, said in (
        (tmp_path, "holds other things and no store; name a new folder"),
        (notes, "is a file; a store is"),
    ):
        ran = envgym("collect", "guess", "--agent", "random", "--out", str(out))
        assert (ran.code, said in ran.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert notes.read_text() == "mine"


def test_one_mistake_in_many_episodes_is_one_row(envgym, memory):
    def explode(task: Task) -> Guess:
        raise OSError(f"no world for {task.id}\nand more of it")

    register("environments", "explodes", replace(GUESS, name="explodes", make=explode))
    try:
        ran = envgym("collect", "explodes", "--agent", "player", "-n", "12")
        found = json.loads(envgym("collect", "explodes", "--agent", "player", "-n", "12", "--json").out)
    finally:
        unregister("environments", "explodes")
    assert (found["failed"], [row["count"] for row in found["failures"]]) == (12, [12])
    assert [line.split()[:2] for line in ran.out.splitlines()[2:]] == [["12", "infrastructure"]]
    assert "no world for" in ran.out
    assert "and more of it" not in ran.out


def test_a_collection_tells_its_progress_where_there_is_no_terminal(envgym):
    ran = envgym("collect", "guess", "--agent", "random", "-n", "3")
    assert ran.err.splitlines()[-1].startswith("episodes 3/3  0:00:0")


def test_the_command_that_is_offered_next_can_be_pasted(envgym, tmp_path):
    out = tmp_path / "my runs" / "a;b"
    said = envgym("collect", "guess", "--agent", "random", "-n", "1", "--out", str(out)).out
    assert shlex.split(said.splitlines()[-1])[-3:] == ["envgym", "show", str(out)]
    assert f"pip install -e '{tmp_path}/my env' " in envgym("new", "my-env", "--into", f"{tmp_path}/my env").out


def test_failures_are_counted_in_a_table_and_all_failing_is_status_1(envgym, memory, full_disk):
    ran = envgym("collect", "full-disk", "--agent", "player", "-n", "3")
    assert ran.code == 1
    assert "3 failed; they have no reward and are in no mean" in ran.out
    assert "No space left" in ran.out


def test_an_option_that_the_environment_does_not_know_is_the_callers_mistake(envgym, memory):
    ran = envgym("collect", "memory", "--agent", "player", "-n", "3", "--env-option", "no_such=1")
    assert ran.code == 2
    assert "no_such" in ran.err


def test_show_makes_control_characters_visible_and_cuts_the_middle():
    assert visible("a\x1b[2Jb\x07\u202ec\nd") == "a\\x1b[2Jb\\x07\\x202ec\nd"
    assert visible("x" * 10, 4) == "xx [... 6 characters ...] xx"


def test_show_names_tokens_failures_and_forks(envgym, tmp_path, memory_episodes):
    path = tmp_path / "episodes"
    with StoreWriter(path) as writer:
        for episode in memory_episodes:
            writer.append(episode)
    listed = envgym("show", str(path)).out
    assert "FAILED environment: EnvironmentFailure" in listed
    assert "  root/0" in listed
    assert "sampled id (log p): " in envgym("show", str(path), "--episode", "root", "--turn", "0").out
    assert "forked from root after turn 1" in envgym("show", str(path), "--episode", "root/0").out


def _stored(path, episodes):
    with StoreWriter(path) as writer:
        for episode in episodes:
            writer.extend([episode])


def test_the_limit_of_a_list_holds_for_json_too(envgym, tmp_path, memory_episodes):
    path = tmp_path / "episodes"
    many = [replace(memory_episodes[0], id=f"e{number}") for number in range(120)]
    _stored(path, many)
    assert len(envgym("show", str(path), "--limit", "1", "--json").out.splitlines()) == 1
    assert len(envgym("show", str(path), "--json").out.splitlines()) == 120
    assert envgym("show", str(path)).out.splitlines()[-1] == "... and 20 more that ended (--limit)"


def test_show_lists_what_is_whole_and_names_what_is_damaged(envgym, tmp_path, memory_episodes):
    path = tmp_path / "episodes"
    _stored(path, [replace(memory_episodes[0], id=f"e{number}") for number in range(4)])
    victim = sorted(path.glob("shards/*/turns.arrow"))[1]
    content = victim.read_bytes()
    victim.write_bytes(content.replace(b"agent", b"tenga"))
    ran = envgym("show", str(path))
    assert ran.code == 1
    assert [line.split()[1] for line in ran.out.splitlines()[1:]] == ["e0", "e2", "e3"]
    assert ran.err.count("\n") == 1
    assert f"{victim}, record batch 0 (rows 0 to " in ran.err
    assert "(held e1): checksum" in ran.err
    assert "e2" in envgym("show", str(path), "--episode", "e2").out
    ran = envgym("show", str(path), "--episode", "1")
    assert (ran.code, str(victim) in ran.err) == (1, True)
    for number in range(20):
        folder = path / "shards" / f"{90 + number:08d}"
        folder.mkdir()
    ran = envgym("show", str(path))
    assert (ran.code, ran.err.count("\n")) == (1, 11)
    assert "11 more places are damaged" in ran.err


def test_show_tells_how_many_are_unfinished(envgym, tmp_path, memory_episodes):
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(memory_episodes[0])
        writer.begin(Began.of(replace(memory_episodes[0], id="open")))
    ran = envgym("show", str(tmp_path / "s"))
    assert (ran.code, ran.err.startswith("envgym: 1 others began and did not end")) == (0, True)
    ran = envgym("show", str(tmp_path / "s"), "--episode", "open")
    assert (ran.code, "where it is unfinished" in ran.err) == (2, True)


def test_show_says_that_something_is_no_store(envgym, tmp_path):
    (tmp_path / "hello").write_text("hello")
    for path in (tmp_path / "hello", tmp_path):
        ran = envgym("show", str(path))
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "is no store" in ran.err


def test_a_message_of_many_lines_is_one_row_of_the_list(envgym, tmp_path, memory_episodes):
    path, broken = tmp_path / "episodes", memory_episodes[-1]
    failure = broken.failure.model_copy(update={"message": "first\nsecond"})
    _stored(path, [replace(broken, failure=failure)])
    listed = envgym("show", str(path)).out
    assert (listed.count("\n"), "first" in listed, "second" in listed) == (2, True, False)
    assert "second" in envgym("show", str(path), "--episode", "0").out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guess", "memory"])
def test_check_passes_an_environment_that_keeps_the_contract(envgym, memory, name):
    ran = envgym("check", name)
    assert (ran.code, ran.err) == (0, "")
    assert f"{name}: the contract is kept" in ran.out


def test_check_says_which_sentence_is_broken(envgym, forgetful):
    ran = envgym("check", "forgetful")
    assert ran.code == 1
    assert ran.out.startswith("forgetful: broken: ")


def test_check_tells_scripts_what_it_found_and_takes_options_of_the_task_set(envgym, forgetful, memory, tmp_path):
    ran = envgym("check", "guess", "--task-option", "count=3", "--task", "2", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["broken"]) == (0, None)
    assert "tasks as data" in found["kept"]
    assert envgym("check", "guess", "--task-option", "count=3", "--task", "3").code == 2
    ran = envgym("check", "forgetful", "--json")
    assert (ran.code, json.loads(ran.out)["kind"]) == (1, "environment")
    assert json.loads(ran.out)["broken"]
    ran = envgym("check", "local", "--task-option", "count=3")
    assert ran.code == 2
    assert "are for environments" in ran.err


def _patient(task: Task) -> Guess:
    """A guessing game that can be won without thinking."""
    return Guess(task.model_copy(update={"metadata": {**task.metadata, "tries": 200}}))


def test_check_audits_an_environment_by_its_cheats_and_fails_when_one_gains(envgym):
    win = Cheat(
        "knows", "reading", "says every number", lambda task: [Action.say(f"guess {n}") for n in range(1, 200)]
    )
    lose = Cheat("silent", "silence", "says nothing of use", lambda task: [Action.say("") for _ in range(20)])
    idle = replace(lose, name="idle")
    for others, code in (((lose,), 0), ((lose, win), 1)):
        listed = (idle, *others)
        register(
            "environments", "leaky", replace(GUESS, name="leaky", make=_patient, cheats=lambda all=listed: all)
        )
        try:
            ran = envgym("check", "leaky")
            assert (ran.code, "leak audit: " in ran.out) == (code, True)
            assert ("GAINS" in ran.out) == bool(code)
            found = json.loads(envgym("check", "leaky", "--json", "--cheats", "2").out)["audit"]
            assert [row["gains"] for row in found] == [False, bool(code)][: len(others)] * 2
            assert "leaky: 1 of them did nothing" in ran.out
            assert [row["still"] for row in found] == [True, False][: len(others)] * 2
            assert "leak audit" not in envgym("check", "leaky", "--cheats", "0").out
        finally:
            unregister("environments", "leaky")


def test_check_reads_task_files(envgym, tmp_path):
    good = tmp_path / "tasks.jsonl"
    tasks = [Task(id=str(number), prompt=f"task {number}") for number in range(3)]
    lines = [task.model_dump_json() for task in tasks]
    good.write_text("\n".join(['{"format": "some header"}', *lines]) + "\n")
    assert envgym("check", str(good)).out == f"  3 tasks as data: kept\n{good}: the contract is kept\n"
    twice = tmp_path / "twice.jsonl"
    twice.write_text("\n".join([*lines, lines[0]]) + "\n")
    ran = envgym("check", str(twice))
    assert ran.code == 1
    assert "task ids are unique" in ran.out
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(lines[0] + '\n{"id": 3}\n')
    assert "line 2 is a task as JSON" in envgym("check", str(damaged)).out


def _with_header(lines: list[str], digest: str | None = None) -> str:
    body = "".join(line + "\n" for line in lines)
    digest = digest or hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return json.dumps({"format": "any", "count": len(lines), "digest": digest}) + "\n" + body


def test_check_holds_a_task_file_to_what_its_header_promises(envgym, tmp_path):
    lines = [Task(id=str(number), prompt=f"task {number}").model_dump_json() for number in range(3)]
    whole, path = _with_header(lines), tmp_path / "tasks.jsonl"
    path.write_text(whole)
    assert envgym("check", str(path)).out.splitlines()[1:3] == [
        "  the header's count: kept",
        "  the header's digest: kept",
    ]
    path.write_text(_with_header(lines, "f" * 64))
    ran = envgym("check", str(path))
    assert (ran.code, "not reached: the header's digest" in ran.out) == (0, True)
    for damaged, said in (
        (whole.removesuffix(lines[2] + "\n"), "2 task lines, but line 1 announces 3"),
        (whole.replace("task 1", "task one"), "it was changed by hand"),
    ):
        path.write_text(damaged)
        ran = envgym("check", str(path))
        assert (ran.code, said in ran.out, ran.out.count("\n")) == (1, True, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": 3, "prompt": "p"}', "id = 3: Input should be a valid string"),
        ('{"id": "a", "prompt": "p", "split": 7, "seeed": 1}', "there is no field 'seeed'"),
        ("5", "value = 5: "),
        ('{"id": "a"' + " " * 900, "Invalid JSON"),
    ],
)
def test_check_names_file_line_field_and_value_of_what_is_no_task_in_one_line(envgym, tmp_path, line, said):
    good, path = Task(id="t", prompt="p").model_dump_json(), tmp_path / "tasks.jsonl"
    for number, lines in enumerate(([line, good], [good, line]), 1):
        path.write_text("\n".join(lines) + "\n")
        ran = envgym("check", str(path))
        assert (ran.code, ran.err, ran.out.count("\n")) == (1, "", 1)
        assert f"{path}, line {number} is a task as JSON: " in ran.out
        assert said in ran.out
        assert "pydantic" not in ran.out
        assert len(ran.out) < 500


def test_reap_says_what_it_removed(envgym):
    removed = json.loads(envgym("reap", "--json").out)
    assert set(removed) == set(names("sandboxes"))


OWNER = """
import asyncio, os, signal, sys
from envgym import World, make_backend

async def main():
    async with make_backend("local", root=sys.argv[1]) as backend, await backend.create(World()) as sandbox:
        await sandbox.exec("echo here > f")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
def test_reap_looks_where_it_is_told(envgym, tmp_path):
    """What a killed owner left under a root of its own."""
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        command = [sys.executable, "-c", OWNER, str(root)]
        killed = subprocess.run(command, check=False, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert len(list(root.iterdir())) == 1
    assert str(tmp_path) not in envgym("reap").out, "the default place is another one"
    told = ("reap", "--json", "--root", str(roots[0]), "--root", str(roots[1]))
    removed = json.loads(envgym(*told).out)
    assert {"local", "landlock", "namespace"} <= set(removed)
    assert not {"pool", "remote"} & set(removed), "these have no root"
    lines = [line for lines in removed.values() for line in lines]
    for root in roots:
        assert sum(f"directory {root}/" in line for line in lines) == 1
        assert list(root.iterdir()) == []
    assert not any(json.loads(envgym(*told).out).values()), "and then there is nothing"


@pytest.mark.parametrize(
    "command",
    [
        ["collect", "sql", "--agent", "sql-expert", "-n", "1"],
        ["check", "sql"],
        ["synthesize", "sql", "--out", "made.jsonl"],
    ],
    ids=lambda words: words[0],
)
def test_an_option_of_another_kind_is_told_by_its_name_before_anything_runs(envgym, command: list[str]) -> None:
    for option, said in (
        ("looks=many", "--env-option.looks = 'many': it must be a whole number"),
        ("lok=3", "--env-option.lok = 3: there is no such option; did you mean 'looks'?"),
    ):
        ran = envgym(*command, "--env-option", option)
        assert (ran.code, said in ran.err) == (2, True), ran
