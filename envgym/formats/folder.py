"""A Hugging Face `datasets` folder: Parquet files per split, and README.md, a data card that `load_dataset` reads.

One row per path: names, seed, reward, the conversation in OpenAI's form, and per turn who acted, its reward and its
tokens. Written with pyarrow alone; opens without our code. Reads any folder of Parquet or saved Arrow files whose
rows have ``messages`` or ``conversations``.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envgym.episode import Episode, Group
from envgym.formats.card import Facts, checked_split
from envgym.formats.contract import Exported, FormatError, Options, Where
from envgym.formats.exact import Told, tell
from envgym.formats.folder_rows import SCHEMA, decode, encode
from envgym.formats.losses import NO_EPISODES
from envgym.formats.record_format import KEY, Tally, decoded
from envgym.formats.records import Regroup, seal, unseal
from envgym.whole import new_target

__all__ = ["DATASETS"]

_ROWS = 256
_OURS = Where(Path("ours"))


class _Folder:
    """The `Format`."""

    name = "datasets"
    uses = ("split", "scores", "licence", "name")

    def write(self, groups: Iterable[Group], target: Path, *, options: Options) -> Exported:
        """See `Format.write`. Raises ValueError for a split that `datasets` cannot name."""
        tally, facts = Tally(), Facts(options.card, options.extra)
        with new_target(target, folder=True) as part:
            (part / "data").mkdir()
            with ExitStack() as stack:
                writers: dict[str, pq.ParquetWriter] = {}
                for group in groups:
                    split = checked_split(options.split(group))
                    if split not in writers:
                        writers[split] = _writer(stack, part, split)
                    rows, back = _rows(group, options, tally)
                    tally.losses.compare(group, back)
                    facts.count(group, split)
                    if rows:
                        tally.held += 1
                        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
                        writers[split].write_batch(batch, row_group_size=_ROWS)
                if not writers:
                    _writer(stack, part, "train")
                    facts.splits["train"] = 0
            (part / "README.md").write_text(facts.card(tally.losses.all), encoding="utf-8")
            files = 1 + len(list((part / "data").iterdir()))
        return tally.exported(self.name, target, files)

    def read(self, source: Path) -> Iterator[Group]:
        """See `Format.read`; splits follow each other in the order of their names."""
        regroup = Regroup()
        for row, place in _stored(source):
            text = row.pop(KEY, None)  # what is left is what the text was made against
            text = text if isinstance(text, str) and text else None
            said = decoded(partial(decode, row, _OURS if text else place, text is not None), place)
            if text is None:
                yield from regroup.rest()
                yield Group(said.task_id, (said,))
            else:
                yield from regroup.add(*unseal(said, text, place, row), place)
        yield from regroup.rest()


DATASETS = _Folder()


def _writer(stack: ExitStack, part: Path, split: str) -> Any:
    path = part / "data" / f"{split}-00000.parquet"
    return stack.enter_context(pq.ParquetWriter(path, SCHEMA, compression="zstd"))


def _rows(group: Group, options: Options, tally: Tally) -> tuple[list[dict[str, Any]], list[Episode]]:
    """The rows of a group, and the episodes that will be read from them."""
    tally.count(group)
    if not group.episodes:
        tally.losses.add(NO_EPISODES, f"task {group.task_id}")
    rows, back, regroup = [], [], Regroup()
    for told in tell(group, tally.held):
        row = encode(told, options)
        # what a reader will see: the types of the file, not those of Python
        seen = pa.RecordBatch.from_pylist([row], schema=SCHEMA).to_pylist()[0]
        seen.pop(KEY)
        said = decode(seen, _OURS, options.extra)
        if options.extra:
            row[KEY] = _sealed(told, said, seen)
            back += [e for g in regroup.add(*unseal(said, row[KEY], _OURS, seen), _OURS) for e in g]
        else:
            back.append(said)
        rows.append(row)
    return rows, [*back, *(episode for whole in regroup.rest() for episode in whole)]


def _sealed(told: Told, said: Episode, row: dict[str, Any]) -> str:
    try:
        return seal(told, said, row)
    except TypeError as error:
        raise TypeError(f"episode {told.episode.id} cannot be written as datasets: {error}") from error


def _stored(source: Path) -> Iterator[tuple[dict[str, Any], Where]]:
    """Every row of a folder's files, or of one file, with its place."""
    if source.is_file():
        paths = [source]
    else:
        paths = sorted(
            path for path in source.rglob("*") if path.suffix in (".parquet", ".arrow") and path.is_file()
        )
    if not paths:
        raise FormatError(Where(source), "the folder holds no file *.parquet or *.arrow")
    for path in paths:
        try:
            number = 0
            for batch in _batches(path):
                for row in batch.to_pylist():
                    number += 1
                    yield row, Where(path, f"row {number}")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FormatError(Where(path), f"it cannot be read: {' '.join(str(error).split())[:200]}") from error


def _batches(path: Path) -> Iterator[Any]:
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as mapped:
            yield from pa.ipc.open_stream(mapped)
        return
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=16)
