"""Law o: a torn write loses at most the record being written; damage is named, and hides and changes nothing
else.
"""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from envgym.env import Step, StopReason
from envgym.episode import Began, Episode, Turn
from envgym.errors import StoreCorrupt
from envgym.messages import Message
from envgym.store import Damage, StoreReader, StoreWriter
from envgym.store.folder import Places, parts
from envgym.store.log import read_log
from envgym.store.records import Ended, Record, Turned, encode
from envgym.store.unfolding import Unfolding
from envgym.testing.strategies import episodes

relaxed = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
several = st.lists(episodes(), min_size=1, max_size=4).map(
    lambda found: [replace(one, id=f"{number}{one.id}", parent=None) for number, one in enumerate(found)]
)


def plain(name: str, turns: int = 2) -> Episode:
    ids = np.arange(50, dtype=np.int32)
    own = tuple(
        Turn("agent", (Message(role="assistant", content=f"{name}{number}"),), Step(reward=1.0), ids[:0], ids,
             ids.astype(np.float32), position=50 * number)
        for number in range(turns)
    )  # fmt: skip
    return Episode(id=name, task_id="t", root=Step(), turns=own, seed=0, stop=StopReason.GOAL)


def the_log(path: Path) -> Path:
    (found,) = (path / "logs").glob("*.log")
    return found


def fresh(folder: Path) -> Path:
    return folder / f"store{len(list(folder.iterdir()))}"


@pytest.mark.slow
@relaxed
@given(several, st.integers(1, 10**6))
def test_a_log_that_was_cut_off_anywhere_loses_what_was_behind_the_cut(
    tmp_path: Path, written: list[Episode], cut: int
) -> None:
    path = fresh(tmp_path)
    writer, sizes = StoreWriter(path), []
    for episode in written:
        writer.append(episode)
        sizes.append(writer._log.bytes)
    os.truncate(the_log(path), size := max(13, sizes[-1] - cut % sizes[-1]))
    whole = [episode for episode, end in zip(written, sizes, strict=True) if end <= size]
    with StoreReader(path) as reader:
        assert list(reader) == whole
        assert reader.damage == []
    writer._worker.shutdown()
    os.close(writer._lock)
    with StoreWriter(path) as again:  # goes on, and may store what was lost anew
        for episode in written[len(whole) :]:
            again.append(episode)
    assert list(StoreReader(path)) == written


