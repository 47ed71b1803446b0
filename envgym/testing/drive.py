"""Driving an environment for a check: make, reset, step and compare, each answer examined on the way."""

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envgym.env import Env, Playable, Snapshot, Step, StopReason, observation_digest
from envgym.errors import Boundary, EnvgymError
from envgym.messages import Action, Message, ToolSpec
from envgym.replay import as_env
from envgym.testing.actions import action_of
from envgym.wire import dumps, step_from_json, step_to_json

__all__ = ["Broken", "Chooser", "Kit", "Make", "Track", "check_step", "require", "same"]

Chooser = Callable[[Step, Sequence[ToolSpec], np.random.Generator], Action]
"""Picks the next action of a drive: ``choose(step, tools, rng)``."""

Make = Callable[[], Env | Playable | Awaitable[Env | Playable]]
"""Gives a fresh environment per call; a Playable must come from a plain function, not a coroutine."""


class Broken(AssertionError):
    """A sentence of the contract does not hold; an assertion of the environment's own is no such finding."""


@dataclass(slots=True)
class Track:
    """One drive: seed, and per step the action that led to it (None for reset), the step and its digest."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    @property
    def digests(self) -> list[str]:
        """The digest of every step."""
        return [observation_digest(step) for step in self.steps]

    @property
    def ended(self) -> bool:
        """Whether its last step ended the episode."""
        return self.steps[-1].stop is not None


@dataclass(slots=True)
class Kit:
    """What all checks share: how to make an environment and how to choose, and the bounds."""

    make_env: Make
    seeds: tuple[int, ...]
    turns: int
    choose: Chooser
    deadline_s: float
    uses_seed: bool | None
    leftovers: Callable[[], Collection[str]] | None
    unreached: list[str] = field(default_factory=list)

    async def make(self) -> Env:
        """A fresh environment, a Playable wrapped."""
        made = self.make_env()
        found = await made if inspect.isawaitable(made) else made
        require(isinstance(found, Playable), "make() gives an Env, or a Playable with reset, step and close", found)
        return as_env(found, self.make_env)

    async def within(self, env: Env, name: str, *given: Any, **named: Any) -> Any:
        """Call and await within the deadline."""
        try:
            async with asyncio.timeout(self.deadline_s) as timer:
                made = getattr(env, name)(*given, **named)
                require(inspect.isawaitable(made), f"{name} is a coroutine function: `async def {name}`", made)
                return await made
        except TimeoutError:
            require(not timer.expired(), f"every call answers: {name} took more than {self.deadline_s:g} s")
            raise

    async def call(self, env: Env, name: str, *given: Any, **named: Any) -> Any:
        """`within`, for a call in its right order: what the environment raises then is a broken sentence."""
        try:
            return await self.within(env, name, *given, **named)
        except (Exception, SystemExit) as error:
            if isinstance(error, Broken) or (
                isinstance(error, EnvgymError) and error.boundary is not Boundary.ENVIRONMENT
            ):
                raise
            raise Broken(f"no call raises: {name} raised {type(error).__name__}: {error}") from error

    async def reset(self, env: Env, seed: int, start: Snapshot | None = None) -> Step:
        """Reset and examine the answer."""
        step = await self.call(env, "reset", seed=seed, start=start)
        check_step(step, env, first=True)
        return step  # type: ignore[no-any-return]

    async def step(self, env: Env, action: Action) -> Step:
        """Step and examine the answer."""
        step = await self.call(env, "step", action)
        check_step(step, env, first=False)
        return step  # type: ignore[no-any-return]

    async def drive(self, env: Env, seed: int, *, salt: int = 0) -> Track:
        """A fresh drive of up to `turns` steps; its choices come from seed and salt."""
        rng = np.random.default_rng([abs(seed), salt])
        track = Track(seed, [await self.reset(env, seed)])
        while not track.ended and len(track.actions) < self.turns:
            track.actions.append(self.choose(track.steps[-1], env.tools, rng))
            track.steps.append(await self.step(env, track.actions[-1]))
        return track

    async def longest(self, env: Env, seed: int) -> Track:
        """The longest of a few drives: random actions may end an episode at once."""
        tracks = []
        for salt in range(4):
            tracks.append(await self.drive(env, seed, salt=salt))
            if len(tracks[-1].actions) >= self.turns:
                break
        return max(tracks, key=lambda track: len(track.actions))

    async def follow(self, env: Env, track: Track, *, begin: int, law: str) -> None:
        """Play the track's actions from `begin` on and compare every answer with the track's."""
        for index in range(begin, len(track.actions)):
            try:
                step = await self.step(env, track.actions[index])
            except Broken as error:  # such as "after the end" where the track went on
                raise Broken(f"{law}; step {index + 1}: {error}") from error
            same(track.steps[index + 1], step, index + 1, law)

    async def replay(self, env: Env, track: Track, law: str) -> None:
        """Play the whole track on a reset environment and compare."""
        same(track.steps[0], await self.reset(env, track.seed), 0, law)
        await self.follow(env, track, begin=0, law=law)


def require(holds: bool, sentence: str, *seen: object) -> None:
    """Raise Broken with the sentence (and what was seen) unless it holds."""
    if not holds:
        shown = "".join(f"\n  seen: {str(one)[:400]!r}" for one in seen)
        raise Broken(sentence + shown)


def same(expected: Step, found: Step, index: int, law: str) -> None:
    """Raise Broken, naming what differs, unless two steps are the same to determinism."""
    if observation_digest(expected) != observation_digest(found):
        parts = ("text", "reward", "channels", "stop", "state_key", "legal")
        differ = [part for part in parts if getattr(expected, part) != getattr(found, part)]
        raise Broken(
            f"{law}; step {index} differs in {', '.join(differ) or 'its messages'}:"
            + "".join(
                f"\n  {part}: {str(getattr(expected, part))[:300]!r} != {str(getattr(found, part))[:300]!r}"
                for part in differ
            )
        )


def check_step(step: Any, env: Env, *, first: bool) -> None:
    """Every sentence about one answer."""
    require(isinstance(step, Step), "reset and step answer with a Step", step)
    require(
        isinstance(step.observation, tuple) and all(isinstance(one, Message) for one in step.observation),
        "an observation is a tuple of Messages", step.observation,
    )  # fmt: skip
    require(not first or step.reward is None, "reset gives no reward: its reward is None", step.reward)
    for name, amounts in (("channels", step.channels), ("cost", step.cost)):
        require(isinstance(amounts, Mapping), f"{name} is a mapping of names to finite numbers", amounts)
    numbers = {"reward": step.reward, **step.channels, **{f"cost {k}": v for k, v in step.cost.items()}}
    for name, value in numbers.items():
        finite = isinstance(value, (float, int)) and math.isfinite(value)
        require(
            finite or (value is None and name == "reward"),
            f"{name} is a finite number or, for the reward, None", value,
        )  # fmt: skip
    require(isinstance(step.state_key, str), "a state key is a str ('' when unknown)", step.state_key)
    require(step.stop is None or isinstance(step.stop, StopReason), "stop is a StopReason or None", step.stop)
    require(not first or step.stop is None, "an episode does not end before the first action", step.stop)
    legal = () if step.legal is None else step.legal
    require(
        isinstance(legal, tuple) and all(isinstance(text, str) for text in legal),
        "legal is a tuple of str, or None", legal,
    )  # fmt: skip
    for text in legal:
        if env.tools:
            try:
                action_of(text, env.tools)
            except ValueError as error:
                raise Broken(f"every legal string is a call of the environment's tools: {error}") from error
    try:
        again = step_from_json(json.loads(dumps(step_to_json(step))))
    except (TypeError, ValueError) as error:
        raise Broken(f"a Step can be stored: info and cost hold only JSON values ({error})") from error
    require(observation_digest(again) == observation_digest(step), "a Step reads back from JSON as it was", step)
