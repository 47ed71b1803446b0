"""`propose-solve` (Absolute Zero): a proposer makes a task about a program, solvers answer it, both earn by that.

One episode: actor "proposer" hands in a program with an input (deduction, abduction) or inputs to a known program
(induction); what is no task (it does not run, or not the same every time) ends it. Then "solver-1" to "solver-n"
answer the same question, one call each; at last the proposer hears how many were right, and is paid with that.
State is plain data: the sandbox only computes, and a fork makes one of its own.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from envgym.env import Snapshot, Step, StopReason
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym.tools import check_call, parse_call, tool_spec
from envgym.wire import step_from_json, step_to_json
from envgym_environments.played import bounded
from envgym_environments.tool.propose_solve.executor import Executor
from envgym_environments.tool.propose_solve.library import KINDS, Triple
from envgym_environments.tool.propose_solve.programs import Refused, arguments, checked, same
from envgym_environments.tool.propose_solve.prompts import asked, proposing
from envgym_environments.tool.propose_solve.rewards import UNREADABLE, WRONG, learnability, solved

__all__ = ["PROPOSER", "ProposeSolve", "ProposeState"]

PROPOSER = "proposer"


def propose(program: str, input: str) -> None:
    """Propose a program, the text of a function f, and an input: f's arguments as literals with commas between."""


def propose_inputs(inputs: list[str], message: str) -> None:
    """Propose inputs of the program that was shown, and say in words what it does without giving it away."""


def answer(value: str) -> None:
    """Give the answer: a literal, an input, or the text of a program, as was asked."""


