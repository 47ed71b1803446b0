"""The one process that writes a store: every turn goes to a log as it happens, finished episodes move on to shards.

A killed process loses nothing that a call returned from. A machine that loses its power loses at most what the last
`sync_s` seconds wrote: the log is synced in the background that often, while it is being written to. Compaction
and syncs run in a thread each, so that neither waits for the other; what they meet is raised by the next call.
"""

import fcntl
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from envgym.env import Grade
from envgym.episode import Began, Episode, Turn, Unfinished
from envgym.errors import StoreCorrupt
from envgym.messages import ImagePart
from envgym.store.about import Kind
from envgym.store.compaction import rewrite, write_shard
from envgym.store.durable import sync_path
from envgym.store.folder import Parts, Places, is_store, parts, remove
from envgym.store.log import Damage, LogWriter, read_log
from envgym.store.pictures import Pictures, look_up, looked_up
from envgym.store.reader import StoreReader
from envgym.store.records import Answered, Ended, Graded, Record, Said, Turned, regraded
from envgym.store.rows import ids_of
from envgym.store.shard import Shard
from envgym.store.unfolding import Unfolding

__all__ = ["StoreWriter"]

_LOG_BYTES = 64 << 20
_COPY_IT = (
    "nothing is appended to a store whose ids cannot all be read: copy what is whole to another one "
    "(envgym data filter STORE --damaged --out OTHER)"
)


