"""What is done with stored episodes without playing any: choose, merge, split, sample, drop repeats and leaks.

Each of these gives ids, in stored order; `copy` writes what they name to another store. A fork is nothing
without its history, so its ancestors always come along.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from envgym.episode import Episode
from envgym.messages import ImagePart, Message, text_of
from envgym.store import StoreReader, StoreWriter
from envgym.wire import messages_to_json

__all__ = [
    "WORDS", "contaminated", "copy", "family", "merge", "parents_of", "part_of", "repeats", "rooted", "sample",
    "split", "take_on", "words_of",
]  # fmt: skip

WORDS = 13
"""Words in a row that are no accident: the usual length (GPT-3, appendix C, arXiv 2005.14165)."""


def family(reader: StoreReader, ids: Collection[str]) -> list[str]:
    """The named episodes and all they were forked from, in stored order. Raises KeyError for an unknown one."""
    parents = parents_of(reader)
    wanted: set[str] = set()
    for name in ids:
        at: str | None = name
        if name not in reader:
            raise KeyError(f"{reader.path} holds no episode {name!r} that has ended")
        while at is not None and at in reader and at not in wanted:
            wanted.add(at)
            at = parents[at]
    return [name for name in reader.ids if name in wanted]


def rooted(reader: StoreReader) -> list[str]:
    """The episodes whose history is here, in stored order: all of a store of which nothing is damaged."""
    parents = parents_of(reader)

    def whole(name: str | None) -> bool:
        while name is not None and name in parents:
            name = parents[name]
        return name is None

    return [name for name in reader.ids if whole(name)]


def take_on(reader: StoreReader, writer: StoreWriter) -> int:
    """Write what is unfinished, as far as it is known, to another store, where it can go on; how many.

    Raises ValueError when the other store has an episode of such an id.
    """
    for name, found in reader.unfinished.items():
        if name in writer or name in writer.unfinished:
            raise ValueError(f"{writer.path} holds an episode {name!r} already; ids are given once")
        writer.begin(found.began)
        for index, turn in enumerate(found.turns):
            writer.turn(name, index, turn)
        if found.said is not None:
            writer.said(name, len(found.turns), found.said)
    return len(reader.unfinished)


def parents_of(reader: StoreReader) -> dict[str, str | None]:
    """The parent of every episode; None of one that began at a reset."""
    return {name: parent for name, _task, _group, parent in reader.edges()}


def copy(reader: StoreReader, ids: Collection[str], writer: StoreWriter) -> int:
    """Write the named episodes, and their ancestors, to another store; how many. All of them, or none."""
    names = family(reader, ids)
    writer.extend(_with_images(reader, writer, (reader[name] for name in names)))
    return len(names)


def _with_images(reader: StoreReader, writer: StoreWriter, episodes: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes; the images that they show are there before them. One that the source does not have is left.

    Raises StoreCorrupt for a damaged one, unless the reader leaves out what is damaged.
    """
    for episode in episodes:
        for message in _messages(episode):
            if isinstance(message.content, tuple):
                for part in message.content:
                    if isinstance(part, ImagePart):
                        with contextlib.suppress(KeyError):
                            writer.put_image(reader.image(part), part.media_type)
        yield episode


def merge(readers: Sequence[StoreReader], writer: StoreWriter, *, rename: bool = False) -> int:
    """Write all episodes of several stores to one; how many. All of them, or none.

    rename: put ``<number of the store>-`` before every id; without it, an id that two stores have is a ValueError.
    """

    def all_of() -> Iterator[Episode]:
        for number, reader in enumerate(readers):
            for episode in _with_images(reader, writer, reader):
                yield _renamed(episode, f"{number}-") if rename else episode

    if not rename:
        _check_distinct(readers)
    before = len(writer)
    writer.extend(all_of())
    return len(writer) - before


def _check_distinct(readers: Sequence[StoreReader]) -> None:
    """Raise ValueError, with two stores and an id, when an id is in both."""
    owners: dict[str, StoreReader] = {}
    for reader in readers:
        if shared := [name for name in reader.ids if name in owners]:
            raise ValueError(
                f"{owners[shared[0]].path} and {reader.path} both hold an episode {shared[0]!r}, and share "
                f"{len(shared)} ids in all; --rename puts the store's number before every id"
            )
        owners |= dict.fromkeys(reader.ids, reader)


def _renamed(episode: Episode, prefix: str) -> Episode:
    parent = episode.parent
    return replace(
        episode,
        id=prefix + episode.id,
        parent=None if parent is None else replace(parent, episode=prefix + parent.episode),
    )


