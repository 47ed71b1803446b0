"""Self-play on one repository: an injector breaks it, solvers repair it, and both are paid by what came of it.

One episode: actor "injector" breaks code and weakens tests, then "solver-1" to "solver-n" repair, each from the
same state in a sandbox of its own; a failed repair may become one more bug for "solver-n+1"; at last the injector
hears how many succeeded, and is paid with that. What is consistent is decided in `checks`, what is repaired by the
grader of code repair, what both earn in `rewards`. Whoever plays out of turns has handed in what is there.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.replay import forked
from envgym.sandbox import SandboxBackend, SandboxSnapshot
from envgym.task import Task
from envgym.tools import check_call, parse_call, tool_spec
from envgym_environments.code_repair.full import FullPlay
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo, digest_of
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.self_play.artifact import Artifact, Unreadable, bug_task
from envgym_environments.code_repair.self_play.checks import CHECKS, Consistency, Rules, check_artifact
from envgym_environments.code_repair.self_play.history import reverts_in
from envgym_environments.code_repair.self_play.prompts import HISTORY, STRATEGIES, closing
from envgym_environments.code_repair.self_play.rewards import injector_reward, solve_rate, solver_reward
from envgym_environments.code_repair.self_play.stage import INJECTOR, State, solver, stage
from envgym_environments.code_repair.state import FullState
from envgym_environments.code_repair.tools import FULL_TOOLS, clip
from envgym_environments.code_repair.trials import Trials

__all__ = ["SelfPlay"]


def _submit(test_files: str = "") -> None:
    """Hand in your work. An injector may name the test files that specify the bug (default: those it changed)."""


_TOOLS = (*(tool for tool in FULL_TOOLS if tool.name != "submit"), tool_spec(_submit, name="submit"))


class SelfPlay:
    """Implements `envgym.env.Env` whole, for the unbroken repositories of `repositories`.

    attempts: solvers for each bug. turns: most of one player. alpha: of the injector's reward. rules: what makes a
    bug consistent, a `Rules` or its fields. The seed chooses how the injector is asked to break the code.
    """

    uses_seed = True

    def __init__(
        self,
        task: Task,
        backend: SandboxBackend,
        *,
        attempts: int = 4,
        turns: int = 40,
        alpha: float = 0.8,
        rules: Rules | Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("attempts", attempts), ("turns", turns)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        injector_reward(None, alpha=alpha)
        self.task = task
        self._backend, self._attempts, self._turns, self._alpha = backend, attempts, turns, alpha
        self._rules = rules if isinstance(rules, Rules) else Rules.model_validate(dict(rules or {}))
        self._memo = Memo.of(backend)
        self._grader = CodeRepairGrader(backend, memo=self._memo)
        self._state = State()
        stage(task, self._state, attempts=attempts)  # says so where the task is no repository
        self._play: FullPlay | None = None
        self._seed: int | None = None

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The full tools of code repair; a solver's submit takes no notice of test files."""
        return _TOOLS

    # -- the contract ------------------------------------------------------------------------------------------

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """See `Env.reset`."""
        self._seed = None
        await self._leave()
        if start is None:
            self._state = State(**self._drawn(seed))
            self._seed = seed
            return await self._enter(INJECTOR)
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "this environment needs an exact snapshot of the same task"
            )
        self._state = State.model_validate_json(start.state)
        self._seed = start.seed
        if self._state.phase == "close":
            return self._step((Message(role="user", content=self._closing()),), INJECTOR)
        self._play = self._begun()
        text = await self._play.begin(self._state.kept, start.sandbox)
        return self._step((Message(role="user", content=text),), self._state.actor)

    def _drawn(self, seed: int) -> dict[str, Any]:
        """The way in which the injector is asked to break the code."""
        rng, history = np.random.default_rng(abs(seed)), len(reverts_in(self.task))
        ways = (*STRATEGIES, HISTORY) if history else STRATEGIES
        strategy = ways[int(rng.integers(len(ways)))]
        return {"strategy": strategy} | ({"revert": int(rng.integers(history))} if strategy == HISTORY else {})

    async def step(self, action: Action) -> Step:
        """See `Env.step`."""
        self._playing("step")
        state = self._state
        if state.phase == "close":
            return self._end()
        assert self._play is not None
        self._state = state = state.model_copy(update={"acted": state.acted + 1})
        call = self._call(action)
        if isinstance(call, ToolCall) and call.name == "submit":
            return await self._handed_in(str(call.arguments.get("test_files", "")))
        text = clip(call.message, 1000) if isinstance(call, ParseError) else await self._play.act(call)
        if state.acted >= self._turns:
            return await self._handed_in("")
        return self._step((_answer(action, text),), self._state.actor)

    async def snapshot(self) -> Snapshot:
        """See `Env.snapshot`: exact."""
        return await self._snapshot(durable=False)

    async def durable_snapshot(self) -> Snapshot:
        """See `envgym.env.Durable`."""
        return await self._snapshot(durable=True)

    async def _snapshot(self, *, durable: bool) -> Snapshot:
        seed = self._playing("snapshot", ended=True)
        sandbox: SandboxSnapshot | None = None
        kept = FullState()
        if self._play is not None:
            sandbox, kept = await self._play.keep(durable=durable)
        state = self._state.model_copy(update={"kept": kept})
        return Snapshot(
            restore="exact", task_id=self.task.id, seed=seed, state=state.model_dump_json(), sandbox=sandbox
        )

    async def release(self, snapshot: Snapshot) -> None:
        """See `Env.release`."""
        if snapshot.sandbox is not None:
            await self._backend.release(snapshot.sandbox)
        for one in State.model_validate_json(snapshot.state).kept.undo:
            await self._backend.release(one)

    async def fork(self) -> "SelfPlay":
        """See `Env.fork`."""
        other = SelfPlay(
            self.task,
            self._backend,
            attempts=self._attempts,
            turns=self._turns,
            alpha=self._alpha,
            rules=self._rules,
        )
        return other if self._seed is None else await forked(self, other)

    async def close(self) -> None:
        """See `Env.close`."""
        self._seed = None
        await self._leave()

    # -- who plays ---------------------------------------------------------------------------------------------

    def _playing(self, what: str, *, ended: bool = False) -> int:
        if self._seed is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._state.ended and not ended:
            raise RuntimeError(f"{what} after the end in task {self.task.id!r}: call reset first")
        return self._seed

    def _begun(self) -> FullPlay:
        """The tools of the present player."""
        task = stage(self.task, self._state, attempts=self._attempts)
        return FullPlay(Trials(task, self._backend, self._memo))

    async def _enter(self, actor: str, *, before: Step | None = None) -> Step:
        """The next player's first step; `before` says what the last one earned."""
        self._play = self._begun()
        text = await self._play.begin()
        return self._step((Message(role="user", content=text),), actor, before)

    async def _leave(self) -> None:
        play, self._play = self._play, None
        if play is not None:
            await play.close()

    # -- what comes of it --------------------------------------------------------------------------------------

    async def _handed_in(self, test_files: str) -> Step:
        if self._state.phase == "inject":
            return await self._injected(tuple(test_files.split()))
        return await self._attempted()

    async def _injected(self, test_files: tuple[str, ...]) -> Step:
        assert self._play is not None
        artifact: Artifact | None = None
        try:
            artifact = Artifact.of(self._play.sources(), Layout.of(self.task), test_files)
            found = await check_artifact(self._backend, self.task, artifact, rules=self._rules)
        except Unreadable as error:
            found = Consistency("bug_scope", str(error))
        await self._leave()
        channels = {f"check/{name}": float(name in found.passed) for name in CHECKS}
        channels |= {"consistent": float(found.consistent), "failing": float(len(found.failing))}
        if not found.consistent:
            self._state = self._state.model_copy(update={"ended": True})
            reward = injector_reward(None, alpha=self._alpha)
            text = f"not consistent ({found.failed}): {found.why}"
            return Step(
                observation=(Message(role="user", content=text),),
                reward=reward,
                channels={"reward": reward, **channels},
                stop=StopReason.SUBMITTED,
                state_key=self._state_key(),
                next_actor=INJECTOR,
            )
        update = {"phase": "solve", "artifact": artifact, "failing": found.failing, "acted": 0}
        self._state = self._state.model_copy(update=update)
        return await self._enter(solver(1), before=Step(channels=channels))

    async def _attempted(self) -> Step:
        assert self._play is not None
        state, (bug, failing) = self._state, self._state.bug
        after = self._play.changes()
        before = {path: await self._play.trials.source(path) for path in after}
        patch = make_patch(before, after)
        await self._leave()
        graded = bug_task(self.task, bug, failing=failing)
        channels = (await self._grader.grade(graded, patch)).channels
        resolved = bool(channels["resolved"])
        earned = Step(reward=solver_reward(resolved), channels={**channels, "reward": solver_reward(resolved)})
        if state.phase == "second":
            self._state = state.model_copy(update={"again": resolved, "phase": "close"})
        else:
            second = state.second
            if not resolved and second is None and patch and self._rules.higher_order:
                second = bug.with_repair(after)
            solved = (*state.solved, resolved)
            self._state = state.model_copy(update={"solved": solved, "acted": 0, "second": second})
            if len(solved) < self._attempts:
                return await self._enter(solver(len(solved) + 1), before=earned)
            return await self._next_order(earned)
        return self._step((Message(role="user", content=self._closing()),), INJECTOR, earned)

    async def _next_order(self, earned: Step) -> Step:
        """The bug of second order where a failed repair left one that is consistent, else the end."""
        second = self._state.second
        if second is not None:
            found = await check_artifact(self._backend, self.task, second, rules=self._rules)
            if found.consistent:
                self._state = self._state.model_copy(update={"phase": "second", "second_failing": found.failing})
                return await self._enter(self._state.actor, before=earned)
        self._state = self._state.model_copy(update={"phase": "close", "second": None})
        return self._step((Message(role="user", content=self._closing()),), INJECTOR, earned)

    def _closing(self) -> str:
        return closing(sum(self._state.solved), len(self._state.solved))

    def _end(self) -> Step:
        state = self._state
        self._state = state.model_copy(update={"ended": True})
        rate = solve_rate(state.solved)
        reward = injector_reward(rate, alpha=self._alpha)
        channels = {"reward": reward, "consistent": 1.0, "solve_rate": rate}
        if state.again is not None:
            channels["second_order_solved"] = float(state.again)
        assert state.artifact is not None
        kept = {
            "artifact": state.artifact.model_dump(mode="json"),
            "failing": list(state.failing),
            "solved": [int(one) for one in state.solved],
        }
        return Step(
            observation=(Message(role="user", content=f"solve rate {rate:g}"),),
            reward=reward,
            channels=channels,
            stop=StopReason.SUBMITTED,
            state_key=self._state_key(),
            submission=json.dumps(kept, sort_keys=True),
            next_actor=INJECTOR,
        )

    # -- steps -------------------------------------------------------------------------------------------------

    def _call(self, action: Action) -> ToolCall | ParseError:
        if action.error is not None:
            return action.error
        if len(action.calls) > 1:
            return ParseError(message=f"one call at a time, please: got {len(action.calls)}")
        return check_call(action.calls[0], _TOOLS) if action.calls else parse_call(action.text, _TOOLS)

    def _step(self, observation: tuple[Message, ...], actor: str, earned: Step | None = None) -> Step:
        earned = earned or Step()
        return Step(
            observation=observation,
            reward=earned.reward,
            channels=earned.channels,
            state_key=self._state_key(),
            next_actor=actor,
        )

    def _state_key(self) -> str:
        """Equal for equal files in the same player's hands. Runs nothing."""
        state, play = self._state, self._play
        sources = {} if play is None else play.sources()
        edits = {path: None if data is None else data.hex() for path, data in sources.items()}
        where = state.model_copy(update={"kept": FullState(), "acted": 0}).model_dump_json()
        return digest_of("self-play", self.task.id, where, json.dumps(edits, sort_keys=True))


def _answer(action: Action, text: str) -> Message:
    """A tool's answer to a call, a user's to anything else."""
    if not action.calls:
        return Message(role="user", content=text)
    return Message(role="tool", content=text, tool_call_id=action.calls[0].id)
