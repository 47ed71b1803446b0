"""Snapshots that episodes may start from, each held by exactly one reference that is given back exactly once.

Adding a start hands its reference over; eviction, `close` or nothing else releases it, and never while somebody
starts from it or while a checkpoint that may be restored still names it. What the sandboxes have lost meanwhile is
removed and counted. Which start is worth what is said by the rules of `envgym.buffer.starts`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from pydantic import BaseModel

from envgym.buffer.sampling import drawn, probabilities
from envgym.buffer.starts import Standing, Start, StartRule, Status, classify, edge
from envgym.episode import Episode
from envgym.errors import ReplayDiverged, SnapshotGone, StoreCorrupt

__all__ = ["Keeper", "Lent", "SnapshotArchive"]

S = TypeVar("S", bound=BaseModel)
K_contra = TypeVar("K_contra", contravariant=True)

_SCHEMA = 1
_LOST: Mapping[str, Literal["gone", "broken"]] = {
    SnapshotGone.__name__: "gone", StoreCorrupt.__name__: "broken", ReplayDiverged.__name__: "broken",
}  # fmt: skip


class Keeper(Protocol[K_contra]):
    """Who owns the snapshots: any `Env` (of `Snapshot`) and any `SandboxBackend` (of `SandboxSnapshot`) is one."""

    async def release(self, snapshot: K_contra, /) -> None:
        """Give one reference back. Raises SnapshotGone where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Lent(Generic[S]):
    """A start that somebody begins from: its snapshot stays until `give_back`."""

    start: Start[S]
    number: int


@dataclass(slots=True, eq=False)
class _Entry(Generic[S]):
    """One start, and where it is: held (may be chosen), doomed (its reference is still ours), or done."""

    number: int
    start: Start[S]
    tries: int = 0
    wins: int = 0
    lent: int = 0
    done: bool = False


