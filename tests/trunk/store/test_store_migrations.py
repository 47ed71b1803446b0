"""Stores of every schema there was are read by today's code, each as it was written."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.episode import Episode
from envgym.episode_json import episode_to_json
from envgym.store import StoreReader, StoreWriter
from envgym.store.columns import episodes_batch, grades_batch, turns_batch
from envgym.store.folder import Places, parts
from envgym.store.migrations import MIGRATIONS, migrated
from envgym.store.schema import SCHEMA_VERSION, SCHEMAS, TURNS, as_map
from envgym.store.shard import Shard
from envgym.testing.strategies import episodes

WRITTEN = Path(__file__).with_name("written")
"""written/schemaN: a hot shard, a cold one and a log with an unfinished episode, as version N wrote them;
schemaN.json: what they hold, in the words of that version. A new schema gets a folder of its own; none is ever
written again."""


@pytest.mark.parametrize("schema", range(1, SCHEMA_VERSION + 1))
def test_a_store_of_an_earlier_schema_is_read_and_gone_on_with(tmp_path: Path, schema: int) -> None:
    store = tmp_path / "s"
    shutil.copytree(WRITTEN / f"schema{schema}", store)
    want = json.loads((WRITTEN / f"schema{schema}.json").read_text())
    with StoreReader(store) as reader:
        assert reader.damage == []
        assert [_as_told(one, schema) for one in reader] == want["ended"]
        assert {name: len(found.turns) for name, found in reader.unfinished.items()} == want["unfinished"]
        assert {shard.about.schema for shard in _shards(store)} == {schema}
    with StoreWriter(store) as writer:
        writer.compact("hot")
    with StoreReader(store) as reader:
        assert [_as_told(one, schema) for one in reader] == want["ended"]
        assert {shard.about.schema for shard in _shards(store)} == {SCHEMA_VERSION}


def _as_told(episode: Episode, schema: int) -> Any:
    """An episode in the words that a schema had; it knows nothing that came later."""
    told = json.loads(json.dumps(episode_to_json(episode)))
    for turn in told["turns"]:
        if schema < 2:
            assert turn.pop("roles") == []
    return told


def _shards(store: Path) -> list[Shard]:

    return parts(Places(store)).shards


def test_steps_from_version_to_version_are_taken_in_order() -> None:
    today = turns_batch([])
    first = SCHEMA_VERSION - 2
    old = today.drop_columns(["act_s", "step_s"]).append_column("took_ms", pa.array([], pa.float64()))

    def rename(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = ["act_ms" if name == "took_ms" else name for name in batch.schema.names]
        return batch.rename_columns(names)

    def seconds(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns(["act_s" if name == "act_ms" else name for name in batch.schema.names])

    steps = {("turns", first): rename, ("turns", first + 1): seconds}
    assert migrated("turns", old, first, migrations=steps).schema.equals(TURNS)


def test_a_column_that_came_is_null_and_one_that_went_is_left_out() -> None:
    rows = StoreReader(WRITTEN / "schema1").table("turns").to_batches()[0]
    old = rows.drop_columns(["error", "act_s"]).append_column("gone", pa.nulls(rows.num_rows))
    new = migrated("turns", old, SCHEMA_VERSION - 1, migrations={})
    assert new.schema.equals(TURNS)
    assert new.column("act_s").null_count == rows.num_rows
    assert new.column("sampled_ids").equals(rows.column("sampled_ids"))


def test_there_is_a_fixture_for_every_schema() -> None:
    assert [path.name for path in sorted(WRITTEN.iterdir()) if path.is_dir()] == [
        f"schema{number}" for number in range(1, SCHEMA_VERSION + 1)
    ]
    assert all(
        table in ("turns", "episodes", "grades") and 0 < version < SCHEMA_VERSION for table, version in MIGRATIONS
    )


def _with_maps(array: pa.Array) -> pa.Array:
    """An array as schema 2 had it: maps in the place of lists of pairs."""
    kind, mask = array.type, array.is_null() if array.null_count else None
    if pa.types.is_list(kind):
        inner = array.values
        if pa.types.is_struct(inner.type) and [field.name for field in inner.type] == ["key", "value"]:
            return as_map(array)
        return pa.ListArray.from_arrays(array.offsets, _with_maps(inner), mask=mask)
    if pa.types.is_struct(kind):
        fields = [_with_maps(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, names=[field.name for field in kind], mask=mask)
    return array


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(episodes(), max_size=4))
def test_what_schema_2_kept_in_maps_is_the_same_in_lists_of_pairs(written: list[Episode]) -> None:
    grades = [(one.id, grade) for one in written for grade in one.grades]
    today = {"turns": turns_batch(written), "episodes": episodes_batch(written), "grades": grades_batch(grades)}
    for table, batch in today.items():
        columns = [_with_maps(column) for column in batch.columns]
        old = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        assert any("map<" in str(field.type) for field in old.schema)
        new = migrated(table, old, 2)
        new.validate(full=True)
        assert new.schema.equals(batch.schema)
        assert new.equals(batch)


def test_the_store_is_read_by_tools_that_do_not_know_it(tmp_path: Path) -> None:
    store = tmp_path / "s"
    shutil.copytree(WRITTEN / f"schema{SCHEMA_VERSION}", store)
    with StoreWriter(store) as writer:
        writer.compact("cold")
    with StoreReader(store) as reader:
        want = [reader.table(table).to_pylist() for table in ("turns", "episodes")]
    files = [str(store / f"shards/*/{table}.parquet") for table in ("turns", "episodes")]
    assert "map<" not in str([*SCHEMAS.values()])
    readers: dict[str, Callable[[Any, str], Any]] = {
        "polars": lambda polars, path: polars.read_parquet(path).to_dicts(),
        "duckdb": lambda duckdb, path: duckdb.sql(f"select * from '{path}'").to_arrow_table().to_pylist(),
    }
    for name, read in readers.items():
        if find_spec(name) is not None:
            assert [read(import_module(name), path) for path in files] == want, name


@pytest.mark.slow
def test_the_store_is_read_by_datasets_hot_and_cold(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    store = tmp_path / "s"
    shutil.copytree(WRITTEN / f"schema{SCHEMA_VERSION}", store)
    for kind, builder, ending in (("hot", "arrow", "arrow"), ("cold", "parquet", "parquet")):
        with StoreWriter(store) as writer:
            writer.compact(kind)
        for table in ("turns", "episodes"):
            want = StoreReader(store).table(table).to_pylist()
            files, cache = str(store / f"shards/*/{table}.{ending}"), str(tmp_path / f"cache-{kind}")
            found = datasets.load_dataset(builder, data_files=files, cache_dir=cache, split="train")
            assert found.to_list() == want
