"""Minari datasets of text episodes (HDF5), written and read by Minari itself: ``minari.load_dataset`` opens them.

An observation is the text of what the world answered, an action the text of what the agent said; rewards,
terminations and truncations are Minari's own arrays. Minari's file format cannot hold an episode without a step,
nor NUL in a text. Other tools' datasets are read too: numbers and arrays become their JSON.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from envgym.env import THE_AGENT, Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.formats.contract import Exported, FormatError, Options, Where
from envgym.formats.exact import Told, tell
from envgym.formats.losses import NO_EPISODES
from envgym.formats.paths import foreign_episode, foreign_info
from envgym.formats.record_format import KEY, Tally, decoded
from envgym.formats.records import Regroup, seal, unseal
from envgym.formats.sharegpt import as_text
from envgym.formats.texts import no_nul
from envgym.messages import ImagePart, Message, TextPart
from envgym.whole import new_target

try:
    from gymnasium.spaces import Text
    from minari import __version__ as minari_version
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
except ImportError as error:  # pragma: no cover  # CI installs the extra
    raise ImportError(
        f"the format 'minari' needs the package minari ({error}); install it: pip install 'envgym[data]'"
    ) from error

__all__ = ["MINARI"]

_LONGEST = 1 << 30
_RAW = "application/x-raw"


class _Minari:
    """The `Format`."""

    name = "minari"
    uses = ("name",)

    def write(self, groups: Iterable[Group], target: Path, *, options: Options) -> Exported:
        """See `Format.write`. The dataset's id is the card's name, by default "envgym/export-v0"."""
        tally = Tally()
        with new_target(target, folder=True) as part:
            space = Text(_LONGEST, min_length=0, charset=string.printable)
            data = (part / "data").absolute()  # Minari looks for its file from there, not from here
            storage = MinariStorage.new(
                data, observation_space=space, action_space=space, data_format="hdf5", jpeg_encoding=False
            )
            card = options.card
            told_by = {"description": card.description} if card.description else {}
            storage.update_metadata(
                {"dataset_id": _dataset_id(card.name), "minari_version": minari_version, **told_by}
            )
            for group in groups:
                tally.count(group)
                buffers, back = _buffers(group, options, tally)
                tally.losses.compare(group, back)
                if buffers:
                    tally.held += 1
                    storage.update_episodes(buffers)
        return tally.exported(self.name, target, 2)

    def read(self, source: Path) -> Iterator[Group]:
        """See `Format.read`; `source` is a dataset's folder, with or without its "data"."""
        where = Where(source)
        data = source / "data" if (source / "data").is_dir() else source
        try:
            storage = MinariStorage.read(data)
            total = storage.total_episodes
        except Exception as error:  # it opens with assertions, key errors, JSON and HDF5 errors alike
            raise FormatError(where, f"it is no Minari dataset: {type(error).__name__}: {error}") from error
        regroup = Regroup()
        for k in range(total):
            place = Where(source, f"episode {k}")
            raw = _stored(storage, k, place)
            text = _extra(raw)
            said = decoded(partial(_decode, raw, Where(Path("ours")) if text else place, text is not None), place)
            if text is None:
                yield from regroup.rest()
                yield Group(said.task_id, (said,))
            else:
                yield from regroup.add(*unseal(said, text, place, _plain(_main(raw))), place)
        yield from regroup.rest()


MINARI = _Minari()


def _dataset_id(name: str) -> str:
    named = re.sub(r"[^A-Za-z0-9_./-]+", "-", name).strip("/-.") or "envgym/export"
    return named if re.search(r"-v\d+$", named) else f"{named}-v0"


def _stored(storage: Any, index: int, where: Where) -> dict[str, Any]:
    try:
        raw = dict(next(iter(storage.get_episodes([index]))))
        raw["metadata"] = dict(next(iter(storage.get_episode_metadata([index]))))
        return raw
    except Exception as error:  # as above
        raise FormatError(where, f"Minari cannot read it: {type(error).__name__}: {error}") from error


def _buffers(group: Group, options: Options, tally: Tally) -> tuple[list[Any], list[Episode]]:
    """What Minari stores of a group, and what will be read from that."""
    kept = _with_steps(group, tally)
    regroup, buffers = Regroup(), []
    back: list[Episode] = []
    for told in tell(kept, tally.held) if kept is not None else []:
        raw = _encode(told)
        where = Where(Path("ours"))
        said = _decode(raw, where, options.extra)
        if options.extra:
            text = seal(told, said, _plain(_main(raw)))
            raw["infos"] = {KEY: [text, *[""] * len(raw["actions"])]}
            for whole in regroup.add(*unseal(said, text, where, _plain(_main(raw))), where):
                back += whole.episodes
        else:
            back.append(said)
        seed = told.episode.seed if 0 <= told.episode.seed < 2**63 else None
        fields = {key: value for key, value in raw.items() if key != "metadata"}
        buffers.append(EpisodeBuffer(seed=seed, **fields))
    return buffers, [*back, *(episode for whole in regroup.rest() for episode in whole)]


