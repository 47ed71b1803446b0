"""The loop around an engine: requests come in while others are computed, weights change between two steps.

New weights find requests half done. These are aborted and begun again with what they have sampled as part of their
context, so that keys and values of older weights are never read; their version runs say which token is whose.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from envgym_agents.policies.vllm.wire import (
    ALL,
    Abort,
    Asked,
    Delta,
    Engine,
    Failed,
    Generate,
    Load,
    Loaded,
    Said,
    Sampled,
    Tell,
    Told,
)

__all__ = ["Serving"]


@dataclass(slots=True)
class _Running:
    """A request, what it has sampled so far, and which part of it the engine computes."""

    asked: Generate
    part: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    cached: int = 0

    @property
    def key(self) -> str:
        return f"{self.asked.number}.{self.part}"

    def rest(self) -> Generate:
        """What is left to ask: the context with what was sampled; `allowed` is of the first token alone.

        The seed of a part is drawn from the request's and from where the part begins.
        """
        asked, done = self.asked, len(self.ids)
        first = asked.allowed is not None and not done
        seed = int(np.random.SeedSequence([asked.seed, done]).generate_state(1, np.uint64)[0] >> np.uint64(2))
        return msgspec.structs.replace(
            asked,
            ids=(*asked.ids, *self.ids),
            max_tokens=1 if first else asked.max_tokens - done,
            allowed=asked.allowed if first else None,
            seed=seed,
        )

    def take(self, delta: Delta, version: int) -> None:
        """Add what a step gave."""
        if delta.ids and (not self.runs or self.runs[-1][1] != version):
            self.runs.append((len(self.ids), version))
        self.ids += delta.ids
        self.logprobs += delta.logprobs
        if not self.part:
            self.cached = max(self.cached, delta.cached)

    def told(self, finish: Literal["stop", "length", "abort"]) -> Sampled:
        """The answer."""
        number = self.asked.number
        return Sampled(number, tuple(self.ids), tuple(self.logprobs), tuple(self.runs), finish, self.cached)


class Serving:
    """Serves one engine from `inbox` until it holds None; answers go to `say`. version: of the weights it has.

    A step that raises ends it, with a `Failed` for all; weights that could not be loaded refuse requests until
    others could.
    """

    def __init__(
        self, engine: Engine, inbox: "queue.SimpleQueue[Asked | None]", say: Callable[[Said], None], *, version: int
    ) -> None:
        self._engine, self._inbox, self._say = engine, inbox, say
        self._version = version
        self._loads = 0
        self._broken = ""
        self._running: dict[int, _Running] = {}
        self._keys: dict[str, int] = {}
        self._telling: dict[str, Tell] = {}

    def run(self) -> None:
        """Serve until the end."""
        try:
            while self._read():
                if self._keys:
                    for delta in self._engine.step():
                        self._absorb(delta)
        except Exception as error:  # the engine's code may raise anything; it is told to every caller
            self._say(Failed(ALL, f"{type(error).__name__}: {error}"))

    def _read(self) -> bool:
        """Everything that has come; waits where there is nothing to compute. False at the end."""
        while True:
            try:
                message = self._inbox.get(block=not self._keys)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, Generate):
                self._begin(_Running(message))
            elif isinstance(message, Tell):
                self._tell(message)
            elif isinstance(message, Abort):
                self._abort(message.number)
            else:
                self._load(message)

    def _begin(self, running: _Running) -> None:
        number = running.asked.number
        if self._broken:
            self._say(Failed(number, self._broken))
            return
        try:
            # salted by the version: of a version that is loaded twice with other weights, by which time it is
            self._engine.add(running.key, running.rest(), f"{self._version}.{self._loads}")
        except ValueError as error:
            self._forget(number)
            self._say(Failed(number, str(error), refused=True))
            return
        self._running[number] = running
        self._keys[running.key] = number

    def _tell(self, message: Tell) -> None:
        key = f"{message.number}.told.{self._loads}"
        if self._broken:
            self._say(Failed(message.number, self._broken))
            return
        try:
            self._engine.tell(key, message.ids)
        except ValueError as error:
            self._say(Failed(message.number, str(error), refused=True))
            return
        self._telling[key] = message
        self._keys[key] = message.number

    def _absorb(self, delta: Delta) -> None:
        number = self._keys.get(delta.key)
        if number is None:
            return  # of a part that was aborted
        if self._telling.pop(delta.key, None) is not None:
            del self._keys[delta.key]
            self._say(Told(number, tuple(delta.logprobs)))
            return
        running = self._running[number]
        running.take(delta, self._version)
        if delta.finish is None:
            return
        del self._keys[delta.key]
        if delta.finish == "length" and len(running.ids) < running.asked.max_tokens:
            running.part += 1
            self._begin(running)
        else:
            self._forget(number)
            self._say(running.told(delta.finish))

    def _abort(self, number: int) -> None:
        running = self._running.get(number)
        if running is not None:
            self._engine.abort([running.key])
            self._forget(number)
            self._say(running.told("abort"))

    def _load(self, message: Load) -> None:
        running, telling = list(self._running.values()), list(self._telling.values())
        self._engine.abort(list(self._keys))
        for held in (self._keys, self._running, self._telling):
            held.clear()
        try:
            self._engine.load(message.file)
        except Exception as error:  # half of the weights may be in place: nothing is sampled from them
            self._broken = f"the last weights could not be loaded: {type(error).__name__}: {error}"
            self._say(Failed(message.number, str(error), refused=isinstance(error, ValueError)))
        else:
            self._broken, self._version = "", message.version
            self._loads += 1
            self._say(Loaded(message.number, message.version))
        for one in running:
            one.part += 1
            self._begin(one)
        for asked in telling:
            self._tell(asked)

    def _forget(self, number: int) -> None:
        running = self._running.pop(number, None)
        if running is not None:
            self._keys.pop(running.key, None)
