"""The synchronous view: any registered environment as a true `gymnasium.Env`, over the one async implementation.

There is no second implementation: an environment whose coroutines never wait (`EnvSpec.in_process`) is driven
directly; any other runs on an event loop of the adapter's own, in the caller's thread, or in one helper thread
when the caller is itself inside a running loop (Jupyter). It neither records episodes nor counts tokens: that is
`envgym.rollout`.
"""

import time
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import gymnasium

from envgym.deadlines import deadline
from envgym.driver import Driver
from envgym.env import Env, Snapshot, Step, StopReason, answered
from envgym.errors import Boundary
from envgym.gymnasium_plugin import watch
from envgym.limits import Limits
from envgym.messages import Action, Message, ParseError, ToolSpec
from envgym.options import wrong_option
from envgym.registry import EnvSpec, choose_task, make, make_backend, own_options, spec
from envgym.sandbox import SandboxBackend
from envgym.spaces import Unicode
from envgym.task import Task
from envgym.tools import parse_call

__all__ = ["AsGymnasium", "Cost", "read_action"]

MAX_TEXT = 1 << 16
"""Code points of the longest observation or action; a longer observation loses its middle, visibly."""

watch()


class Cost(Mapping[str, float]):
    """What a step cost. Two costs are always equal: cost is outside the determinism comparison."""

    def __init__(self, amounts: Mapping[str, float]) -> None:
        self._amounts = dict(amounts)

    def __getitem__(self, name: str) -> float:
        return self._amounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cost)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Cost({self._amounts})"


def read_action(text: str, tools: tuple[ToolSpec, ...]) -> Action:
    """The action a text stands for: a tool call where there are tools (or its parse error), else plain text."""
    if not tools:
        return Action.say(text)
    call = parse_call(text, tools)
    if isinstance(call, ParseError):
        return Action(message=Message(role="assistant", content=text), error=call)
    return Action(message=Message(role="assistant", tool_calls=(call,)))