@pytest.mark.slow
@relaxed
@given(several, st.sampled_from(["log", "hot", "cold"]), st.randoms(use_true_random=False))
def test_a_flipped_bit_is_named_and_hides_nothing_else(
    tmp_path: Path, written: list[Episode], kind: Literal["log", "hot", "cold"], chance: random.Random
) -> None:
    path = fresh(tmp_path)
    with StoreWriter(path) as writer:
        for episode in written:
            writer.append(episode)
            if kind != "log":  # a block for each
                writer._rotate()
        writer._wait()
        if kind == "cold":
            writer.compact()
        kept = tmp_path / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(path, kept)
    victims = [file for file in kept.rglob("*") if file.is_file() and file.stat().st_size and file.name != "lock"]
    victim = sorted(victims)[chance.randrange(len(victims))]
    content = bytearray(victim.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    victim.write_bytes(content)
    found = list(StoreReader(kept).scan())
    intact = [one for one in found if isinstance(one, Episode)]
    damage = [one for one in found if isinstance(one, Damage)]
    known = {episode.id: episode for episode in written}
    assert all(known[episode.id] == episode for episode in intact)
    assert damage, "whatever was flipped is told"
    if kind != "log":  # a block for each episode
        assert intact == [episode for episode in written if episode.id in {one.id for one in intact}]
        assert len(intact) >= len(written) - 1
    for one in damage:
        assert victim.parent in (one.path, one.path.parent) or one.path.name == "logs"


def test_damage_names_file_row_group_and_episodes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with StoreWriter(path) as writer:
        for number in range(3):
            writer.extend([plain(f"e{number}")])
        writer.compact("cold")
    file = next((path / "shards").glob("*/turns.parquet"))
    content = bytearray(file.read_bytes())
    (shard,) = parts(Places(path)).shards
    content[shard.blocks("turns")[1].at + 40] ^= 4
    file.write_bytes(content)
    reader = StoreReader(path)
    (damage,) = [one for one in reader.scan() if isinstance(one, Damage)]
    assert [episode.id for episode in reader.scan() if isinstance(episode, Episode)] == ["e0", "e2"]
    assert damage.lost == ("e1",)
    assert f"{file}, row group 1 (rows 2 to 3) (held e1): " in str(damage)
    with pytest.raises(StoreCorrupt, match="row group 1"):
        list(reader)
    with pytest.raises(StoreCorrupt, match="row group 1"):
        reader["e1"]
    assert reader["e2"] == plain("e2")
    with StoreWriter(path) as writer, pytest.raises(StoreCorrupt, match="row group 1"):
        writer.compact("hot")
    assert reader["e2"] == plain("e2"), "and nothing was removed"


def test_a_damaged_record_in_a_log_costs_its_episode_only_and_the_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s"
    writer = StoreWriter(path)
    places = []
    for name in ("a", "b", "c"):
        writer.append(plain(name))
        places.append(writer._log.bytes)
    writer._worker.shutdown()
    os.close(writer._lock)
    log = the_log(path)
    content = bytearray(log.read_bytes())
    content[places[0] + 400] ^= 1
    log.write_bytes(content)
    found = list(StoreReader(path).scan())
    assert [one.id for one in found if isinstance(one, Episode)] == ["a", "c"]
    damage = [str(one) for one in found if isinstance(one, Damage)]
    assert len(damage) == 2
    assert f"{log}, byte" in damage[0]
    assert "(held b)" in damage[1]
    with StoreWriter(path) as again:
        assert len(again) == 2
    assert [episode.id for episode in StoreReader(path)] == ["a", "c"]
    assert log.with_suffix(".damaged").read_bytes() == content


@pytest.mark.parametrize("text", ["notes of mine", "notes\nof mine", "\n"])
def test_what_is_no_log_is_named_so_and_kept(tmp_path: Path, text: str) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("a"))
    log = tmp_path / "s/logs/00000099.log"
    log.write_text(text)
    found = list(StoreReader(tmp_path / "s").scan())
    assert found[-1] == plain("a")
    assert "00000099.log, byte 0: not a log of a store: it begins with" in str(found[0])
    with StoreWriter(tmp_path / "s") as writer:
        assert len(writer) == 1
    assert log.with_suffix(".damaged").read_text() == text


def test_a_newer_schema_is_refused_with_a_reason(tmp_path: Path) -> None:
    import json

    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("a"))
    for about in (tmp_path / "s/shards").glob("*/shard*.json"):
        shard = json.loads(about.read_text())["shard"] | {"schema": 99}
        about.write_text(
            json.dumps({"xxh3": xxh3_64_intdigest(json.dumps(shard, sort_keys=True).encode()), "shard": shard})
        )
    assert "schema 99" in str(StoreReader(tmp_path / "s").damage[0])
    with pytest.raises(StoreCorrupt, match="nothing is appended"):
        StoreWriter(tmp_path / "s")


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_leaves_no_half_record(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from envgym.store import StoreWriter
sys.path.insert(0, sys.argv[2])
from test_store_damage import plain
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with StoreWriter(sys.argv[1]) as writer:
    writer.append(plain("a"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer._log.bytes + 500, resource.RLIM_INFINITY))
    try:
        writer.append(plain("b"))
    except OSError as error:
        print(error.filename)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    writer.append(plain("c"))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "s"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().startswith(str(tmp_path / "s/logs"))
    reader = StoreReader(tmp_path / "s")
    assert list(reader) == [plain("a"), plain("c")]
    assert reader.damage == []


FULL = """
import resource, signal, sys
from pathlib import Path
from envgym.episode import Began
from envgym.store import StoreWriter
sys.path.insert(0, sys.argv[2])
from test_store_damage import plain
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with StoreWriter(sys.argv[1], log_bytes=1) as writer:
    writer.begin(Began.of(plain("open")))
    writer.turn("open", 0, plain("open").turns[0])
    writer.append(plain("a"))
    before = {path.name: path.read_bytes() for path in Path(sys.argv[1], "logs").iterdir()}
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
    try:
        writer.append(plain("b"))  # a new log is due, and what is open does not fit into it
    except OSError as error:
        print(error.filename)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert before == {path.name: path.read_bytes() for path in Path(sys.argv[1], "logs").iterdir()}
    assert "b" not in writer
    writer.append(plain("b"))
    writer.turn("open", 1, plain("open").turns[1])
    writer.append(plain("open"))
"""


@pytest.mark.slow
def test_a_disk_that_is_full_when_a_new_log_is_due_costs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "s"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(tmp_path / "s/logs"))
    with StoreReader(tmp_path / "s") as reader:
        assert sorted(one.id for one in reader) == ["a", "b", "open"]
        assert not reader.unfinished