def _with_steps(group: Group, tally: Tally) -> Group | None:
    """A group without the episodes that Minari has no file for; forks of those begin by themselves."""
    paths = {episode.id: len(group.path(episode)) for episode in group}
    if not group.episodes:
        tally.losses.add(NO_EPISODES, f"task {group.task_id}")
    kept = []
    for episode in group:
        if not paths[episode.id]:
            continue
        parent = episode.parent
        kept.append(replace(episode, parent=None) if parent is not None and not paths[parent.episode] else episode)
    return Group(group.task_id, tuple(kept)) if kept else None


def _text(messages: Iterable[Message]) -> str:
    return no_nul("\n".join(as_text(message) for message in messages))


def _encode(told: Told) -> dict[str, Any]:
    turns = told.turns
    stop = told.episode.stop
    last = [False] * (len(turns) - 1)
    return {
        "observations": [_text(told.root.observation), *(_text(turn.step.observation) for turn in turns)],
        "actions": [_text(turn.messages) for turn in turns],
        "rewards": [0.0 if turn.step.reward is None else float(turn.step.reward) for turn in turns],
        "terminations": [*last, stop is not None and not stop.truncated],
        "truncations": [*last, stop is None or stop.truncated],
        "infos": None,
        "metadata": {"seed": told.episode.seed} if 0 <= told.episode.seed < 2**63 else {},
    }


def _main(raw: dict[str, Any]) -> dict[str, Any]:
    """What Minari stores of an episode besides its infos."""
    return {key: list(raw[key]) for key in ("observations", "actions", "rewards", "terminations", "truncations")}


def _extra(raw: dict[str, Any]) -> str | None:
    """Our text, taken out of an episode's infos."""
    infos = raw.get("infos")
    if not isinstance(infos, dict) or KEY not in infos:
        return None
    rest = {key: value for key, value in infos.items() if key != KEY}
    raw["infos"] = rest or None
    first = infos[KEY][0] if len(infos[KEY]) else b""
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
    return text or None


def _decode(raw: dict[str, Any], where: Where, ours: bool) -> Episode:
    rewards = [float(reward) for reward in raw["rewards"]]
    seen = [_seen(_at(raw["observations"], k)) for k in range(len(rewards) + 1)]
    infos = raw.get("infos") or {}

    def info(k: int) -> dict[str, Any]:
        return {} if ours else {key: _plain(_at(value, k)) for key, value in infos.items()}

    turns = []
    for k, reward in enumerate(rewards):
        act = Message(role="assistant", content=_said(_at(raw["actions"], k)))
        turns.append(Turn(THE_AGENT, (act,), Step(observation=seen[k + 1], reward=reward, info=info(k + 1))))
    stop = StopReason.SUBMITTED
    if rewards:
        stop = StopReason.GOAL if raw["terminations"][-1] else StopReason.TURN_LIMIT
        turns[-1] = replace(turns[-1], step=replace(turns[-1].step, stop=stop))
    metadata = raw.get("metadata") or {}
    rest = {key: _plain(value) for key, value in metadata.items() if key not in ("id", "seed", "total_steps")}
    root = Step(observation=seen[0], info={**info(0), **({} if ours else foreign_info(metadata=rest))})
    found = foreign_episode(where, root, tuple(turns), stop=stop)
    return replace(found, seed=int(metadata.get("seed") or 0))


def _at(values: Any, k: int) -> Any:
    """The k-th of what Minari stores by component."""
    if isinstance(values, dict):
        return {key: _at(value, k) for key, value in values.items()}
    if isinstance(values, tuple):
        return [_at(value, k) for value in values]
    return values[k] if k < len(values) else None


def _plain(value: Any) -> Any:
    """A stored value as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return value


def _said(value: Any) -> str:
    found = _plain(value)
    return found if isinstance(found, str) else json.dumps(found)


def _seen(value: Any) -> tuple[Message, ...]:
    """An observation as messages: text as it is, a picture by its hash, anything else as its JSON."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3) and value.size >= 1024:
        shape = "x".join(map(str, value.shape))
        image = ImagePart(sha256=hashlib.sha256(value.tobytes()).hexdigest(), media_type=f"{_RAW};shape={shape}")
        return (Message(role="user", content=(TextPart(text=f"[image {shape}]"), image)),)
    text = _said(value)
    return (Message(role="user", content=text),) if text else ()
