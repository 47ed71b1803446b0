"""What watches a run: writers that are told each step's metrics, and stops for what a run does not recover from.

`metrics.jsonl` is written in any case; these are beside it. A stop says what happened, the value, the bound and
what to look at; the run can be resumed from its last checkpoint, with other bounds, too. What it looks for: sampler
and learner that disagree about log-probabilities, entropy that collapses, gradients that spike, and a reward that
grows while what is really wanted does not (Gao et al. 2022, arXiv 2210.10760).
"""

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol, Self

from envgym.episode import Episode
from envgym.errors import EnvgymError
from envgym_agents.learn.config import Reinforce, Watch

__all__ = ["Anomaly", "Stops", "Unmet", "Writer", "writers"]

_LOG = logging.getLogger("envgym")

_RECENT, _LEAST = 20, 5


class Anomaly(EnvgymError):
    """A run was stopped by what it watches for; the message says by what. It can be resumed."""


class Writer(Protocol):
    """Is told the metrics of every step; a context manager, which flushes at its end."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of one step."""
        ...


class Writers(AbstractContextManager["Writers"]):
    """Those that a configuration asks for, opened together. Raises ValueError for one that is not installed."""

    def __init__(self, config: Watch, folder: Path, settings: Mapping[str, Any]) -> None:
        self._config, self._folder, self._settings = config, folder, settings
        self._stack, self._open = ExitStack(), list[Writer]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._config.tensorboard:
                self._open.append(stack.enter_context(_TensorBoard(self._folder)))
            if self._config.wandb != "off":
                self._open.append(stack.enter_context(_Wandb(self._config, self._folder, self._settings)))
            if self._config.trackio:
                self._open.append(stack.enter_context(_Trackio(self._config, self._folder, self._settings)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Tell every one of them."""
        for writer in self._open:
            writer.write(step, values)


def writers(config: Watch, folder: Path, settings: Mapping[str, Any]) -> Writers:
    """What to write metrics with; settings: the run's configuration, for writers that keep it."""
    return Writers(config, folder, settings)


class _TensorBoard(AbstractContextManager["_TensorBoard"]):
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", "tensorboard") from error
        self._to = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._to.add_scalar(name, value, step)

    def __exit__(self, *_: object) -> None:
        self._to.close()


class _Wandb(AbstractContextManager["_Wandb"]):
    def __init__(self, config: Watch, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "wandb") from error
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=config.project,
            name=folder.name,
            dir=str(folder),
            mode="online" if config.wandb == "online" else "offline",
            config=dict(settings),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def __exit__(self, *_: object) -> None:
        self._run.finish()


class _Trackio(AbstractContextManager["_Trackio"]):
    def __init__(self, config: Watch, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise _missing("trackio", "trackio") from error
        self._storage, self._project, self._name = SQLiteStorage, config.project, folder.name
        self._settings = dict(settings)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._storage.bulk_log(
            project=self._project, run=self._name, metrics_list=[dict(values)], steps=[step], config=self._settings
        )

    def __exit__(self, *_: object) -> None:
        return


def _missing(name: str, package: str) -> ValueError:
    return ValueError(f"watch.{name}: {package} is not installed; pip install 'envgym[watch]'")


def _stopped(when: str, seen: str, name: str, advice: str) -> str:
    return (
        f"stopped after {when}: {seen} (watch.{name}): {advice}. --resume goes on from the last checkpoint, also "
        "with another bound; other settings want a new run, which may begin with a checkpoint (model.path)"
    )


@dataclass(slots=True)
class Unmet:
    """Warns, once, of names that no episode of the first step has: such a price or metric changes nothing, unseen.

    Costs with a price or a limit, and `reinforce.metric`. Another episode may have them: so no more than a warning.
    """

    config: Reinforce
    _told: bool = False

    def look(self, episodes: Sequence[Episode]) -> None:
        """Look at a step's episodes."""
        whole = [episode for episode in episodes if episode.failure is None]
        if self._told or not whole:
            return
        self._told = True
        prices, metric = self.config.loss.prices, self.config.metric
        costs = {name for episode in whole for turn in episode.turns for name in turn.step.cost}
        asked = [(f"reinforce.loss.prices: a cost {name!r}", costs) for name in (*prices.costs, *prices.limits)
                 if name not in costs]  # fmt: skip
        channels = {name for one in whole for grade in one.grades for name in grade.channels}
        channels |= {name for one in whole for name in (one.turns[-1].step if one.turns else one.root).channels}
        if metric and metric not in channels:
            asked.append((f"reinforce.metric: a channel {metric!r} of a grade or a last step", channels))
        for what, there in asked:
            known = ", ".join(sorted(there)) or "none"
            _LOG.warning("%s is in none of the first %d episodes; there are: %s", what, len(whole), known)


@dataclass(slots=True)
class Stops:
    """Looks at each step's metrics. It keeps the last steps only: a run that is resumed begins to look anew.

    metrics: the run's own file of them; the gap is told since the first of its steps, whoever has played that.
    unmet: is shown each step's episodes.
    """

    config: Watch
    metrics: Path | None = None
    unmet: Unmet | None = None
    _times: dict[str, int] = field(default_factory=dict)
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _first: tuple[float, float] | None = None

    def look(self, step: int, values: Mapping[str, float], episodes: Sequence[Episode] = ()) -> None:
        """Raise Anomaly when something has been wrong for `patience` steps in a row."""
        if self.unmet is not None:
            self.unmet.look(episodes)
        looked = (
            self._mismatch(values), self._entropy(values), self._gradient(values), self._skipped(values),
            self._gap(values),
        )  # fmt: skip
        found = {one[0]: one[1:] for one in looked if one is not None}
        self._times = {name: self._times.get(name, 0) + 1 for name in found}
        for name, times in self._times.items():
            if times >= (self.config.skipped if name == "skipped" else self.config.patience):
                seen, advice = found[name]
                raise Anomaly(_stopped(f"step {step}", f"{seen}, {times} steps in a row", name, advice))

    def look_at_imitation(self, update: int, in_a_row: int) -> None:
        """Raise Anomaly when so many updates of a warm start in a row were left out."""
        if self.config.skipped and in_a_row >= self.config.skipped:
            seen = f"the gradient was no number, {in_a_row} updates in a row"
            advice = "look at the expert's episodes, or lower warm_start.lr"
            raise Anomaly(_stopped(f"update {update} of the warm start", seen, "skipped", advice))

    def _mismatch(self, values: Mapping[str, float]) -> tuple[str, str, str] | None:
        gap, bound = values.get("sampler_gap"), self.config.mismatch
        if not bound or gap is None or gap <= bound:
            return None
        seen = (
            f"a token's log-probability as sampled and as the learner computes it differ by {gap:.3g} nats, more "
            f"than {bound:g}"
        )
        advice = "the sampler has other weights, another temperature or other numbers; look at the last update"
        return "mismatch", seen, advice

    def _entropy(self, values: Mapping[str, float]) -> tuple[str, str, str] | None:
        entropy, bound = values.get("entropy"), self.config.entropy
        if not bound or entropy is None or entropy >= bound:
            return None
        seen = f"the entropy of sampled tokens is {entropy:.3g} nats, below {bound:g}"
        advice = "the policy has collapsed; lower reinforce.lr, or raise reinforce.entropy or reinforce.loss.kl"
        return "entropy", seen, advice

    def _gradient(self, values: Mapping[str, float]) -> tuple[str, str, str] | None:
        norm, factor = values.get("grad_norm"), self.config.gradient
        if not factor or norm is None:
            return None
        usual = median(self._norms) if len(self._norms) >= _LEAST else None
        if not isfinite(norm) or (usual is not None and norm > factor * usual):
            beside = (
                "no number" if usual is None else f"more than {factor:g} times the {usual:.3g} of the last steps"
            )
            seen = f"the gradient is {norm:.3g} long, {beside}"
            advice = "look at this step's episodes, or lower reinforce.lr or reinforce.max_grad_norm"
            return "gradient", seen, advice
        self._norms.append(norm)
        return None

    def _skipped(self, values: Mapping[str, float]) -> tuple[str, str, str] | None:
        if not self.config.skipped or values.get("skipped", 0.0) < 1:
            return None
        seen = "every gradient was no number, so no update was made"
        return "skipped", seen, "look at this step's episodes, or lower reinforce.lr"

    def _stored(self) -> tuple[float, float] | None:
        """Gap and reward of the first stored step that has a gap."""
        if self.metrics is None or not self.metrics.exists():
            return None
        with open(self.metrics, encoding="utf-8") as file:
            steps = map(json.loads, file)
            return next(((one["metric_gap"], one.get("reward", 0.0)) for one in steps if "metric_gap" in one), None)

    def _gap(self, values: Mapping[str, float]) -> tuple[str, str, str] | None:
        gap, bound = values.get("metric_gap"), self.config.gap
        if not bound or gap is None:
            return None
        reward = values.get("reward", 0.0)
        if self._first is None:
            self._first = self._stored() or (gap, reward)
        grown = gap - self._first[0]
        if grown <= bound:
            return None
        seen = (
            f"since the first step the reward has gained {grown:.3g} more than reinforce.metric has, above "
            f"{bound:g} (reward {self._first[1]:.3g} then, {reward:.3g} now)"
        )
        advice = "it is earned by something else than what is wanted; read some of the last episodes"
        return "gap", seen, advice
