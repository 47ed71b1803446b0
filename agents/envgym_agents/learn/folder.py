"""The run folder: what a training run writes, and which of its stages are done.

config.json                the configuration; a resumed run may change how long it goes on, no more
names.json                 the folder of each hub name that it began with, so that it goes on with that copy
stages.json                results of finished stages; a stage found here is not run again
metrics.jsonl              one line per RL step
restarts.jsonl             one line per lost process of the learner, after which the run went on by itself
trajectories/              every episode, as it was played, in one store; its id says for what: expert-...,
s00012-...
                           (of step 12), evaluate-<name>-...
checkpoints/warm_start, checkpoints/reinforce
student/ warm/ trained/    model folders with their tokenizer: fresh, after the warm start, after RL
report.json warm_start.png learning_curve.png
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from envgym.episode import Episode
from envgym.store import StoreReader
from envgym_agents.learn.config import TrainConfig, checked
from envgym_agents.learn.durable import write_json

__all__ = ["DURATION", "TRAJECTORIES", "RunFolder", "check_begun", "configuration_of", "differing", "names_of"]

NAMES = "names.json"

TRAJECTORIES = "trajectories"
"""The store of all episodes, in a run's folder."""


class RunFolder:
    """Paths and finished stages of one run.

    Raises ValueError when the folder holds a run and `resume` is false, holds none and `resume` is true, or when
    the configuration differs from the stored one.
    """

    def __init__(self, path: str | Path, config: TrainConfig, *, resume: bool = False) -> None:
        self.path = Path(path)
        stored = check_begun(self.path, resume=resume)
        self._stages: dict[str, Any] = {}
        if (self.path / "stages.json").exists():
            self._stages = _read(self.path / "stages.json")
        earlier = configuration_of(stored) if stored.exists() else None
        # a finished stage is not run again: a new bound on it would say what was not done
        open_bounds = [name for name in DURATION if name.partition(".")[0] not in self._stages]
        if earlier is not None and (changed := differing(earlier, config, may_differ=open_bounds)):
            raise ValueError(
                f"{self.path} was begun with another configuration; it differs, then and now, in: "
                f"{', '.join(changed)}. Resume with the same values (those of a finished stage cannot change any "
                "more), or begin a new run"
            )
        if config != earlier:
            write_json(stored, config.model_dump(mode="json"))

    def done(self, stage: str) -> Any | None:
        """The result of a finished stage, None when it is not finished."""
        return self._stages.get(stage)

    def finish(self, stage: str, result: Any) -> None:
        """Record a stage's result (plain data) durably."""
        self._stages[stage] = result
        write_json(self.path / "stages.json", self._stages)

    def remember(self, names: Mapping[str, str]) -> None:
        """Keep what hub names mean here; what was kept before stays as it is."""
        write_json(self.path / NAMES, {**names, **names_of(self.path)})

    @property
    def trajectories(self) -> Path:
        """The store of all episodes."""
        return self.path / TRAJECTORIES

    def read(self, name: str) -> list[Episode]:
        """The episodes that were played for a stage, sorted by id."""
        own = re.compile(re.escape(name) + r"-\d{5,}-\d+")
        with StoreReader(self.trajectories) as reader:
            return [reader[one] for one in sorted(reader.ids) if own.fullmatch(one)]


def names_of(path: str | Path) -> dict[str, str]:
    """The folder of each hub name that a run began with; {} of one that has begun with none, or not begun."""
    kept = Path(path) / NAMES
    return _read(kept) if kept.exists() else {}


def _read(path: Path) -> dict[str, Any]:
    """A file of a run folder. Raises ValueError, with its name, where it is no table of JSON."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged, it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no table")
    return found


def check_begun(path: str | Path, *, resume: bool) -> Path:
    """The file of a run's configuration. Raises ValueError when it is there and should not be, or the other way.

    A new run wants a folder of its own: one that holds something else is refused too, but for `TRAJECTORIES`, where
    its sandboxes may have been prepared.
    """
    stored = Path(path) / "config.json"
    if stored.exists() and not resume:
        raise ValueError(f"{path} already holds a run; resume it (--resume) or choose another folder")
    if stored.parent.exists() and not stored.parent.is_dir():
        raise ValueError(f"{path} is a file; name a new folder for the run")
    if resume and not stored.exists():
        raise ValueError(f"{path} holds no run to resume: there is no {stored.name}")
    if not resume and stored.parent.is_dir() and any(one.name != TRAJECTORIES for one in stored.parent.iterdir()):
        raise ValueError(f"{path} holds other things and no run; name a new folder")
    return stored


def configuration_of(path: Path) -> TrainConfig:
    """The configuration of a run folder; of one from before there was a choice, playing and learning took turns."""
    values = _read(path)
    reinforce = values.get("reinforce", {})
    loop = reinforce.setdefault("loop", {"staleness": 0})
    if "retries" in reinforce:
        loop["retries"] = reinforce.pop("retries")
    try:
        return checked(values)
    except ValueError as error:
        raise ValueError(f"{path} is of a run that this version cannot go on with: {error}") from error


# What may change between a run and its resumption: how long it goes on, who plays where, how many threads
# compute (both can change the last bits of a sum, so the resumed weights then need not equal the uninterrupted
# ones'), and how often snapshots are taken for the next one.
DURATION = frozenset(
    [
        "threads",
        "learner.processes",
        "learner.restarts",
        "learner.patience_s",
        "cluster",
        "snapshot_every",
        "reinforce.steps",
        "reinforce.minutes",
        "reinforce.tokens",
        "reinforce.checkpoint_every",
        "watch",
        "warm_start.minutes",
        "warm_start.max_updates",
    ]
)


def differing(one: TrainConfig, other: TrainConfig, *, may_differ: Collection[str] = DURATION) -> list[str]:
    """The fields in which two configurations differ, each with both values, but for the dotted names given."""
    return sorted(_differing(one.model_dump(mode="json"), other.model_dump(mode="json"), may_differ))


def _differing(old: Any, new: Any, may_differ: Collection[str], name: str = "") -> Iterable[str]:
    if name in may_differ or old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for field in old.keys() | new.keys():
            yield from _differing(old.get(field), new.get(field), may_differ, f"{name}.{field}" if name else field)
    else:
        yield f"{name} ({old!r}, {new!r})"
