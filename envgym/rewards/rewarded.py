"""An environment whose reward is that of a plan: the world's channels, what a text itself tells, what judges say.

Until the end there is no reward; then there is one, or a `GraderFailure` where the plan's mixture leaves it
unknown, so that a judge who contradicts himself is never a reward of zero. State is what the agent said so far; the
world's snapshots and forks are kept.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from envgym.env import THE_AGENT, Durable, Env, Snapshot, Step
from envgym.errors import EnvgymError, GraderFailure
from envgym.messages import Action, Message, ToolSpec
from envgym.options import wrong_option
from envgym.policy import Agent
from envgym.rewards.channels import Score, Total
from envgym.rewards.cost import price_score
from envgym.rewards.judge import Asker, Criterion, judge_pair, judge_rubric
from envgym.rewards.learned import LearnedReward, latest_messages
from envgym.rewards.plan import (
    CostChannel,
    FormatChannel,
    LearnedChannel,
    LengthChannel,
    PairChannel,
    RepetitionChannel,
    RewardPlan,
    Rubric,
    ScorerChannel,
    WorldChannel,
    reward_plan,
)
from envgym.rewards.scorers import named_scorer, scored
from envgym.rewards.text import Tag, format_score, length_score, repetition
from envgym.task import Task
from envgym.tools import compact
from envgym.wire import messages_from_json, messages_to_json

__all__ = ["AgentAsker", "Rewarded", "rewarding"]

_MOST_SAID = 100_000
"""Characters of what an agent said that are kept to be judged: the last ones."""


@dataclass(frozen=True, slots=True)
class AgentAsker:
    """Any agent as an `Asker`: each question is the first thing that a fresh one hears."""

    make: Callable[..., Agent]
    options: Mapping[str, Any]

    async def ask(self, question: str, *, seed: int) -> str:
        """What it answers. Raises what agents raise when they are gone (`EnvgymError`)."""
        agent = self.make(Task(id="judged", prompt=question), seed=seed, **self.options)
        try:
            return (await agent.act(Step(observation=(Message(role="user", content=question),)))).action.text
        finally:
            await agent.close()


class Rewarded:
    """An `Env` around an `Env`. askers: the plan's judges, by name; learned: its reward models, by channel."""

    def __init__(
        self, inner: Env, plan: RewardPlan, askers: Mapping[str, Asker],
        learned: Mapping[str, LearnedReward] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._inner, self._plan, self._askers, self._learned = inner, plan, askers, learned
        self.task = inner.task
        self._heard: tuple[Message, ...] = ()  # only where a reward model will read it
        self._said: tuple[str, ...] = ()
        self._earned: float | None = None
        self._spent: dict[str, float] = {}
        self._seed = 0
        self._actor = THE_AGENT
        self._counted = {one.cost for one in plan.channels.values() if isinstance(one, CostChannel)}

    @property
    def inner(self) -> Env:
        """The environment inside."""
        return self._inner

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._inner.tools

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """See `Env.reset`. Raises ValueError for a snapshot of an environment without this plan."""
        if start is None:
            self._said, self._earned, self._spent, self._seed = (), None, {}, seed
            self._heard = ()
            return self._shown(await self._inner.reset(seed=seed))
        kept = self._own(start)
        step = await self._inner.reset(seed=seed, start=start.inside())
        self._said, self._earned, self._seed = tuple(kept["said"]), kept["earned"], start.seed
        self._spent = dict(kept["spent"])
        shown = self._shown(replace(step, reward=None, channels={}))
        # what a snapshot's own step shows was heard before it was taken
        self._heard = messages_from_json(kept["heard"])
        return shown

    async def step(self, action: Action) -> Step:
        """Act; at the end the reward is the plan's. Raises GraderFailure where it is unknown."""
        if self._actor == THE_AGENT:
            self._said = _latest((*self._said, _words(action)))
            self._hear(action.message)
        step = await self._inner.step(action)
        if step.reward is not None:
            self._earned = (self._earned or 0.0) + step.reward
        for name in self._counted & step.cost.keys():
            self._spent[name] = self._spent.get(name, 0.0) + step.cost[name]
        if step.stop is None:
            return self._shown(replace(step, reward=None))
        return await self._graded(step)

    def _shown(self, step: Step) -> Step:
        self._actor = step.next_actor
        if self._actor == THE_AGENT:
            self._hear(*step.observation)
        return step

    def _hear(self, *messages: Message) -> None:
        if self._learned:
            self._heard = latest_messages((*self._heard, *messages))

    async def _graded(self, step: Step) -> Step:
        text = self._judged(step)
        scores: dict[str, Score] = {}
        more: dict[str, float] = {}
        for name, one in self._plan.channels.items():
            match one:
                case WorldChannel(channel="reward"):
                    scores[name] = self._earned
                case WorldChannel(channel=channel):
                    scores[name] = step.channels.get(channel)
                case FormatChannel() | LengthChannel() | RepetitionChannel():
                    scores[name] = _of_text(one, text)
                case CostChannel():
                    spent = self._spent.get(one.cost, 0.0)
                    scores[name] = price_score(spent, most=one.most, least=one.least)
                    more[f"{name}_spent"] = spent
                case LearnedChannel():
                    scores[name] = self._learned[name].score(self._heard)
                case ScorerChannel():
                    scores[name] = await scored(name, named_scorer(one.function), self.task, step.submission or "")
                case Rubric() | PairChannel():
                    scores[name], agreement = await self._asked(name, one, text)
                    more[f"{name}_agreement"] = agreement
        total = self._plan.mixture.total(scores)
        if total.reward is None:
            raise GraderFailure(
                f"task {self.task.id!r}: no reward can be told: {', '.join(total.silent)} said nothing"
            )
        return self._shown(_ended(step, total, more))

    async def _asked(self, name: str, one: Rubric | PairChannel, text: str) -> tuple[Score, float]:
        """What a judge says, and how much he agrees with himself."""
        asker = self._askers[one.judge]
        try:
            if isinstance(one, Rubric):
                criteria = self._criteria(one)
                if not criteria:  # of none all are true; where the task has no such list nothing is known
                    return (None, 0.0) if criteria is None else (1.0, 1.0)
                found = await judge_rubric(
                    asker, self.task.prompt, text, criteria, seed=self._seed, times=one.times,
                    least_agreement=one.least_agreement,
                )  # fmt: skip
                return found.score, found.agreement
            other = str(self.task.metadata.get(one.against, ""))
            if not other:
                return None, 0.0
            preferred = await judge_pair(asker, self.task.prompt, text, other, seed=self._seed)
            return preferred.score, float(preferred.consistent)
        except EnvgymError as error:
            raise GraderFailure(f"channel {name!r}: the judge {one.judge!r} broke: {error}") from error

    def _criteria(self, one: Rubric) -> list[Criterion] | None:
        """The plan's sentences, or those of the task's metadata; None where there is no such list."""
        if not one.criteria_from:
            return [Criterion(*each) for each in one.criteria.items()]
        given = self.task.metadata.get(one.criteria_from)
        if not isinstance(given, list):
            return None
        return [Criterion(str(number), str(says)) for number, says in enumerate(given, 1)]

    def _judged(self, step: Step) -> str:
        match self._plan.judged:
            case "all":
                return "\n\n".join(self._said)
            case "submission":
                return step.submission or ""
        return self._said[-1] if self._said else ""

    # -- states ------------------------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        """The inner one, with what was said in it."""
        return self._kept(await self._inner.snapshot())

    async def durable_snapshot(self) -> Snapshot:
        """As `snapshot`, of the inner one's durable state where it has such."""
        inner = self._inner
        return self._kept(await (inner.durable_snapshot() if isinstance(inner, Durable) else inner.snapshot()))

    def _kept(self, inner: Snapshot) -> Snapshot:
        kept: dict[str, Any] = {
            "rewarded": True,
            "said": list(self._said),
            "earned": self._earned,
            "spent": self._spent,
            "heard": messages_to_json(self._heard),
        }
        return inner.around(kept, task_id=self.task.id, seed=self._seed)

    @staticmethod
    def _own(snapshot: Snapshot) -> dict[str, Any]:
        try:
            kept = json.loads(snapshot.state)
            if kept["rewarded"]:
                return kept  # type: ignore[no-any-return]
        except (ValueError, TypeError, KeyError):
            pass
        raise ValueError(
            f"this snapshot of task {snapshot.task_id!r} is of an environment without the option 'rewards'; "
            "restore it in one made the same way"
        )

    async def release(self, snapshot: Snapshot) -> None:
        """Give the inner snapshot's resources back."""
        self._own(snapshot)
        await self._inner.release(snapshot.inside())

    async def fork(self) -> "Rewarded":
        """A fork of the inner one that heard the same."""
        other = Rewarded(await self._inner.fork(), self._plan, self._askers, self._learned)
        other._heard = self._heard
        other._said, other._earned, other._seed, other._actor = self._said, self._earned, self._seed, self._actor
        other._spent = dict(self._spent)
        return other

    async def close(self) -> None:
        """Close the inner one."""
        await self._inner.close()


_Plan = tuple[RewardPlan, dict[str, Asker], dict[str, LearnedReward]]


def rewarding(given: Any, find: Callable[[Any, str], Any]) -> _Plan | None:
    """A plan as options give it (None: none), its judges and reward models. find: looks up a name in the registry.

    Raises ValueError for a judge, scorer or reward model there is not, and for an option that a judge lacks; else
    as `reward_plan`.
    """
    if given is None:
        return None
    plan, askers, learned = reward_plan(given), dict[str, Asker](), dict[str, LearnedReward]()
    for name, channel in plan.channels.items():
        if isinstance(channel, LearnedChannel):
            try:
                learned[name] = find("reward_models", channel.model)(channel.path, device=channel.device)
            except ValueError as error:
                raise ValueError(f"rewards.channels.{name}: {error}") from error
        if isinstance(channel, ScorerChannel):
            try:
                named_scorer(channel.function)
            except ValueError as error:
                raise ValueError(f"rewards.channels.{name}.function: {error}") from error
    for name, judge in plan.judges.items():
        made = find("agents", judge.agent)
        where = f"rewards.judges.{name}.options"
        if (wrong := wrong_option(where, judge.options, made, given={"seed", "tools"}, skip=1)) is not None:
            raise ValueError(wrong)
        askers[name] = AgentAsker(made, judge.options)
    return plan, askers, learned


def _of_text(one: FormatChannel | LengthChannel | RepetitionChannel, text: str) -> float:
    match one:
        case FormatChannel():
            return format_score(text, [Tag(tag) for tag in one.tags], alone=one.alone)
        case LengthChannel():
            return length_score(len(text), most=one.most, soft=one.soft)
    return repetition(text, size=one.size)


def _ended(step: Step, total: Total, more: Mapping[str, float]) -> Step:
    """The world's last step with the plan's reward; what the world could not grade is silent unless judged."""
    told = total.step
    info = {**step.info, **told["info"]}
    if silent := {*step.info.get("silent", ()), *total.silent} - total.channels.keys():
        info["silent"] = sorted(silent)
    else:
        info.pop("silent", None)
    channels = {**step.channels, **told["channels"], **more}
    return replace(step, reward=total.reward, channels=channels, info=info)


def _words(action: Action) -> str:
    return "\n".join([*(compact(call) for call in action.calls), action.text]).strip()


def _latest(said: tuple[str, ...]) -> tuple[str, ...]:
    """The last texts that fit, the last of all in any case, cut."""
    kept: list[str] = []
    room = _MOST_SAID
    for text in reversed(said):
        if kept and len(text) > room:
            break
        kept.append(text[-_MOST_SAID:])
        room -= len(text)
    return tuple(reversed(kept))
