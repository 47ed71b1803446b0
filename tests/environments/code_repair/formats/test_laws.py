"""Laws of every task format: nothing is lost unless it is listed, and what is read again is what was written."""

import importlib.util
import json
import string
from pathlib import Path

import pytest
from envgym_environments.code_repair.formats import export_records, import_records, task_format_named
from envgym_environments.code_repair.formats.contract import KEY
from envgym_environments.code_repair.formats.exchange import item_of, record_of
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.record import Attached, Origin, RepairRecord
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.worlds import image_world
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.formats.contract import Where

_spec = importlib.util.spec_from_file_location("shapes", Path(__file__).with_name("conftest.py"))
shapes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shapes)

NAMES = ("swe-bench", "swe-gym", "swe-smith", "r2e-gym", "multi-swe", "swe-rebench", "swe-bench-tasks", "harbor")
ITEMS = {**shapes.ROWS, **shapes.FOLDERS, "swe-bench 5": shapes.SWE_BENCH_5,
         "multi-swe typescript": shapes.MULTI_SWE_TS}  # fmt: skip
HERE = Where(Path("data.jsonl"), "line 1")

words = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12).filter(
    lambda word: word.strip(".") != "" and not word.startswith(".")
)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
ids = st.lists(
    st.one_of(words.map(lambda word: f"tests/test_{word}.py::test_{word}"), words, st.just("Test A > b [c d]")),
    max_size=4, unique=True,
).map(tuple)  # fmt: skip
patches = st.one_of(
    st.just(""),
    st.just(shapes.GOLD),
    st.just(shapes.GO),
    words.map(lambda word: shapes.GOLD.replace("small.py", f"{word}.py")),
)
suites = st.builds(
    Suite,
    language=st.sampled_from(["python", "go", "c++"]),
    build=st.lists(texts.filter(str.strip), max_size=2).map(tuple),
    test=st.one_of(texts.filter(bool), st.just("pytest {tests}")),
    reader=st.sampled_from(["pytest-log", "swebench-pytest", "exit-code"]),
    source=st.just(("**/*.py",)),
    timeout_s=st.floats(1, 1e6),
)
worlds = st.builds(
    image_world,
    words.map(lambda word: f"registry/{word}:latest"),
    words.map(lambda word: f"/work/{word}"),
    network=st.booleans(),
    env=st.dictionaries(words, texts, max_size=2),
)
files = st.lists(
    st.builds(
        Attached,
        role=st.sampled_from(["test", "solution", "build", "other"]),
        path=st.lists(words, min_size=1, max_size=3).map("/".join),
        data=st.just("aGVsbG8="),
        target=words,
        encoding=st.sampled_from(["utf-8", "base64"]),
        executable=st.booleans(),
    ),
    max_size=3, unique_by=lambda one: one.path,
).map(tuple)  # fmt: skip
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
origins = st.one_of(
    st.none(),
    st.builds(
        Origin, format=words, file=words, place=texts, digest=words, fields=st.dictionaries(words, json_values)
    ),
)
records = st.builds(
    RepairRecord,
    id=st.lists(words, min_size=1, max_size=3).map("/".join),
    statement=texts, repo=st.one_of(st.just(""), words, st.just("tiny/small")), version=texts, base_commit=words,
    language=st.sampled_from(["", "python", "go", "ruby"]), split=words, seed=st.integers(0, 9), created_at=texts,
    hints=texts, licence=texts, world=st.one_of(st.none(), worlds), suite=st.one_of(st.none(), suites),
    gold_patch=patches, bug_patch=patches, test_patch=patches, files=files, fail_to_pass=ids, pass_to_pass=ids,
    rules=st.builds(Rules, truncated=st.booleans(), skipped_keeps=st.booleans(), only_listed=st.booleans()),
    extra=st.dictionaries(words.map("x_{}".format), json_values, max_size=2),
    origin=origins,
)  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
def test_what_is_imported_and_exported_in_its_own_format_is_the_same_item(name):
    form = task_format_named(name.partition(" ")[0])
    record = record_of(form, ITEMS[name], HERE)
    item, lost = item_of(form, record)
    assert item == ITEMS[name]
    assert json.dumps(item, sort_keys=True) == json.dumps(ITEMS[name], sort_keys=True)
    assert lost == {}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(record=records)
def test_a_record_comes_back_from_every_format(name, record):
    form = task_format_named(name)
    item, _ = item_of(form, record)
    assert record_of(form, item, HERE) == record


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(record=records)
def test_without_the_extra_field_exactly_what_is_listed_is_lost(name, record):
    form = task_format_named(name)
    item, lost = item_of(form, record, extra=False)
    assert KEY not in item
    before, after = record.model_dump(mode="json"), record_of(form, item, HERE).model_dump(mode="json")
    changed = {field for field in before if before[field] != after[field]}
    assert changed == set(lost), "nothing is lost in silence, and nothing is listed that comes back"
    assert all(before[field] == lost[field] for field in lost)


@pytest.mark.parametrize("source", ITEMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_format_carries_every_other_without_loss(source, name):
    record = record_of(task_format_named(source.partition(" ")[0]), ITEMS[source], HERE)
    form = task_format_named(name)
    item, _ = item_of(form, record)
    back = record_of(form, item, HERE)
    assert back.model_copy(update={"origin": None}) == record.model_copy(update={"origin": None})
    if name != source.partition(" ")[0]:
        assert back.origin == record.origin


@settings(max_examples=30)
@given(record=records)
def test_a_record_is_its_task_and_the_task_the_record(record):
    try:
        task = record.to_task()
    except ValueError:
        return
    assert RepairRecord.from_task(task) == record
    assert type(task).model_validate_json(task.model_dump_json()) == task


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(kept=st.lists(records, max_size=3, unique_by=lambda record: record.id.replace("/", "__")))
def test_files_hold_what_items_hold(name, kept, tmp_path_factory):
    form = task_format_named(name)
    target = tmp_path_factory.mktemp("out") / ("set.jsonl" if form.kind == "rows" else "set")
    done = export_records(kept, target, name)
    assert (done.records, done.dropped) == (len(kept), ())
    if kept:
        found = import_records(target, name).records
        assert sorted(found, key=lambda one: one.id) == sorted(kept, key=lambda one: one.id)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("name", shapes.ROWS)
def test_rows_are_the_same_in_every_kind_of_file(name, suffix, tmp_path):
    form = task_format_named(name)
    record = record_of(form, shapes.ROWS[name], HERE)
    target = tmp_path / f"rows{suffix}"
    export_records([record], target, name)
    found = import_records(target)
    assert found.format == name, "the format is found from the data"
    same = {"origin": None}
    assert found.records[0].model_copy(update=same) == record.model_copy(update=same)


def test_an_edit_shows_and_the_rest_of_the_row_stays_as_it_was_spelled():
    form = task_format_named("swe-bench")
    row = {**shapes.SWE_BENCH, "version": 4.5, "FAIL_TO_PASS": '["a",  "b"]'}
    record = record_of(form, row, HERE)
    item, _ = item_of(form, record.model_copy(update={"hints": "other"}))
    assert {**row, "hints_text": "other"} == {name: value for name, value in item.items() if name != KEY}
    item, _ = item_of(form, record.model_copy(update={"fail_to_pass": ("c",)}))
    assert item["FAIL_TO_PASS"] == '["c"]'
    assert item["version"] == 4.5
