"""Packed rows as a Parquet file: what a trainer loads without our code."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from envgym.data.packed_rows import PackedRow
from envgym.whole import new_target

__all__ = ["PACKED", "write_packed"]

_LISTS = {
    "ids": pa.int32(), "roles": pa.int8(), "mask": pa.bool_(), "segment_ids": pa.int32(), "positions": pa.int32(),
    "logprobs": pa.float32(),
}  # fmt: skip
_CONTEXT = pa.struct([("episode", pa.string()), ("segment", pa.int32())])
PACKED = pa.schema([*((name, pa.list_(kind)) for name, kind in _LISTS.items()), ("contexts", pa.list_(_CONTEXT))])
"""The columns are the fields of `PackedRow`; every list of a file but `contexts` has one length."""

_AT_ONCE = 64


def write_packed(rows: Iterable[PackedRow], path: Path) -> tuple[int, int]:
    """Write rows to a Parquet file; how many, and of how many contexts. All of them, or no file (`new_target`).

    Some 64 rows are in memory at a time. Raises FileExistsError when there is one, FileNotFoundError where its
    folder is not.
    """
    count = contexts = 0
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be made: there is no folder {path.parent}")
    with (
        new_target(path) as part,
        part.open("wb") as file,
        pq.ParquetWriter(file, PACKED, compression="zstd") as writer,
    ):
        for batch in _batches(rows):
            writer.write_batch(_record(batch))
            count += len(batch)
            contexts += sum(len(row.contexts) for row in batch)
    return count, contexts


def _batches(rows: Iterable[PackedRow]) -> Iterator[list[PackedRow]]:
    batch: list[PackedRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _record(rows: list[PackedRow]) -> pa.RecordBatch:
    columns = [pa.array([getattr(row, name) for row in rows], pa.list_(kind)) for name, kind in _LISTS.items()]
    contexts = [[{"episode": _text(name), "segment": segment} for name, segment in row.contexts] for row in rows]
    return pa.RecordBatch.from_arrays([*columns, pa.array(contexts, PACKED.field("contexts").type)], schema=PACKED)


def _text(name: str) -> str:
    """A name as Arrow can hold it: without half surrogate pairs."""
    return name.encode("utf-8", "replace").decode()