class AsGymnasium(gymnasium.Env[str, str]):
    """One environment by name, as Gymnasium sees it: texts in, texts out.

    Args:
        name: the environment's name (or its EnvSpec).
        task: index into its task set, or a Task; ``reset(options={"task": ...})`` changes it.
        limits: `turns` and `episode_s` truncate; the deadlines of reset and step raise DeadlineExceeded where the
            environment can wait. `tokens` is refused: here are none.
        render_mode: None or "ansi" (`render` returns the last observation).
        max_text: code points of the longest text of both spaces.
        options: passed to the environment; TypeError for one that it does not have.

    The info of every step has ``stop``, ``state_key``, ``legal``, ``channels``, ``cost`` and ``submission``. A
    reward of None becomes 0.0 and ``info["rewarded"]`` tells them apart. For an environment that needs a
    sandbox the adapter makes and owns a backend (`make_backend("auto")`), unless ``backend`` is given.
    """

    observation_space: Unicode
    action_space: Unicode
    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's own shape

    def __init__(
        self,
        name: str | EnvSpec,
        *,
        task: int | Task = 0,
        limits: Limits | None = None,
        render_mode: str | None = None,
        max_text: int = MAX_TEXT,
        backend: SandboxBackend | None = None,
        **options: Any,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode is {render_mode!r}; an environment of texts renders as 'ansi' or None")
        if limits is not None and limits.tokens is not None:
            raise ValueError(
                f"limits.tokens is {limits.tokens}; Gymnasium's actions are texts and no tokens are counted here: "
                "leave it None, or play with envgym.rollout"
            )
        self._spec = spec(name) if isinstance(name, str) else name
        # an isolated environment waits for its process, and rewards for their judges
        waiting = any(options.get(name) is not None for name in ("isolate", "rewards"))
        self._waits = not self._spec.in_process or waiting
        given = own_options({**self._spec.defaults, **options})
        where = f"environment {self._spec.name}"
        if (wrong := wrong_option(where, given, self._spec.make, given={"backend"}, skip=1)) is not None:
            raise TypeError(wrong)
        self._limits, self._options = limits, options
        self._task = self._choose(task)
        self.render_mode = render_mode
        self.observation_space = Unicode(max_text)
        self.action_space = Unicode(max_text)
        self._driver = Driver(waits=self._waits)
        self._backend, self._owned = backend, False
        self._env: Env | None = None
        self._last = Step()
        self._turns, self._started = 0, 0.0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that actions may call; known after the first reset."""
        return () if self._env is None else self._env.tools

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``options`` may hold ``task`` (index or Task) and ``start`` (a Snapshot).

        A given seed is the environment's own seed; without one it is drawn from `np_random`. Raises ValueError
        for an unknown option.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        task = options.pop("task", None)
        start: Snapshot | None = options.pop("start", None)
        if options:
            raise ValueError(f"unknown reset option(s) {sorted(options)}; known: 'task' and 'start'")
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        env = self._env_for(self._task if task is None else self._choose(task))
        self._started = time.perf_counter()
        coroutine = env.reset(seed=seed, start=start)
        self._last = answered(self._driver.run(self._bounded(coroutine, "reset")))
        self._turns = 0
        return self._text(), self._info(self._last)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act; a text that is no valid call is answered by an observation. Raises TypeError for a non-text."""
        if not isinstance(action, str):
            raise TypeError(f"action is a {type(action).__name__}; actions of this environment are str")
        if self._env is None:
            raise RuntimeError("step before reset: call reset() first")
        coroutine = self._env.step(read_action(str(action), self._env.tools))
        step = answered(self._driver.run(self._bounded(coroutine, "step")))
        self._turns += 1
        self._last = step
        info = self._info(step)
        truncated = step.truncated
        if step.stop is None and (spent := self._spent()) is not None:
            truncated, info["stop"] = True, str(spent)
        return self._text(), float(step.reward or 0.0), step.terminated, truncated, info

    def _spent(self) -> StopReason | None:
        limits = self._limits
        if limits is not None and self._turns >= limits.turns:
            return StopReason.TURN_LIMIT
        if limits is not None and limits.episode_s is not None:
            return StopReason.TIME_LIMIT if time.perf_counter() - self._started >= limits.episode_s else None
        return None

    def render(self) -> str | None:
        """The last observation in mode "ansi"."""
        return self._last.text if self.render_mode == "ansi" else None

    def snapshot(self) -> Snapshot:
        """A durable handle of the present state, for ``reset(options={"start": ...})``."""
        if self._env is None:
            raise RuntimeError("snapshot before reset: there is no state yet")
        return self._driver.run(self._env.snapshot())

    def close(self) -> None:
        """Release the environment, the backend it made, and the loop; idempotent."""
        env, self._env = self._env, None
        backend, self._backend = (self._backend, None) if self._owned else (None, self._backend)
        self._owned = False
        try:
            if env is not None:
                self._driver.run(env.close())
        finally:
            try:
                if backend is not None:
                    self._driver.run(backend.__aexit__(None, None, None))
            finally:
                self._driver.close()

    def _choose(self, task: int | Task) -> Task:
        return choose_task(self._spec, task)

    def _env_for(self, task: Task) -> Env:
        if self._env is not None and task == self._task:
            return self._env
        if self._env is not None:
            env, self._env = self._env, None
            self._driver.run(env.close())
        if self._spec.sandbox and self._backend is None:
            self._backend = self._driver.run(make_backend("auto").__aenter__())
            self._owned = True
        self._task = task
        self._env = make(self._spec, task, backend=self._backend, **self._options)
        return self._env

    async def _bounded(self, coroutine: Coroutine[Any, Any, Step], what: str) -> Step:
        if self._limits is None or not self._waits:
            return await coroutine
        limit_s = self._limits.reset_s if what == "reset" else self._limits.step_s
        return await deadline(coroutine, limit_s, what, Boundary.ENVIRONMENT)

    def _text(self) -> str:
        text, bound = self._last.text, self.observation_space.max_length
        if len(text) <= bound:
            return text
        note = f"\n... {len(text)} characters, the middle is left out ...\n"[:bound]
        head = (bound - len(note)) // 2
        return text[:head] + note + text[len(text) - (bound - len(note) - head) :]

    def _info(self, step: Step) -> dict[str, Any]:
        return {
            "stop": None if step.stop is None else str(step.stop),
            "state_key": step.state_key,
            "legal": step.legal,
            "channels": dict(step.channels),
            "cost": Cost(step.cost),
            "submission": step.submission,
            "rewarded": step.reward is not None,
        }