class SnapshotArchive(Generic[S]):
    """At most `most` starts of at most `most_bytes` together, as their sizes say.

    keeper: where references go back to. What leaves first is what there is least to learn from (`edge`), of equals
    the oldest.

    `counts`: added; released; gone (the keeper had lost them); unreleased (releasing raised, and is not repeated);
    handed_over; and, of those that left, broken (nobody could start from them any more).
    ``added == len(archive) + archive.doomed + released + gone + unreleased + handed_over``.
    """

    def __init__(self, keeper: Keeper[S], *, most: int, most_bytes: int = 1 << 62) -> None:
        if most < 1 or most_bytes < 1:
            raise ValueError(
                f"SnapshotArchive: most is {most}, most_bytes is {most_bytes}; both must be at least 1"
            )
        self._keeper, self.most, self.most_bytes = keeper, most, most_bytes
        self.counts: Counter[str] = Counter()
        self._held: dict[str, _Entry[S]] = {}
        self._doomed: dict[int, _Entry[S]] = {}
        self._lent: dict[int, _Entry[S]] = {}
        self._next = 0
        self._named: set[int] = set()  # by the checkpoint that is saved
        self._latest: set[int] = set()  # by the newest state that was given out
        self._releasing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    @property
    def size(self) -> int:
        """Bytes of all starts that may be chosen."""
        return sum(entry.start.size for entry in self._held.values())

    @property
    def doomed(self) -> int:
        """How many have left and are still referenced: somebody starts from them, or a checkpoint names them."""
        return len(self._doomed)

    @property
    def starts(self) -> tuple[Start[S], ...]:
        """Those that may be chosen, in the order in which they came."""
        return tuple(entry.start for entry in self._held.values())

    def status(self, key: str) -> Status:
        """What is known of a start. Raises KeyError."""
        return classify(self._held[key].tries, self._held[key].wins)

    @property
    def statuses(self) -> dict[Status, int]:
        """How many starts are of each status."""
        found = Counter(self.status(key) for key in self._held)
        return {status: found[status] for status in Status}

    # -- coming and going --------------------------------------------------------------------------------------

    async def add(self, start: Start[S]) -> tuple[str, ...]:
        """Take a start and the caller's reference on its snapshot; returns the keys of what left for it.

        The new one itself is among them where it alone is larger than `most_bytes`. Who wants to keep a reference
        of his own takes one more before (`SandboxBackend.retain`). Raises ValueError for a key that is there or a
        size below 0: then the reference is still the caller's.
        """
        if start.key in self._held or start.size < 0:
            raise ValueError(
                f"start {start.key!r} of size {start.size} cannot be added: keys are unique, sizes at least 0"
            )
        self._held[start.key] = _Entry(self._next, start)
        self._next += 1
        self.counts["added"] += 1
        left = list(self._excess())
        await self._release([entry for entry in left if self._doom(entry)])
        return tuple(entry.start.key for entry in left)

    def choose(
        self, size: int, rng: np.random.Generator, *, rule: StartRule = edge, task_id: str | None = None
    ) -> tuple[Lent[S], ...]:
        """Draw `size` starts with replacement, of one task if given; none where there are none.

        Each is lent: its snapshot stays, whatever leaves the archive, until `give_back` or `settle`.
        """
        among = [entry for entry in self._held.values() if task_id is None or entry.start.task_id == task_id]
        if not among:
            return ()
        chances = probabilities(rule(_standing(among)))
        chosen = [among[index] for index in drawn(chances, size, rng).tolist()]
        for entry in chosen:
            entry.lent += 1
            self._lent[entry.number] = entry
        return tuple(Lent(entry.start, entry.number) for entry in chosen)

    async def give_back(
        self, lent: Lent[S], *, won: bool | None = None, lost: Literal["gone", "broken"] | None = None
    ) -> None:
        """Say what became of an episode from a lent start. won: None where it says nothing about the start.

        lost: the start is removed and counted, because its snapshot is "gone" (the keeper has no reference to give
        back any more) or "broken" (it is there, nothing can start from it, and it is released).
        Raises ValueError for what is not lent.
        """
        entry = self._lent.get(lent.number)
        if entry is None:
            raise ValueError(f"start {lent.start.key!r} is not lent: it was given back as often as it was chosen")
        entry.lent -= 1
        if not entry.lent:
            del self._lent[lent.number]
        if won is not None:
            entry.tries += 1
            entry.wins += won
        if lost == "gone" and not entry.done:
            self._remove(entry)
            entry.done = True
            self.counts["gone"] += 1
        elif lost == "broken" and self._held.get(entry.start.key) is entry:
            self._doom(entry)
            self.counts["broken"] += 1
        if self._free(entry):
            await self._release([entry])

    async def settle(self, lent: Lent[S], episode: Episode, *, won: bool) -> None:
        """Give a start back after an episode from it.

        One whose world failed says nothing about it, unless its reset did: a snapshot that is gone, damaged
        (StoreCorrupt) or cannot be replayed (ReplayDiverged) is not tried again.
        """
        failure = episode.failure
        if failure is None:
            await self.give_back(lent, won=won)
        else:
            await self.give_back(lent, lost=_LOST.get(failure.kind) if failure.where == "reset" else None)

    async def close(self) -> None:
        """Release everything, but what is lent: that is released when it is given back. Idempotent.

        Raises what releasing raised (several in one ExceptionGroup), after everything was tried.
        """
        self._named, self._latest = set(), set()
        for entry in list(self._held.values()):
            self._doom(entry)
        try:
            await self._release([entry for entry in self._doomed.values() if self._free(entry)])
        finally:
            await asyncio.gather(*self._releasing, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything as plain JSON values, for a checkpoint; say `saved` when that is durable.

        What is named there keeps its reference until a later state is saved, also if it leaves meanwhile. So a kill
        at any point releases nothing twice, and loses at most the references of what came after the state, or left
        just before it.
        """
        owed = [entry for entry in self._doomed.values() if entry.lent]
        listed = [*self._held.values(), *owed]
        self._latest = {entry.number for entry in listed}
        return {
            "schema": _SCHEMA,
            "settings": {"most": self.most, "most_bytes": self.most_bytes},
            "counts": dict(self.counts),
            "next": self._next,
            "entries": [_plain(entry) for entry in self._held.values()],
            "owed": [_plain(entry) for entry in owed],
            "left": self.doomed - len(owed),
        }

    async def saved(self) -> None:
        """The newest `state` is durable: what only older ones named is released."""
        self._named = self._latest
        await self._release([entry for entry in self._doomed.values() if self._free(entry)])

    async def hand_over(self) -> dict[str, Any]:
        """A last state: every reference goes with it to whoever restores it, and this archive is empty.

        Raises RuntimeError while starts are lent.
        """
        if self._lent:
            keys = sorted(entry.start.key for entry in self._lent.values())
            raise RuntimeError(f"hand_over: {keys} are lent; give them back first")
        state = self.state()
        await self.saved()
        self.counts["handed_over"] += len(self._held)
        self._held.clear()
        return state

    @classmethod
    async def restore(
        cls, state: dict[str, Any], keeper: Keeper[S], read: Callable[[Any], S]
    ) -> "SnapshotArchive[S]":
        """An archive that owns what the saved one owned, which must be gone (killed) or have handed it over.

        read: what makes a snapshot of plain data, such as `Snapshot.model_validate`. Nothing is asked of the
        keeper: a snapshot that is gone shows when somebody starts from it. Raises ValueError for what is no state.
        """
        if state.get("schema") != _SCHEMA:
            raise ValueError(
                f"state of an archive with schema {state.get('schema')!r}; this version reads {_SCHEMA}"
            )
        archive = cls(keeper, **state["settings"])
        archive.counts, archive._next = Counter(state["counts"]), state["next"]
        archive.counts["released"] += state["left"]  # the one that saved it has, or had, them released
        for raw in state["entries"]:
            entry = _entry(raw, read)
            archive._held[entry.start.key] = entry
        archive._doomed = {raw["number"]: _entry(raw, read) for raw in state["owed"]}
        archive._named = {raw["number"] for raw in [*state["entries"], *state["owed"]]}
        return archive

    # -- inside ------------------------------------------------------------------------------------------------

    def _excess(self) -> Iterable[_Entry[S]]:
        """What must leave, least useful first; taken out of the choice as it is named."""
        while len(self._held) > self.most or self.size > self.most_bytes:
            among = list(self._held.values())
            too_large = [entry for entry in among if entry.start.size > self.most_bytes]
            entry = too_large[0] if too_large else among[int(np.argmin(edge(_standing(among))))]
            del self._held[entry.start.key]
            yield entry

    def _doom(self, entry: _Entry[S]) -> bool:
        """Take a start out for good; whether it can be released now."""
        self._held.pop(entry.start.key, None)
        self._doomed[entry.number] = entry
        return self._free(entry)

    def _free(self, entry: _Entry[S]) -> bool:
        """Whether a start has left, and neither a borrower nor a checkpoint needs it."""
        named = entry.number in self._named or entry.number in self._latest
        return entry.number in self._doomed and not entry.lent and not named

    def _remove(self, entry: _Entry[S]) -> None:
        if self._doomed.pop(entry.number, None) is None:
            del self._held[entry.start.key]

    async def _release(self, entries: Iterable[_Entry[S]]) -> None:
        """Give the references back. A caller that is cancelled does not stop it half-way."""
        leaving = [entry for entry in entries if not entry.done]
        if not leaving:
            return
        for entry in leaving:
            entry.done = True
            del self._doomed[entry.number]
        task = asyncio.get_running_loop().create_task(self._release_all(leaving))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        await asyncio.shield(task)

    async def _release_all(self, entries: Iterable[_Entry[S]]) -> None:
        errors: list[Exception] = []
        for entry in entries:
            try:
                await self._keeper.release(entry.start.snapshot)
            except SnapshotGone:
                self.counts["gone"] += 1
            except Exception as error:
                self.counts["unreleased"] += 1
                error.add_note(f"while the archive released start {entry.start.key!r}; it is not tried again")
                errors.append(error)
            else:
                self.counts["released"] += 1
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("releasing snapshots failed", errors)


def _standing(entries: list[_Entry[S]]) -> Standing:
    return Standing(
        np.array([entry.tries for entry in entries], np.int64),
        np.array([entry.wins for entry in entries], np.int64),
        [entry.start.cluster for entry in entries],
    )


def _plain(entry: _Entry[S]) -> dict[str, Any]:
    start = {name: getattr(entry.start, name) for name in _FIELDS}
    return {
        "number": entry.number,
        "tries": entry.tries,
        "wins": entry.wins,
        "start": start,
        # not pydantic's JSON mode, which is lossy for lone surrogates; every field is a JSON value already
        "snapshot": entry.start.snapshot.model_dump(),
    }


_FIELDS = ("key", "task_id", "turn", "left", "origin", "cluster", "size")


def _entry(raw: dict[str, Any], read: Callable[[Any], S]) -> _Entry[S]:
    start = Start(snapshot=read(raw["snapshot"]), **raw["start"])
    return _Entry(raw["number"], start, raw["tries"], raw["wins"])