@dataclass(frozen=True, slots=True)
class ProposeState:
    """phase: whose turn it is. triple: what was proposed. right: what came of the attempts."""

    phase: Literal["propose", "solve", "close", "ended"] = "propose"
    triple: Triple | None = None
    right: tuple[bool, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        kept = None if self.triple is None else self.triple.model_dump(mode="json")
        return {"phase": self.phase, "triple": kept, "right": list(self.right)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "ProposeState":
        """From `plain`."""
        kept = plain["triple"]
        triple = None if kept is None else Triple.model_validate(kept)
        return cls(plain["phase"], triple, tuple(plain["right"]))


def digest_of(state: ProposeState) -> str:
    """A state's key."""
    return hashlib.blake2b(json.dumps(state.plain(), sort_keys=True).encode(), digest_size=12).hexdigest()


class ProposeSolve:
    """Implements `envgym.env.Env` whole, for the tasks of `propose_solve_tasks`.

    attempts: solvers for each proposal. seconds: of processor time for a program. inputs: how many an induction's
    proposer must give; solvers see the first half of them.
    """

    tools: tuple[ToolSpec, ...] = (tool_spec(propose), tool_spec(propose_inputs), tool_spec(answer))
    uses_seed = False

    def __init__(
        self, task: Task, *, backend: SandboxBackend, attempts: int = 4, seconds: float = 5.0, inputs: int = 4
    ) -> None:
        if attempts < 1 or inputs < 2 or seconds <= 0:
            raise ValueError(
                f"attempts is {attempts}, inputs {inputs}, seconds {seconds}; at least 1, at least 2, above 0"
            )
        if task.metadata.get("kind") not in KINDS:
            raise ValueError(f"task {task.id!r} is of no kind that propose-solve plays: {', '.join(KINDS)}")
        self.task = task
        self._kind = str(task.metadata["kind"])
        self._backend, self._attempts, self._seconds, self._inputs = backend, attempts, seconds, inputs
        self._executor = Executor(backend, seconds=seconds)
        self._state = ProposeState()
        self._seed = 0
        self._last: Step | None = None

    # -- the contract ------------------------------------------------------------------------------------------

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """See `Env.reset`."""
        if start is None:
            self._state, self._seed = ProposeState(), seed
            return self._shown(proposing(self.task, self._inputs), PROPOSER)
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "it needs an exact snapshot of the same task"
            )
        kept = json.loads(start.state)
        self._seed, self._state = start.seed, ProposeState.of(kept["state"])
        self._last = step_from_json(kept["last"])
        return self._last

    async def step(self, action: Action) -> Step:
        """See `Env.step`."""
        if self._last is None or self._last.stop is not None:
            when = "before reset" if self._last is None else "after the end"
            raise RuntimeError(f"step {when} in task {self.task.id!r}: call reset(seed=...) first")
        if self._state.phase == "close":
            return self._end()
        call = self._call(action)
        if self._state.phase == "propose":
            return await self._proposed(call)
        return await self._attempted(call)

    async def snapshot(self) -> Snapshot:
        """See `Env.snapshot`: exact."""
        if self._last is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        state = json.dumps({"state": self._state.plain(), "last": step_to_json(self._last)})
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=state)

    async def release(self, snapshot: Snapshot) -> None:
        """A snapshot owns nothing."""

    async def fork(self) -> "ProposeSolve":
        """See `Env.fork`."""
        other = ProposeSolve(
            self.task, backend=self._backend, attempts=self._attempts, seconds=self._seconds, inputs=self._inputs
        )
        other._state, other._seed, other._last = self._state, self._seed, self._last
        return other

    async def close(self) -> None:
        """See `Env.close`."""
        self._last = None
        await self._executor.close()

    # -- the proposer ------------------------------------------------------------------------------------------

    async def _proposed(self, call: ToolCall | ParseError) -> Step:
        wanted = "propose_inputs" if self._kind == "induction" else "propose"
        if isinstance(call, ParseError) or call.name != wanted:
            return self._refused(f"call {wanted}", UNREADABLE)
        try:
            triple = await self._triple(call)
        except Refused as error:
            return self._refused(str(error), WRONG)
        self._state = ProposeState("solve", triple)
        return self._shown(asked(self._kind, triple), "solver-1", Step(channels={"valid": 1.0}))

    async def _triple(self, call: ToolCall) -> Triple:
        """What was proposed, with the outputs that the executor found. Raises Refused."""
        given: dict[str, Any] = dict(call.arguments)
        if self._kind != "induction":
            program, inputs, message = checked(str(given["program"])), [arguments(str(given["input"]))], ""
        else:
            program = str(self.task.metadata["program"])
            inputs, message = [arguments(str(text)) for text in given["inputs"][:50]], str(given["message"])[:500]
            if len(set(inputs)) < self._inputs:
                raise Refused(f"{len(set(inputs))} different inputs; {self._inputs} are needed")
            inputs = list(dict.fromkeys(inputs))[: self._inputs]
        outputs = await self._executor.outputs(program, inputs)
        return Triple(program=program, inputs=tuple(inputs), outputs=outputs, message=message)

    def _refused(self, why: str, reward: float) -> Step:
        self._state = ProposeState("ended")
        channels = {"reward": reward, "valid": 0.0}
        told = Step(reward=reward, channels=channels, stop=StopReason.SUBMITTED)
        return self._shown(f"no task: {why}", PROPOSER, told)

    # -- the solvers -------------------------------------------------------------------------------------------

    async def _attempted(self, call: ToolCall | ParseError) -> Step:
        state = self._state
        assert state.triple is not None
        if isinstance(call, ParseError) or call.name != "answer":
            right, reward = False, UNREADABLE
        else:
            right = await self._right(state.triple, str(call.arguments["value"]))
            reward = solved(right)
        results = (*state.right, right)
        earned = Step(reward=reward, channels={"reward": reward, "right": float(right)})
        if len(results) < self._attempts:
            self._state = ProposeState("solve", state.triple, results)
            return self._shown(asked(self._kind, state.triple), f"solver-{len(results) + 1}", earned)
        self._state = ProposeState("close", state.triple, results)
        text = f"{sum(results)} of {len(results)} solved your task. Answer anything to end."
        return self._shown(text, PROPOSER, earned)

    async def _right(self, triple: Triple, value: str) -> bool:
        """By what the executor finds; an answer that cannot be run is wrong."""
        try:
            match self._kind:
                case "deduction":
                    return same(value, triple.outputs[0])
                case "abduction":
                    (found,) = await self._executor.outputs(triple.program, [arguments(value)])
                    return same(found, triple.outputs[0])
            hidden = len(triple.inputs) // 2
            given = await self._executor.outputs(checked(value), triple.inputs[hidden:])
            return all(map(same, given, triple.outputs[hidden:]))
        except Refused:
            return False

    # -- the end -----------------------------------------------------------------------------------------------

    def _end(self) -> Step:
        state = self._state
        assert state.triple is not None
        self._state = ProposeState("ended", state.triple, state.right)
        rate, reward = sum(state.right) / len(state.right), learnability(state.right)
        kept = {"kind": self._kind, **state.triple.model_dump(mode="json"), "solve_rate": rate}
        told = Step(
            reward=reward,
            channels={"reward": reward, "valid": 1.0, "solve_rate": rate},
            stop=StopReason.SUBMITTED,
            submission=json.dumps(kept, sort_keys=True),
        )
        return self._shown(f"solve rate {rate:g}", PROPOSER, told)

    def _call(self, action: Action) -> ToolCall | ParseError:
        if action.error is not None:
            return action.error
        if len(action.calls) > 1:
            return ParseError(message=f"one call, please: got {len(action.calls)}")
        return check_call(action.calls[0], self.tools) if action.calls else parse_call(action.text, self.tools)

    def _shown(self, text: str, actor: str, earned: Step | None = None) -> Step:
        earned = earned or Step()
        self._last = Step(
            observation=(Message(role="user", content=bounded(text)),),
            reward=earned.reward,
            channels=earned.channels,
            stop=earned.stop,
            state_key=digest_of(self._state),
            submission=earned.submission,
            next_actor=actor,
        )
        return self._last
