"""Our side of `trl_steps`: the training loop over the same folder, world and tool, in a process of its own.

What `envgym train` runs, put together by hand so that the prompt is the very one that TRL's template makes: chat
agents over a policy that keeps the cache across turns, the rollout with a store, credit dr-grpo, packed rows with
shared prefixes. Prints a JSON line for each plan, "ended" in it where the run ended before its last step.

    python _trl_ours.py STALENESS PLAN...
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import torch
from _trl_world import HANG, PROMPT, Plan, Trouble, each, system_text, told
from envgym_agents.chat import LMAgent, LMAgents
from envgym_agents.learn.config import LoopSettings, Reinforce
from envgym_agents.learn.overlap import Overlapped
from envgym_agents.learn.parts import Parts
from envgym_agents.learn.play import Arena, TaskOrder
from envgym_agents.learn.reinforce import Loop
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.model import load_model
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import FolderTemplate

from envgym import Limits, Message, Rollout, Step, StopReason, StoreWriter, Task, TaskSet, Toolbox, ToolLimits, tool
from envgym.limits import Sampling
from envgym.registry import EnvSpec, register, unregister

DEADLINE_S = 2.0
"""Of one call of the tool: what a tool that hangs costs one episode."""


class Boxes:
    """The world as we take it."""

    def __init__(self, task: Task, *, tool_s: float, trouble: Trouble, system: str) -> None:
        self.task, self._tool_s, self._trouble, self._system = task, tool_s, trouble, system
        self._box = Toolbox([tool(self.open_box)], ToolLimits(deadline_s=DEADLINE_S, text=2000))
        self.tools = self._box.specs

    async def open_box(self) -> str:
        """Open the next box.

        Returns:
            What it holds.
        """
        if self._tool_s:
            await asyncio.sleep(self._tool_s)
        if (other := self._trouble.in_tool()) is HANG:
            await asyncio.sleep(3600)
        self._opened += 1
        return told(self._opened, int(self.task.id)) if other is None else other

    async def reset(self, *, seed, start=None) -> Step:
        self._trouble.in_world("no-reset")
        self._opened = 0
        said = (("system", self._system), ("user", PROMPT))
        return Step(tuple(Message(role=role, content=text) for role, text in said))

    async def step(self, action) -> Step:
        if action.error is None and not action.calls:
            self._trouble.in_world("no-verdict")
            right = action.text.strip() == self.task.id
            return Step((Message(role="user", content="the end"),), reward=float(right), stop=StopReason.SUBMITTED)
        return Step((await self._box.answer(action)).observation)

    async def close(self) -> None:
        return


@contextmanager
def world(plan: Plan, system: str, trouble: Trouble) -> Iterator[None]:
    """The environment "boxes" is that of a plan."""

    def make(task: Task) -> Boxes:
        return Boxes(task, tool_s=plan.tool_s, trouble=trouble, system=system)

    register("environments", "boxes", EnvSpec(name="boxes", tasks=lambda: TaskSet([]), make=make, in_process=True))
    try:
        yield
    finally:
        unregister("environments", "boxes")


def looped(plan: Plan, staleness: int, folder: Path, learner: Learner, policy, on_step) -> Overlapped | Loop:
    """The loop of a plan; see the module."""
    agents = LMAgents(policy, FolderTemplate(learner.tokenizer), "text", Sampling(max_tokens=plan.tokens))
    config = Reinforce(
        steps=plan.steps, tasks=plan.tasks, group=plan.group, credit="dr-grpo", teaches="all", epochs=1,
        minibatches=1, lr=1e-4, warmup=0, checkpoint_every=1000, loop=LoopSettings(staleness=staleness),
    )  # fmt: skip
    arena = Arena(
        "boxes", Rollout(limits=Limits(turns=7)), concurrency=2 * plan.tasks * plan.group,
        memory=StoreWriter(folder / "store"),
    )  # fmt: skip
    parts = Parts(
        learner, policy, lambda _task, *, seed: LMAgent(agents, seed=seed), arena,
        TaskOrder([Task(id=str(number), prompt=PROMPT) for number in range(10)], 0), config, 0, folder / "run",
        on_step,
    )  # fmt: skip
    return Overlapped(parts) if staleness else Loop(parts)


async def trained(plan: Plan, staleness: int, folder: Path) -> dict[str, object]:
    """Seconds of each step, and facts that show that both sides did the same."""
    model, tokenizer = load_model(plan.folder, dtype="float32")
    own = deepcopy(model) if staleness else model
    optimizer = adamw(own, lr=1e-4, weight_decay=0.0)
    learner = Learner(Scorer(own), optimizer, max_tokens=1 << 15, tokenizer=tokenizer)
    times, worked, facts, failed, trouble = [], [], {}, 0, Trouble(plan.fault)

    async def on_step(progress, found, values):
        nonlocal failed
        times.append(time.perf_counter())
        worked.append(time.process_time())
        episodes = [one for group in found.groups for one in group if one.failure is None]
        failed += sum(one.failure is not None for one in found.episodes)
        if episodes:
            facts["tokens"] = sum(one.sampled_tokens for one in episodes) / len(episodes)
            facts["calls"] = sum(len(turn.action.calls) for one in episodes for turn in one.turns) / len(episodes)
            facts["prompt"] = [int(one) for one in episodes[0].turns[0].prompt_ids]

    async with TransformerPolicy(model, max_length=1024) as policy:
        made = looped(plan, staleness, folder, learner, policy, on_step)
        with made.parts.arena.memory, world(plan, system_text(tokenizer), trouble):
            await made.run()
    steps_s, work_s = ([after - before for before, after in pairwise(one)] for one in (times, worked))
    facts |= {"failed episodes": failed, "went wrong": trouble.asked >= Trouble.AT}
    return {"steps_s": steps_s, "work_s": work_s, "prompt": facts.pop("prompt"), "facts": facts}


def main() -> None:
    staleness, *plans = sys.argv[1:]

    def run(plan: Plan) -> dict[str, object]:
        torch.set_num_threads(plan.threads)
        with tempfile.TemporaryDirectory(dir=Path(plan.folder).parent) as scratch:
            return asyncio.run(trained(plan, int(staleness), Path(scratch)))

    each([Plan.read(text) for text in plans], run)


if __name__ == "__main__":
    main()
