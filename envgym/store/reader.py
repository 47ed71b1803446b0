"""What a store holds, as it was when it was opened: episodes one by one, by id, as groups, as tables, as tokens.

Reading needs no lock and disturbs no writer. What cannot be read is named in `damage` (file, row group,
episodes) and hides nothing else. Reading on is the rule of `scan`, and of a reader that was opened to leave out
what is damaged; everything else stops there.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from envgym.env import Grade
from envgym.episode import Episode, Group, Unfinished
from envgym.errors import StoreCorrupt
from envgym.messages import ImagePart
from envgym.store.folder import Places, is_store, parts
from envgym.store.log import Damage, read_log
from envgym.store.pictures import looked_up
from envgym.store.recent import Recent
from envgym.store.records import regraded
from envgym.store.rows import grades_of, ids_of, texts_of
from envgym.store.schema import SCHEMAS
from envgym.store.shard import Shard
from envgym.store.sources import Logged, Sharded, Source
from envgym.store.tokens import Tokens
from envgym.store.unfolding import Unfolding
from envgym.store.wholeness import block_damage, readable, turns_damage

__all__ = ["StoreReader"]

_TRIES = 10


class StoreReader:
    """The store at `path`; a context manager. Raises ValueError when no store is there.

    unfinished: the episodes that had begun and not ended, by id. damage: what could not be read so far; `scan`
    reads all of it. kept: what costs nothing here and stops nothing, and is told by `scan`: logs of which something
    could not be read when they were compacted, until somebody removes them, and damage to what is stored twice.
    leave_out: read everything at once, and be as if what is damaged had never been stored; `damage` is then
    complete.
    """

    def __init__(self, path: str | Path, *, leave_out: bool = False) -> None:
        self.path, self._leave_out = Path(path), leave_out
        if not is_store(self.path):
            what = "is no store" if self.path.exists() else "does not exist"
            raise ValueError(f"{self.path} {what}; name the folder that episodes were stored in")
        self.damage: list[Damage] = []
        self.kept: list[Damage] = []
        self.unfinished: dict[str, Unfinished] = {}
        for _ in range(_TRIES):
            try:
                self._open()
                break
            except FileNotFoundError:  # compacted while it was listed
                continue
        else:
            raise StoreCorrupt(f"{self.path}: its parts changed {_TRIES} times while they were listed")

    def _open(self) -> None:
        found = parts(Places(self.path))
        self.damage, self.kept = [*found.damage], found.kept
        state = Unfolding()
        for _number, path in found.logs:
            for record, _after in read_log(path):
                if not isinstance(record, Damage):
                    state.take(record)
                elif not record.torn:
                    self.damage.append(record)
        self.damage += [
            Damage(self.path / "logs", "its records", why, (name,), episodes=1)
            for name, why in state.broken.items()
        ]
        if self._leave_out:
            self.damage += self.damaged_images()
        self.unfinished = state.open
        self._gather(found.shards, state)

    def _gather(self, shards: Sequence[Shard], state: Unfolding) -> None:
        """Where every episode is, and which grades came later."""
        for shard in shards:
            shard.map_all()
            self.kept += [Damage(path, "beside its rows", why) for path, why in shard.faults()]
        self._recent = Recent()
        sharded = [Sharded(shard, self._recent) for shard in shards]
        if self._leave_out:
            sharded = [readable(one, self.damage) for one in sharded]
        self._sources: list[Source] = [*sharded]
        self._places: dict[str, tuple[int, int, int]] = {}
        for number in range(len(self._sources)):
            for block, batch in self._sound("episodes", number):
                self._places |= {name: (number, block, row) for row, name in enumerate(ids_of(batch))}
        logged = [episode for name, episode in state.ended.items() if name not in self._places]
        self._places |= {episode.id: (len(self._sources), 0, row) for row, episode in enumerate(logged)}
        self._sources.append(Logged(self.path / "logs", logged, state.later))
        self._grades: dict[str, list[Grade]] = {}
        for number in range(len(self._sources)):
            for _block, batch in self._sound("grades", number):
                for name, grade in grades_of(batch):
                    self._grades.setdefault(name, []).append(grade)

    def _sound(self, table: str, number: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The blocks of a table that can be read; the others are damage."""
        source = self._sources[number]
        for block in range(source.blocks(table)):
            try:
                batch = source.batch(table, block)
            except StoreCorrupt as error:
                self.damage.append(block_damage(source, table, block, error))
            else:
                yield block, batch
                if table == "episodes":  # what was looked at of each is no reason to hold them all
                    source.forget(block)

    # -- episodes --------------------------------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all episodes that ended, in stored order, as far as they can be read."""
        return tuple(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, episode: str) -> bool:
        return episode in self._places

    def scan(self) -> Iterator[Episode | Damage]:
        """Every episode in stored order, one block in memory at a time, and damage in the place of what is lost."""
        yield from self.kept
        yield from self.damage
        for source in self._sources:
            for block in range(source.blocks("episodes")):
                try:
                    found = source.episodes(block)
                except StoreCorrupt as error:
                    if (damage := turns_damage(source, block, error)) is not None:
                        yield damage
                    continue
                for episode in found:
                    yield self._graded(episode)
                source.forget(block)

    def __iter__(self) -> Iterator[Episode]:
        """Every episode in stored order. Raises StoreCorrupt at the first thing that cannot be read."""
        for found in self.scan():
            if isinstance(found, Episode):
                yield found
            elif found not in self.kept and not self._leave_out:
                raise StoreCorrupt(f"{found}; {self._way_out}")

    @property
    def _way_out(self) -> str:
        return f"copy what is whole to another store: envgym data filter {self.path} --damaged --out OTHER"

    def check(self) -> None:
        """Raise StoreCorrupt, with a way out, when something that was stored is known to be missing."""
        if self.damage and not self._leave_out:
            raise StoreCorrupt(f"{self.damage[0]}; {self._way_out}")

    def _batch(self, source: Source, table: str, block: int) -> pa.RecordBatch:
        try:
            return source.batch(table, block)
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{error}; {self._way_out}") from error

    def __getitem__(self, episode: str) -> Episode:
        """The episode of an id. Raises KeyError when none of it ended here, StoreCorrupt when it is damaged."""
        if episode not in self._places:
            raise KeyError(f"{self.path} holds no episode {episode!r} that has ended")
        source, block, row = self._places[episode]
        try:
            return self._graded(self._sources[source].episode(block, row))
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{error}; {self._way_out}") from error

    def _graded(self, episode: Episode) -> Episode:
        return regraded(episode, tuple(self._grades.get(episode.id, ())))

    def image(self, image: ImagePart) -> bytes:
        """The bytes of an image. Raises KeyError when it is not here, StoreCorrupt when it is damaged."""
        path = Places(self.path).image(image.sha256)
        found = _image(path) if path.exists() else None
        if found is None or (isinstance(found, Damage) and self._leave_out):
            raise KeyError(f"{self.path} holds no image {image.sha256}")
        if isinstance(found, Damage):
            raise StoreCorrupt(f"{found}; {self._way_out}")
        return found

    def with_images(self, episode: Episode) -> Episode:
        """The episode with the bytes of its images in its steps; those that are not here are left out."""

        def find(image: ImagePart) -> bytes | None:
            return self.image(image) if Places(self.path).image(image.sha256).exists() else None

        return looked_up(episode, find)

    def damaged_images(self) -> Iterator[Damage]:
        """Every image whose bytes are not those that were stored; all of them are read for it."""
        for path in sorted(Places(self.path).images.glob("*/*")):
            if not path.name.startswith(".") and isinstance(found := _image(path), Damage):
                yield found

    # -- groups ----------------------------------------------------------------------------------------------------

    def edges(self) -> Iterator[tuple[str, str, str, str | None]]:
        """Id, task, group and parent of every episode, in stored order. Raises StoreCorrupt when any is damaged."""
        self.check()
        for source in self._sources:
            for block in range(source.blocks("episodes")):
                batch = self._batch(source, "episodes", block)
                yield from zip(
                    *(texts_of(batch, name) for name in ("id", "task_id", "group", "parent")), strict=True
                )
                source.forget(block)

    def groups(self) -> Iterator[Group]:
        """The episodes that are compared with each other, in the order of their first members.

        Those of one task and one `Episode.group`; where that is empty, those of one task that share a root: an
        episode and its forks. Parents come before forks. Only ids are held for all groups at once, and a few
        blocks: one group's episodes are read in stored order. Raises StoreCorrupt when anything is damaged.
        """
        rows = list(self.edges())
        parents = {name: parent for name, _, _, parent in rows}
        members: dict[tuple[str, str], list[str]] = {}
        for name, task, group, _ in rows:
            members.setdefault((task, group or f"\0{_root(name, parents)}"), []).append(name)
        for (task, _), names in members.items():
            found = {name: self[name] for name in names}
            yield Group(task, tuple(found[name] for name in _parents_first(names, parents)))

    # -- columns ---------------------------------------------------------------------------------------------------

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table ("episodes", "turns", "grades"), or some columns of it; of hot shards without a copy.

        Rows of what has ended in the logs are last. Raises StoreCorrupt when anything of it is damaged.
        """
        if name not in SCHEMAS:
            raise ValueError(f"table {name!r}; the tables of a store are: {', '.join(SCHEMAS)}")
        schema = SCHEMAS[name]
        chosen = schema.names if columns is None else list(columns)
        if unknown := [one for one in chosen if one not in schema.names]:
            raise ValueError(f"table {name!r} has no column {unknown[0]!r}; it has: {', '.join(schema.names)}")
        self.check()
        batches = [
            self._batch(source, name, block).select(chosen)
            for source in self._sources
            for block in range(source.blocks(name))
        ]
        return pa.Table.from_batches(batches, pa.schema([schema.field(one) for one in chosen]))

    def tokens(self) -> Tokens:
        """What training reads, to draw minibatches from. Raises StoreCorrupt when anything of it is damaged."""
        self.check()
        ids: list[str] = []
        turns: list[pa.RecordBatch] = []
        places: list[NDArray[np.int64]] = []
        forks: dict[str, tuple[str, int]] = {}
        for source in self._sources:
            for block in range(source.blocks("episodes")):
                batch = self._batch(source, "episodes", block)
                counts = batch.column("turns").to_numpy().astype(np.int64)
                firsts = np.cumsum(counts) - counts
                places.append(np.stack([np.full_like(counts, len(turns)), firsts, counts], axis=1))
                turns.append(self._batch(source, "turns", block))
                names = ids_of(batch)
                left = zip(names, texts_of(batch, "parent"), batch.column("parent_turn").to_pylist(), strict=True)
                forks |= {name: (parent, turn) for name, parent, turn in left if parent is not None}
                ids += names
        return Tokens(ids, turns, np.concatenate(places) if places else np.zeros((0, 3), np.int64), forks)

    def close(self) -> None:
        """Let go of the files; what was read of them stays."""
        self._recent.clear()
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _image(path: Path) -> bytes | Damage:
    """The bytes of an image that is there, or why they are not what was stored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return Damage(path, "the whole image", str(error))
    if hashlib.sha256(content).hexdigest() == path.name:
        return content
    return Damage(path, "the whole image", f"its {len(content)} bytes do not have the SHA-256 of its name")


def _root(name: str, parents: Mapping[str, str | None]) -> str:
    """Where a line of forks began, as far as it is here."""
    while (parent := parents.get(name)) is not None:
        name = parent
    return name


def _parents_first(names: Sequence[str], parents: Mapping[str, str | None]) -> list[str]:
    """Names in their order, but each after its parent."""
    placed: dict[str, None] = {}
    within = set(names)
    for name in names:
        line: list[str] = []
        at: str | None = name
        while at is not None and at in within and at not in placed:
            line.append(at)
            at = parents.get(at)
        placed |= dict.fromkeys(reversed(line))
    return list(placed)