class StoreWriter:
    """Appends to the store at `path`, which is made if there is none; a context manager.

    What an earlier process left unfinished is in `unfinished`; it goes on (`turn`), begins again (`begin`), or
    stays as it is. log_bytes: when finished episodes move to a shard. sync_s: the longest time that a turn stays
    unsynced.
    Raises ValueError when another process writes to the store, or the path is no folder.
    """

    def __init__(self, path: str | Path, *, log_bytes: int = _LOG_BYTES, sync_s: float = 1.0) -> None:
        if log_bytes < 1:
            raise ValueError(f"log_bytes is {log_bytes}; it must be at least 1")
        if not 0 < sync_s < threading.TIMEOUT_MAX:
            raise ValueError(f"sync_s is {sync_s}; it must be a positive number of seconds")
        self.path = Path(path)
        self._places = Places(self.path)
        self._pictures = Pictures(self._places)
        self._log_bytes, self._sync_s = log_bytes, sync_s
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; a store is a folder: name another path")
        if self.path.is_dir() and not is_store(self.path) and any(self.path.iterdir()):
            raise ValueError(f"{self.path} holds other things and no store; name a new folder")
        for folder in (self.path, self._places.logs, self._places.shards):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = _locked(self._places.lock)
        except PermissionError as error:
            raise PermissionError(error.errno, error.strerror, str(self.path)) from error
        try:
            self._begin()
        except BaseException:
            os.close(self._lock)
            raise

    def _begin(self) -> None:
        found = parts(self._places)
        if found.damage:
            raise StoreCorrupt(f"{found.damage[0]}; {_COPY_IT}")
        for path in found.dead:
            remove(path)
        for shard in found.shards:
            shard.mend()
        self._recover(found)
        self._number = found.highest
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="envgym-store")
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="envgym-sync")
        self._working: Future[None] | None = None
        self._syncing: list[Future[None]] = []
        self._timer: threading.Timer | None = None
        self._reader: StoreReader | None = None
        self._read: dict[str, int] = {}  # of each episode: how many of the grades below the reader knows
        self._graded: dict[str, list[Grade]] = {}
        for name, grade in self._state.later:
            self._graded.setdefault(name, []).append(grade)
        self._log = self._next_log()
        self._settle([number for number, _ in found.logs])

    def _recover(self, found: Parts) -> None:
        """What earlier processes left: the ids that are given, what is unfinished, what has ended in their logs."""
        self._ids: set[str] = set()
        for shard in found.shards:
            for number in range(len(shard.blocks("episodes"))):
                try:
                    self._ids |= set(ids_of(shard.batch("episodes", number)))
                except StoreCorrupt as error:
                    raise StoreCorrupt(f"{error}; {_COPY_IT}") from error
            shard.close()
        self._state, self._damaged = Unfolding(), set[int]()
        for number, path in found.logs:
            for record, _after in read_log(path):
                if not isinstance(record, Damage):
                    self._state.take(record)
                elif not record.torn:
                    self._damaged.add(number)
        for known in self._ids & self._state.ended.keys():  # it was compacted, and its log outlived that
            del self._state.ended[known]
        self._ids |= self._state.ended.keys()
        for unfinished in self._state.open.values():
            look_up(unfinished, self._pictures.find)

    # -- appending -------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> Mapping[str, Unfinished]:
        """The episodes that have begun and not ended, by id: what is known of each."""
        return self._state.open

    def __contains__(self, episode: str) -> bool:
        """Whether an episode of this id has ended here."""
        return episode in self._ids

    def __len__(self) -> int:
        """How many episodes have ended here."""
        return len(self._ids)

    def begin(self, began: Began) -> None:
        """An episode begins; one that is unfinished begins again, and what it had no longer counts."""
        record = self._attempted(began)
        self._pictures.keep(began.root)
        self._append(record)
        self._state.open[began.id] = Unfinished(record)

    def _attempted(self, began: Began) -> Began:
        if began.id in self._ids:
            raise ValueError(f"{self.path} holds an episode {began.id!r} already; ids are given once")
        known = self._state.open.get(began.id)
        return began if known is None else replace(began, attempt=known.began.attempt + 1)

    def said(self, episode: str, index: int, turn: Turn) -> None:
        """An actor of an unfinished episode has spoken; the turn's step is still to come. index: the next turn."""
        known = self._next(episode, index)
        self._append(Said(episode, index, turn, known.began.attempt))
        known.said = turn

    def turn(self, episode: str, index: int, turn: Turn) -> None:
        """A turn of an unfinished episode is complete. index: among its own turns; the next one.

        What was told by `said` is not written again: the turn is that one with its step.
        """
        known = self._next(episode, index)
        self._pictures.keep(turn.step)
        if known.said is not None:
            self._append(Answered(episode, index, turn.step, turn.step_s, known.began.attempt))
        else:
            self._append(Turned(episode, index, turn, known.began.attempt))
        known.turns.append(turn)
        known.said = None

    def _next(self, episode: str, index: int) -> Unfinished:
        known = self._state.open.get(episode)
        if known is None:
            raise ValueError(
                f"turn {index} of episode {episode!r}, which is not unfinished in {self.path}; begin it"
            )
        if index != len(known.turns):
            raise ValueError(f"turn {index} of episode {episode!r}: the next one is {len(known.turns)}")
        return known

    def append(self, episode: Episode) -> None:
        """A finished episode. Of one whose turns were all told as they happened, only the end is written."""
        if self._log.bytes >= self._log_bytes and self._state.ended:
            self._rotate()  # first: where that fails, nothing was stored
        kept = self._pictures.keep_all(episode)
        known = self._state.open.get(episode.id)
        if known is None or not _told(known, episode):
            began = self._attempted(Began.of(episode))
            turned = (Turned(episode.id, index, turn, began.attempt) for index, turn in enumerate(episode.turns))
            self._append(began, *turned, Ended.of(episode, began.attempt))
        else:
            self._append(Ended.of(episode, known.began.attempt))
        self._state.open.pop(episode.id, None)
        self._state.ended[episode.id] = kept
        self._ids.add(episode.id)

    def extend(self, episodes: Iterable[Episode]) -> None:
        """Many finished episodes at once, straight into a shard: all of them are there when it returns, or none."""
        self._wait()
        fresh: set[str] = set()

        def new() -> Iterable[Episode]:
            for episode in episodes:
                if episode.id in self._ids or episode.id in fresh or episode.id in self._state.open:
                    raise ValueError(f"{self.path} holds an episode {episode.id!r} already; ids are given once")
                fresh.add(episode.id)
                yield self._pictures.keep_all(episode)

        self._number += 1
        write_shard(self._places.shard(self._number), new())
        self._ids |= fresh

    def adopt(self, folder: Path) -> Path:
        """A shard of another store, in the same file system, moves here in one step; where it is then.

        Raises ValueError, and moves nothing, when an id of it is here already.
        """
        self._wait()
        shard = Shard(folder)
        blocks = range(len(shard.blocks("episodes")))
        fresh = {name for number in blocks for name in ids_of(shard.batch("episodes", number))}
        if known := sorted(fresh & (self._ids | self._state.open.keys())):
            raise ValueError(f"{self.path} holds an episode {known[0]!r} already; ids are given once")
        if shard.about.logs or shard.about.replaces:
            raise ValueError(f"{folder} stands for logs or shards of its store; only one written at once can move")
        self._number += 1
        place = self._places.shard(self._number)
        folder.rename(place)
        sync_path(self._places.shards)
        self._ids |= fresh
        return place

    def __getitem__(self, episode: str) -> Episode:
        """An episode that has ended here, with the bytes of its images. Raises KeyError, StoreCorrupt."""
        return looked_up(self._ended(episode), self._pictures.find)

    def _ended(self, episode: str) -> Episode:
        later = self._graded.get(episode, [])
        if (known := self._state.ended.get(episode)) is not None:
            return regraded(known, tuple(later))
        if episode not in self._ids:
            raise KeyError(f"{self.path} holds no episode {episode!r} that has ended")
        if self._reader is None or episode not in self._reader:
            self._reader = StoreReader(self.path)
            self._read = {name: len(grades) for name, grades in self._graded.items()}
        return regraded(self._reader[episode], tuple(later[self._read.get(episode, 0) :]))

    def grade(self, episode: str, grade: Grade) -> None:
        """One more verdict on an episode that has ended."""
        if episode not in self._ids:
            raise ValueError(f"{self.path} holds no episode {episode!r} that has ended; nothing is graded")
        self._append(Graded(episode, grade))
        self._state.later.append((episode, grade))
        self._graded.setdefault(episode, []).append(grade)

    def put_image(self, content: bytes, media_type: str = "image/png") -> ImagePart:
        """Store an image, once however often it comes, and how a message names it."""
        return ImagePart(sha256=self._pictures.put(content), media_type=media_type)

    def _append(self, *records: Record) -> None:
        if self._timer is None:
            self._look()
        self._log.append(*records)
        if self._timer is None:
            self._timer = threading.Timer(self._sync_s, self._sync_soon)
            self._timer.daemon = True
            self._timer.start()

    # -- durability ------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything that was appended durable now."""
        self._look()
        self._log.sync()

    def _sync_soon(self) -> None:
        self._timer = None
        try:
            self._syncing.append(self._syncer.submit(self._log.sync))
        except RuntimeError:  # it was closed meanwhile, and synced by that
            return

    def _look(self) -> None:
        """Raise what the other thread met."""
        done = [one for one in self._syncing if one.done()]
        self._syncing = [one for one in self._syncing if one not in done]
        for one in done:
            one.result()
        if self._working is not None and self._working.done():
            self._wait()

    def _wait(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            working.result()

    # -- compaction ------------------------------------------------------------------------------------------------

    def _next_log(self) -> LogWriter:
        """A new log, with what is unfinished carried over, durably."""
        self._number += 1
        log = LogWriter(self._places.log(self._number))
        try:
            for episode, found in self._state.open.items():
                log.append(found.began)
                for index, turn in enumerate(found.turns):
                    log.append(Turned(episode, index, turn, found.began.attempt))
                if found.said is not None:
                    log.append(Said(episode, len(found.turns), found.said, found.began.attempt))
            log.sync()
            sync_path(self._places.logs)
        except BaseException:  # a full disk, for one: the log before it goes on
            log.abandon()
            raise
        return log

    def _rotate(self) -> None:
        """Begin a new log, and move what has ended to a shard in the background."""
        self._wait()
        old = self._log
        self._log = self._next_log()
        self._settle([int(old.path.stem)], old)

    def _settle(self, logs: list[int], old: LogWriter | None = None) -> None:
        """Let logs go: what has ended in them moves to a shard, what is unfinished was carried over."""
        state, self._state = self._state, Unfolding(open=self._state.open)
        self._number += 1
        self._working = self._worker.submit(self._write, self._number, logs, old, state)

    def _write(self, number: int, logs: list[int], old: LogWriter | None, state: Unfolding) -> None:
        if old is not None:
            old.close()
        if state.ended or state.later:
            write_shard(self._places.shard(number), state.ended.values(), state.later, logs=logs)
        for log in logs:
            path = self._places.log(log)
            if log in self._damaged:  # what could not be read of it may be worth a look
                path.rename(path.with_suffix(".damaged"))
            else:
                path.unlink(missing_ok=True)

    def compact(self, kind: Kind = "cold") -> None:
        """Make one shard of all that has ended: cold ones are small, hot ones are fast to draw from.

        One shard of this kind stays as it is, unless a file's header or footer is damaged, which is mended by it.
        Raises StoreCorrupt, and changes nothing, when a block is damaged.
        """
        if kind not in ("hot", "cold"):
            raise ValueError(f"kind is {kind!r}; it must be 'hot' or 'cold'")
        self._rotate()
        self._wait()
        found = parts(self._places)
        done = [kind] == [shard.about.kind for shard in found.shards]
        if found.shards and not (done and not found.shards[0].faults()):
            self._number += 1
            rewrite(self._places.shard(self._number), found.shards, kind=kind)
            self._reader = None

    def close(self) -> None:
        """Finish what goes on in the background, move what has ended to a shard, make all durable; idempotent."""
        if self._lock < 0:
            return
        try:
            if self._timer is not None:
                self._timer.cancel()
            self._wait()
            if self._state.ended or self._state.later:
                self._rotate()
                self._wait()
            self._worker.shutdown()
            self._syncer.shutdown()
            self._look()
            self._log.sync()
            if not self._state.open:  # it holds nothing
                self._log.path.unlink()
        finally:
            self._worker.shutdown()
            self._syncer.shutdown()
            self._log.close()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _told(known: Unfinished, episode: Episode) -> bool:
    """Whether what was told of an unfinished episode as it happened is all of it but its end."""
    return (
        len(known.turns) == len(episode.turns)
        and (known.began.root is episode.root or Began.of(episode).root == known.began.root)
        and all(one is other or one == other for one, other in zip(known.turns, episode.turns, strict=True))
    )


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ValueError(
            f"{path.parent} is being written to by another process; a store has one writer at a time "
            "(several are made one with: envgym data merge)"
        ) from None
    return fd