def sample(reader: StoreReader, count: int, rng: np.random.Generator) -> list[str]:
    """`count` episodes drawn without replacement. Raises ValueError when there are fewer, StoreCorrupt."""
    reader.check()
    if not 0 <= count <= len(reader):
        raise ValueError(
            f"{count} episodes cannot be drawn without replacement: {reader.path} holds {len(reader)}; draw fewer"
        )
    drawn = np.sort(rng.permutation(len(reader))[:count])
    return [reader.ids[int(one)] for one in drawn]


def part_of(task: str, shares: Mapping[str, float], *, seed: int = 0) -> str:
    """The part that a task belongs to: the same for the same shares and seed, wherever it is met.

    shares: of each part, which add up to 1. Raises ValueError for others.
    """
    if not shares or not (abs(sum(shares.values()) - 1) <= 1e-9 and min(shares.values()) >= 0):  # nan is neither
        raise ValueError(f"shares {dict(shares)} must be finite, at least 0, and add up to 1")
    digest = hashlib.blake2b(f"{seed}\0{task}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place = int(np.searchsorted(np.cumsum(list(shares.values())), int.from_bytes(digest, "big") / 2**64, "right"))
    return list(shares)[min(place, len(shares) - 1)]


def split(reader: StoreReader, shares: Mapping[str, float], *, seed: int = 0) -> dict[str, list[str]]:
    """Cut by task (`part_of`): a task and all its episodes are in one part, whatever else is in the store."""
    found: dict[str, list[str]] = {name: [] for name in shares}
    part_of("", shares)  # which refuses what are no shares, also where nothing is to be cut
    for name, task, _group, _parent in reader.edges():
        found[part_of(task, shares, seed=seed)].append(name)
    return found


def repeats(episodes: Iterable[Episode]) -> Iterator[str]:
    """The ids of episodes that say and see, turn by turn, just what an earlier one of their task did.

    All of it counts: texts, who said them, calls with their arguments, images by their hash. The ids of calls count
    only for which answer belongs to which call: servers make them up. A fork can only repeat one of the same point.
    """
    seen: set[bytes] = set()
    for episode in episodes:
        digest = hashlib.blake2b(_content(episode), digest_size=16).digest()
        if digest in seen:
            yield episode.id
        seen.add(digest)


def _content(episode: Episode) -> bytes:
    """Everything that was said and seen, and where it began, as bytes that are the same for nothing else."""
    calls: dict[str, int] = {"": 0}

    def plain(messages: Iterable[Message]) -> list[dict[str, Any]]:
        found = messages_to_json(tuple(messages))
        for message in found:
            for call in message["tool_calls"]:
                call["id"] = calls.setdefault(call["id"], len(calls))
            message["tool_call_id"] = calls.setdefault(message["tool_call_id"], len(calls))
        return found

    begun = None if episode.parent is None else (episode.parent.episode, episode.parent.turn, episode.parent.token)
    turns = [
        [turn.actor, plain(turn.messages), turn.error and turn.error.model_dump(), plain(turn.step.observation)]
        for turn in episode.turns
    ]
    content = [episode.task_id, begun, plain(episode.root.observation), turns]
    return json.dumps(content, sort_keys=True).encode()


def contaminated(
    episodes: Iterable[Episode], held_out: Iterable[str], *, words: int = WORDS
) -> Iterator[tuple[str, str]]:
    """The ids of episodes in which `words` words in a row come from a held-out text, and those words.

    Words are what is between anything but letters and digits, in lower case. A held-out text of fewer words counts
    as a whole.
    """
    if words < 1:
        raise ValueError(f"words is {words}; it must be at least 1")
    known: dict[int, set[tuple[str, ...]]] = {}
    for text in held_out:
        found = words_of(text)
        size = min(words, len(found))
        if size:
            known.setdefault(size, set()).update(_runs(found, size))
    for episode in episodes:
        leak = next((run for text in _texts(episode) for run in _leaks(words_of(text), known)), None)
        if leak is not None:
            yield episode.id, " ".join(leak)


def _leaks(found: Sequence[str], known: Mapping[int, set[tuple[str, ...]]]) -> Iterator[tuple[str, ...]]:
    for size, runs in known.items():
        yield from (run for run in _runs(found, size) if run in runs)


def _runs(found: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    return (tuple(found[at : at + size]) for at in range(len(found) - size + 1))


def words_of(text: str) -> list[str]:
    """What is between anything but letters and digits, in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def _messages(episode: Episode) -> Iterator[Message]:
    yield from episode.root.observation
    for turn in episode.turns:
        yield from (*turn.messages, *turn.step.observation)


def _texts(episode: Episode) -> Iterator[str]:
    for message in _messages(episode):
        yield text_of(message)
        for call in message.tool_calls:
            yield call.name
            yield from _strings(call.arguments)


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