WRITER = """
import sys
from pathlib import Path
from collections.abc import Callable
from dataclasses import replace
from envgym.env import Grade
from envgym.episode import Began
from envgym.store import StoreWriter
sys.path.insert(0, sys.argv[2])
from test_store_damage import plain
grade = Grade(grader="late", version="1", channels={"reward": 1.0})
with StoreWriter(sys.argv[1], log_bytes=4000, sync_s=0.01) as writer:
    print("open", flush=True)
    for number in range(len(writer), 10**6):
        episode = plain(f"e{number:06d}", number % 4)
        for attempt in range(1 + number % 2):
            writer.begin(Began.of(episode))
            for index, turn in enumerate(episode.turns):
                writer.turn(episode.id, index, turn)
                print("turn", episode.id, index, flush=True)
        writer.append(episode)
        print("ended", episode.id, flush=True)
        if number % 3 == 0:
            writer.grade(episode.id, grade)
            print("graded", episode.id, flush=True)
        if number % 50 == 49:
            writer.compact("cold")
"""


def killed_at_random(path: Path, chance: random.Random) -> dict[str, set[str]]:
    """What a writer said that it had done before it was killed."""
    command = [sys.executable, "-u", "-c", WRITER, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        for _ in range(chance.randrange(400)):
            said.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    found: dict[str, set[str]] = {"ended": set(), "graded": set(), "turn": set()}
    for line in said:
        kind, _, rest = line.strip().partition(" ")
        if kind in found and line.endswith("\n"):
            found[kind].add(rest)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_writer_killed_at_any_moment_loses_nothing_it_said_and_stores_nothing_twice(tmp_path: Path) -> None:
    chance, path = random.Random(7), tmp_path / "s"
    ended, graded = set[str](), set[str]()
    for _ in range(12):
        said = killed_at_random(path, chance)
        ended |= said["ended"]
        graded |= said["graded"]
        with StoreReader(path) as reader:
            assert reader.damage == []
            assert ended <= set(reader.ids)
            assert len(reader.ids) == len(set(reader.ids)) == reader.table("episodes").num_rows
            for episode in reader:
                assert episode.turns == plain(episode.id, int(episode.id[1:]) % 4).turns
                assert len(episode.grades) <= 1, "a grade counts once"
                assert episode.id not in graded or episode.grades
            for line in said["turn"]:
                name, index = line.split()
                turns = reader[name].turns if name in reader else reader.unfinished[name].turns
                assert len(turns) > int(index) or name in reader.unfinished
        assert len(list((path / "shards").glob(".*"))) <= 1, "what the last writer left goes with the next one"
    assert len(ended) > 100


def test_reading_goes_on_behind_the_last_whole_record(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    writer.begin(Began.of(plain("a")))
    log = the_log(tmp_path / "s")
    ((first, after),) = list(read_log(log))
    assert first == Began.of(plain("a"))
    writer.turn("a", 0, plain("a").turns[0])
    ((second, _),) = list(read_log(log, after))
    assert getattr(second, "index", None) == 0
    writer.close()
    assert StoreReader(tmp_path / "s").unfinished["a"].turns == [plain("a").turns[0]]


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.data())
def test_a_record_that_is_lost_never_makes_one_episode_of_two_attempts(
    attempts: int, before: int, own: int, ended: bool, data: st.DataObject
) -> None:
    whole = plain("e", own)
    records: list[Record] = []
    for attempt in range(attempts + 1):
        last = attempt == attempts
        turns = plain(f"try{attempt}", before).turns if not last else whole.turns
        records.append(replace(Began.of(whole), attempt=attempt))
        records += [Turned("e", index, turn, attempt) for index, turn in enumerate(turns)]
    records += [Ended.of(whole, attempts)] if ended else []
    lost = data.draw(st.integers(0, len(records) - 1))
    state = Unfolding()
    for place, record in enumerate(records):
        if place != lost:
            state.take(record)
    if "e" in state.ended:
        assert state.ended["e"] == whole
    if "e" in state.open:
        of = state.open["e"].began.attempt
        turns = plain(f"try{of}", before).turns if of < attempts else whole.turns
        assert tuple(state.open["e"].turns) == turns[: len(state.open["e"].turns)]
    assert ("e" in state.ended) + ("e" in state.open) + ("e" in state.broken) == 1


def test_an_attempt_whose_beginning_is_damaged_is_damage_and_may_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    writer = StoreWriter(path)
    places = []
    for turns in (plain("first", 1).turns, plain("e").turns):
        writer.begin(Began.of(plain("e")))
        places.append(writer._log.bytes)
        for index, turn in enumerate(turns):
            writer.turn("e", index, turn)
    writer._worker.shutdown()
    os.close(writer._lock)
    log = the_log(path)
    content = bytearray(log.read_bytes())
    content[places[1] - 3] ^= 1
    log.write_bytes(content)
    with StoreReader(path) as reader:
        assert not reader.unfinished
        assert "(held e): the beginning of its attempt 1 is lost" in str(reader.damage[-1])
    with StoreWriter(path) as again:
        again.append(plain("e"))
    with StoreReader(path) as reader:
        assert reader["e"] == plain("e")


def test_records_of_a_log_of_before_attempts_were_told_count_as_they_come() -> None:
    state = Unfolding()
    for record in (Began.of(plain("e")), *(Turned("e", n, one) for n, one in enumerate(plain("e").turns))):
        state.take(record)
    state.take(Ended.of(plain("e")))
    assert state.ended == {"e": plain("e")}


@pytest.mark.parametrize("of", ["length", "check", "checksum", "payload"])
def test_a_flipped_bit_of_the_last_record_never_passes_for_a_torn_write(tmp_path: Path, of: str) -> None:
    path = tmp_path / "s"
    writer = StoreWriter(path)
    writer.begin(Began.of(plain("e")))
    last = writer._log.bytes
    writer.turn("e", 0, plain("e").turns[0])
    writer._worker.shutdown()
    os.close(writer._lock)
    log = the_log(path)
    content = log.read_bytes()
    first, count = {"length": (0, 32), "check": (32, 32), "checksum": (64, 64), "payload": (128, 64)}[of]
    for bit in range(first, first + count):
        damaged = bytearray(content)
        damaged[last + bit // 8] ^= 1 << bit % 8
        log.write_bytes(damaged)
        *_, (found, _) = read_log(log)
        assert isinstance(found, Damage)
        assert not found.torn
        with StoreReader(path) as reader:
            assert str(found) in [str(one) for one in reader.damage]
    with StoreWriter(path):
        pass
    assert log.with_suffix(".damaged").read_bytes() == damaged


def test_a_record_that_is_cut_off_anywhere_is_torn(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.begin(Began.of(plain("e")))
        last = writer._log.bytes
        writer.turn("e", 0, plain("e").turns[0])
        writer.sync()
        content = the_log(tmp_path / "s").read_bytes()
    for size in range(last + 1, len(content)):
        (tmp_path / "log").write_bytes(content[:size])
        *_, (found, _) = read_log(tmp_path / "log")
        assert isinstance(found, Damage)
        assert found.torn


def test_logs_of_version_1_are_read_and_their_damage_is_told(tmp_path: Path) -> None:
    old = tmp_path / "old"
    payloads = [encode(one) for one in (Began.of(plain("e")), Turned("e", 0, plain("e").turns[0]))]
    framed = [struct.pack("<IQ", len(one), xxh3_64_intdigest(one)) + one for one in payloads]
    old.write_bytes(b"envgym-log 1\n" + b"".join(framed))
    first, second = (record for record, _ in read_log(old))
    assert (first, second) == (Began.of(plain("e")), Turned("e", 0, plain("e").turns[0]))
    content = bytearray(old.read_bytes())
    content[40] ^= 1
    old.write_bytes(content)
    found, again = (record for record, _ in read_log(old))
    assert isinstance(found, Damage)
    assert again == second
    old.write_bytes(b"envgym-log 1\n" + framed[0] + framed[1][:-1])
    _, found = (record for record, _ in read_log(old))
    assert isinstance(found, Damage)
    assert found.torn


def two_shards(path: Path, kind: Literal["hot", "cold"]) -> None:
    """Episodes e0 to e5 in blocks of one, in one cold shard or six hot ones."""
    with StoreWriter(path) as writer:
        for number in range(6):
            writer.extend([plain(f"e{number}")])
        if kind == "cold":
            writer.compact("cold")


def spoil(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)


EVERYTHING: tuple[Callable[[StoreReader], object], ...] = (
    list,
    lambda reader: list(reader.edges()),
    lambda reader: list(reader.groups()),
    lambda reader: reader.table("episodes"),
    lambda reader: reader.tokens(),
)


@pytest.mark.parametrize("kind", ["hot", "cold"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_table_of_episodes_never_passes_as_fewer_episodes(
    tmp_path: Path, kind: Literal["hot", "cold"], how: str
) -> None:
    path = tmp_path / "s"
    two_shards(path, kind)
    shard = parts(Places(path)).shards[0]
    file = shard.path("episodes")
    if how == "gone":
        file.unlink()
    elif how == "cut":
        os.truncate(file, shard.blocks("episodes")[0].at + 20)
    else:
        spoil(file, shard.blocks("episodes")[0].at + 40)
    with StoreReader(path) as reader:
        for use in EVERYTHING:
            with pytest.raises(StoreCorrupt, match=r"data filter .* --damaged --out OTHER") as told:
                use(reader)
            assert str(file) in str(told.value)
        lost = 1 if kind == "hot" or how == "flipped" else 6
        assert sum(one.episodes for one in reader.damage) == lost
    with StoreReader(path, leave_out=True) as reader:
        assert list(reader.ids) == [f"e{number}" for number in range(lost, 6)]
        assert len(list(reader)) == len(list(reader.groups())) == reader.table("episodes").num_rows == 6 - lost


@pytest.mark.parametrize("kind", ["hot", "cold"])
def test_a_missing_file_of_a_shard_is_named_and_costs_that_shard_only(
    tmp_path: Path, kind: Literal["hot", "cold"]
) -> None:
    path = tmp_path / "s"
    two_shards(path, kind)
    file = parts(Places(path)).shards[0].path("turns")
    file.unlink()
    with StoreReader(path) as reader:
        damage = [one for one in reader.scan() if isinstance(one, Damage)]
        assert {one.path for one in damage} == {file}
        assert all("No such file" in one.why for one in damage)
        with pytest.raises(StoreCorrupt, match="No such file"):
            list(reader)
    lost = 1 if kind == "hot" else 6
    with StoreReader(path, leave_out=True) as reader:
        assert [one.id for one in reader] == [f"e{number}" for number in range(lost, 6)]
        assert sum(one.episodes for one in reader.damage) == lost
        assert reader.table("turns").num_rows == 2 * (6 - lost)
        assert len(reader.tokens()) == 6 - lost


@pytest.mark.slow
@relaxed
@given(several, st.sampled_from(["hot", "cold"]), st.randoms(use_true_random=False))
def test_what_is_left_without_damage_is_what_a_store_of_the_rest_would_hold(
    tmp_path: Path, written: list[Episode], kind: Literal["hot", "cold"], chance: random.Random
) -> None:
    path = fresh(tmp_path)
    with StoreWriter(path) as writer:
        for episode in written:
            writer.extend([episode])
        if kind == "cold":
            writer.compact("cold")
    files = sorted(
        file for file in path.rglob("*") if file.suffix in (".arrow", ".parquet") and file.stat().st_size
    )
    victim = files[chance.randrange(len(files))]
    spoil(victim, chance.randrange(victim.stat().st_size))
    with StoreReader(path, leave_out=True) as reader:
        intact = [one for one in StoreReader(path).scan() if isinstance(one, Episode)]
        assert list(reader) == intact
        assert list(reader.ids) == [one.id for one in intact]
        assert len(written) - len(intact) == sum(one.episodes for one in reader.damage)
        table = reader.table("episodes", ["turns"]).column(0).to_pylist()
        assert table == [len(one.turns) for one in intact]
        assert reader.table("turns").num_rows == sum(table)


@pytest.mark.parametrize("name", ["shard.json", "shard.copy.json"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_damaged_twin_is_told_and_written_anew_by_the_next_writer(tmp_path: Path, name: str, how: str) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("a"))
    (file,) = (tmp_path / "s").glob(f"shards/*/{name}")
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(content.replace(b"hot", b"hut"))
    with StoreReader(tmp_path / "s") as reader:
        (damage,) = [one for one in reader.scan() if isinstance(one, Damage)]
        assert str(file) in str(damage)
        assert "its copy is whole" in str(damage)
        assert list(reader) == [plain("a")], "and it stops nothing"
    with StoreWriter(tmp_path / "s"):
        pass
    assert file.read_bytes() == content
    assert [one for one in StoreReader(tmp_path / "s").scan() if isinstance(one, Damage)] == []


@pytest.mark.parametrize("kind", ["hot", "cold"])
@pytest.mark.parametrize("table", ["episodes", "turns", "grades"])
@pytest.mark.parametrize("at", [1, -1, -20])
def test_what_only_other_tools_read_of_a_file_is_told_when_damaged_and_mended_by_compaction(
    tmp_path: Path, kind: Literal["hot", "cold"], table: str, at: int
) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("a"))
        writer.compact(kind)
    (file,) = (tmp_path / "s").glob(f"shards/*/{table}.{'arrow' if kind == 'hot' else 'parquet'}")
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with StoreReader(tmp_path / "s") as reader:
        (damage,) = [one for one in reader.scan() if isinstance(one, Damage)]
        assert damage.path == file
        whole = at == 1 and kind == "cold" and table != "grades"  # the magic of Parquet is in its first block
        assert whole or "envgym data compact writes it anew" in str(damage)
        assert whole or list(reader) == [plain("a")]
    if not whole:
        with StoreWriter(tmp_path / "s") as writer:
            writer.compact(kind)
        assert list(StoreReader(tmp_path / "s").scan()) == [plain("a")]


def test_a_damaged_copy_of_a_footer_hides_nothing_and_is_told(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as writer:
        writer.append(plain("a"))
        writer.compact("cold")
    for how in (lambda file: file.write_bytes(b"x" + file.read_bytes()[1:]), Path.unlink):
        for file in (tmp_path / "s").glob("shards/*/*.footer"):
            how(file)
        with StoreReader(tmp_path / "s") as reader:
            assert list(reader) == [plain("a")]
            assert sum(".footer" in str(one) for one in reader.scan()) == 3
    (file,) = (tmp_path / "s").glob("shards/*/turns.parquet")
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        list(StoreReader(tmp_path / "s"))
