"""The asynchronous loop keeps its bound on staleness whatever finishes when, loses nothing, and learns."""

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from envgym_agents.chat import LMAgents  # noqa: E402
from envgym_agents.learn.config import LoopSettings, Reinforce  # noqa: E402
from envgym_agents.learn.crowd import Crowd  # noqa: E402
from envgym_agents.learn.overlap import Overlapped  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.past import PastGroups  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.template import template_for  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

from envgym.buffer import oldest_version  # noqa: E402
from envgym.env import Step, StopReason  # noqa: E402
from envgym.episode import Episode, Group  # noqa: E402
from envgym.errors import InfrastructureFailure  # noqa: E402
from envgym.limits import Limits, Sampling  # noqa: E402
from envgym.messages import Action, Message  # noqa: E402
from envgym.policy import Completion, Prompt, Reply, VersionRun  # noqa: E402
from envgym.registry import EnvSpec, register, unregister  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.store import StoreWriter  # noqa: E402
from envgym.task import Task, TaskSet  # noqa: E402


class Uneven:
    """Four turns, each as many switches of tasks long as its seed draws; one in ten worlds breaks."""

    tools = ()

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Step:
        self.rng, self.turns = np.random.default_rng(seed), 0
        self.slow = 200 if self.rng.random() < 0.2 else 6
        self.breaks = self.rng.random() < 0.1
        return Step((Message(role="user", content="go"),))

    async def step(self, action: Action) -> Step:
        for _ in range(int(self.rng.integers(self.slow))):
            await asyncio.sleep(0)
        self.turns += 1
        if self.turns == 2 and self.breaks:
            raise OSError("injected")
        stop = StopReason.GOAL if self.turns == 4 else None
        return Step((Message(role="user", content="on"),), reward=float(self.rng.random()), stop=stop)

    async def close(self) -> None:
        return


class Versioned:
    """A policy that says by which weights it sampled, token by token, and changes them in the middle of a turn."""

    def __init__(self) -> None:
        self.version = 0
        self.updates: list[int] = []

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Completion:
        runs: list[VersionRun] = []
        for place in range(3):
            if not runs or runs[-1].version != self.version:
                runs.append(VersionRun(place, self.version))
            await asyncio.sleep(0)
        return Completion((1, 2, 3), (-1.0, -1.0, -1.0), tuple(runs), "stop")

    async def update(self, weights, *, version: int, masks=None) -> int:
        assert version >= self.version
        self.version = version
        self.updates.append(version)
        return version


class Late(Versioned):
    """Its first answer comes when the weights that it was sampled by are three versions old."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.old = False, asyncio.Event()

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Completion:
        first, self.asked = not self.asked, True
        completion = await super().sample(prompt, sampling)
        if first:
            await self.old.wait()
        return completion

    async def update(self, weights, *, version: int, masks=None) -> int:
        if version >= 3:
            self.old.set()
        return await super().update(weights, version=version, masks=masks)


class Speaker:
    """Samples, and says nothing."""

    name = "agent"

    def __init__(self, policy: Versioned) -> None:
        self.policy, self.ids = policy, []

    async def act(self, step: Step) -> Reply:
        position = len(self.ids)
        completion = await self.policy.sample(Prompt([*self.ids, 5]), Sampling())
        self.ids += [5, *completion.ids]
        return Reply(Action.say("x"), (5,), completion, position=position)

    async def close(self) -> None:
        return


@dataclass
class Counter:
    """Learns nothing: remembers in which thread and from how many rows it was asked to."""

    scorer: object
    optimizer: object
    max_tokens: int = 1024
    device: str = "cpu"
    asked: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    masks: None = None
    other: None = None

    def update(self, groups, config, rng, *, lr):
        self.asked.append(sum(map(len, groups)))
        self.threads.add(threading.get_ident())
        return {"loss": 0.0}

    def save(self, folder, step, progress, *, beside=None):
        Learner(self.scorer, self.optimizer).save(folder, step, progress, beside=beside)

    def load(self, path, *, state=True, beside=None):
        return Learner(self.scorer, self.optimizer).load(path, state=state, beside=beside)


@pytest.fixture
def uneven():
    spec = EnvSpec(
        name="test-uneven", in_process=True, make=Uneven,
        tasks=lambda: TaskSet([Task(id=f"u{index}", prompt="") for index in range(7)]),
    )  # fmt: skip
    register("environments", spec.name, spec)
    yield spec
    unregister("environments", spec.name)


def looped(config, folder, model, *, memory, on_step, policy=None, seed=0):
    policy = policy or Versioned()
    learner = Counter(Scorer(model), adamw(model, lr=1e-3, weight_decay=0.0))
    arena = Arena(
        env="test-uneven", rollout=Rollout(limits=Limits(turns=9)), concurrency=32, memory=memory,
        retries=0,
    )  # fmt: skip
    tasks = [Task(id=f"u{index}", prompt="") for index in range(7)]
    return Overlapped(Parts(
        learner, policy, lambda task, *, seed: Speaker(policy), arena, TaskOrder(tasks, seed), config, seed, folder,
        on_step,
    ))  # fmt: skip


LOOPS = st.builds(
    LoopSettings,
    staleness=st.integers(1, 3),
    spoiled=st.sampled_from(["drop_member", "drop_group", "mask", "refill"]),
    stretch=st.sampled_from([0, 5]),
    replay=st.sampled_from([0.0, 1.0]),
) | st.just(LoopSettings(staleness=0))


@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
@given(loop=LOOPS, tasks=st.integers(1, 3), group=st.integers(2, 3), seed=st.integers(0, 99))
def test_no_token_trains_that_is_older_than_the_bound(uneven, model, tmp_path_factory, loop, tasks, group, seed):
    folder = tmp_path_factory.mktemp("loop")
    config = Reinforce(steps=4, tasks=tasks, group=group, loop=loop, checkpoint_every=3)
    seen: list[dict[str, float]] = []

    async def on_step(progress, found, told):
        for taken in found.groups:
            for one in taken:
                if one.failure is None and loop.spoiled != "mask":
                    assert oldest_version(one) >= told["version"] - 1 - loop.staleness
        assert told.get("staleness_max", 0.0) <= loop.staleness
        seen.append(told)

    async def run():
        with StoreWriter(folder / "store") as memory:
            made = looped(config, folder / "run", model, memory=memory, on_step=on_step, seed=seed)
            progress = await made.run()
            counts = made.queue.counts
            assert counts.accepted == counts.trained + counts.swept + counts.waiting
            assert progress.stop == "steps"
            assert made.parts.policy.version == made.queue.version == len(made.parts.learner.asked)
            assert made.parts.learner.threads.isdisjoint({threading.get_ident()})
            assert sum(told["groups"] for told in seen) > 0

    asyncio.run(run())
    assert len(seen) == 4


def test_a_killed_run_goes_on_with_what_it_had_begun_and_plays_nothing_twice(uneven, model, tmp_path):
    config = Reinforce(steps=6, tasks=2, group=3, checkpoint_every=2, loop=LoopSettings(staleness=1, replay=1.0))
    trained: dict[int, list[str]] = {}

    def until(die_at):
        async def on_step(progress, found, told):
            trained[progress.step] = [one.id for group in found.groups for one in group]
            assert told.get("staleness_max", 0.0) <= 1
            if progress.step == die_at:
                raise KeyboardInterrupt

        return on_step

    async def run(die_at=None):
        with StoreWriter(tmp_path / "store") as memory:
            made = looped(config, tmp_path / "run", model, memory=memory, on_step=until(die_at))
            return await made.run(), made

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run(5))
    lost = trained.pop(5)
    progress, made = asyncio.run(run())
    assert progress.step == 6
    assert made.queue.version == 6
    names = [name for step in sorted(trained) for name in trained[step]]
    assert len(names) == len(set(names)), "nothing trains as new twice"
    assert {name[:7] for name in lost} <= {name[:7] for name in names} | {
        one.id[:7] for one in made.queue.state().episodes
    } | {f"a{ticket.number:06d}" for ticket in made.queue.tickets}, "no group is lost"


@pytest.mark.parametrize("by", ["crowd", "arena"])
def test_a_failed_episode_whose_group_was_not_whole_when_the_run_ended_is_not_told_twice(uneven, tmp_path, by):
    policy = Versioned()
    broken = next(seed for seed in range(99) if np.random.default_rng(seed).random(2)[1] < 0.1)

    async def play() -> Episode:
        with StoreWriter(tmp_path / "store") as memory:
            arena = Arena(
                env="test-uneven", rollout=Rollout(limits=Limits(turns=9)), concurrency=4, memory=memory, retries=0,
                max_failures=1.0,
            )  # fmt: skip
            job = arena.job(
                Task(id="u0", prompt=""), lambda task, *, seed: Speaker(policy), seed=broken, episode_id="a-0",
                group="a",
            )  # fmt: skip
            (played,) = await (Crowd(arena, recent=2) if by == "crowd" else arena).play([job])
            assert len(memory) == 1
            return played

    first, again = asyncio.run(play()), asyncio.run(play())
    assert first.failure is not None
    assert again == first


def test_an_episode_that_is_too_old_to_train_is_given_up_between_two_stretches(uneven, model, tmp_path):
    cut: list[Episode] = []

    async def on_step(progress, found, told):
        cut.extend(one for one in found.episodes if one.stop is StopReason.TOKEN_LIMIT)

    async def run():
        with StoreWriter(tmp_path / "store") as memory:
            config = Reinforce(steps=12, tasks=1, group=2, oversample=20, loop=LoopSettings(staleness=1, stretch=4))
            await looped(config, tmp_path / "run", model, memory=memory, on_step=on_step, policy=Late()).run()

    asyncio.run(run())
    assert cut
    assert all(len(one.turns) < 4 for one in cut)


def test_stored_groups_train_beside_what_is_played_in_the_steps_that_have_them(
    uneven, model, tmp_path, episode, turn
):
    class Keys(Counter):
        def update(self, groups, config, rng, *, lr):
            seen.append([row.key for rows in groups for row in rows].count("past"))
            return super().update(groups, config, rng, lr=lr)

    members = (episode(f"p{n}", [turn([1], [2], position=0, reward=float(n))], task="past") for n in range(3))
    past = PastGroups([Group("past", tuple(members))], seed=0, count=4, steps=2)
    assert [len(past.of_step(step)) for step in range(3)] == [1, 1, 0]
    seen: list[int] = []

    async def on_step(progress, found, told):
        assert progress.step == len(seen)

    async def run():
        with StoreWriter(tmp_path / "store") as memory:
            config = Reinforce(steps=4, tasks=2, group=3, oversample=50)
            made = looped(config, tmp_path / "run", model, memory=memory, on_step=on_step)
            learner = Keys(made.parts.learner.scorer, made.parts.learner.optimizer)
            made.parts = replace(made.parts, past=past, learner=learner)
            await made.run()

    asyncio.run(run())
    assert seen == [3, 3, 0, 0]


def test_a_task_whose_group_came_far_too_late_holds_no_place_the_next_time(uneven, model, tmp_path):
    """Worlds of u0 last until three more updates: too long for a bound of 1, whenever they begin."""
    loops, doubted, late, out = [], [], [], defaultdict(asyncio.Event)

    class Telling(Versioned):
        async def update(self, weights, *, version: int, masks=None) -> int:
            out[version].set()
            return await super().update(weights, version=version)

    class Slow(Uneven):
        async def reset(self, *, seed: int) -> Step:
            step = await super().reset(seed=seed)
            self.slow, self.breaks, self.until = 6, False, loops[0].queue.version + 3
            if self.task.id == "u0":
                doubted.append(loops[0].queue.state().facts["counters"]["doubted"])
            return step

        async def step(self, action: Action) -> Step:
            if self.task.id == "u0":
                await out[self.until].wait()
            return await super().step(action)

    async def on_step(progress, found, told):
        late.append(told["late_tasks"])

    async def run(steps):
        with StoreWriter(tmp_path / "store") as memory:
            config = Reinforce(steps=steps, tasks=1, group=2, teaches="all", checkpoint_every=8)
            folder, policy = tmp_path / "run", Telling()
            loops[:] = [looped(config, folder, model, memory=memory, on_step=on_step, policy=policy)]
            await loops[0].run()

    unregister("environments", uneven.name)
    register("environments", uneven.name, replace(uneven, make=Slow))
    asyncio.run(run(16))
    first, _, *others = doubted  # once for each of a group's two members
    assert first == []
    assert others
    assert all(len(numbers) == 1 for numbers in others)
    assert (late[0], late[-1]) == (0, 1)
    late.clear()
    asyncio.run(run(17))
    assert late == [1], "a run that goes on knows it"


def test_worlds_that_nearly_all_fail_end_the_run_with_the_reason(uneven, model, tmp_path):
    async def broken(self, action):
        raise OSError("the floor is gone")

    async def on_step(progress, found, told):
        return

    async def run():
        with StoreWriter(tmp_path / "store") as memory:
            made = looped(
                Reinforce(steps=3, tasks=2, group=3, oversample=50), tmp_path / "run", model, memory=memory,
                on_step=on_step,
            )  # fmt: skip
            made.parts = replace(made.parts, arena=replace(made.parts.arena, max_failures=0.5))
            await made.run()

    unregister("environments", uneven.name)
    register("environments", uneven.name, replace(uneven, make=type("Broken", (Uneven,), {"step": broken})))
    with pytest.raises(InfrastructureFailure, match=r"6 of the last 6 episodes failed.*the floor is gone"):
        asyncio.run(run())


def test_a_policy_that_samples_from_the_learners_own_weights_is_refused(uneven, model, tmp_path):
    policy = Versioned()
    policy.model = model
    made = looped(Reinforce(), tmp_path, model, memory=None, on_step=None, policy=policy)
    with pytest.raises(ValueError, match="give the learner a copy"):
        asyncio.run(made.run())


@pytest.mark.slow
def test_the_policy_that_trains_models_samples_from_each_weights_that_are_published(vault, tmp_path):
    """Chat agents over batched passes and cached contexts, while a learner updates its copy in another thread."""
    actions = ["act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{digit}" for digit in "012")]
    tokenizer = train_tokenizer(
        ["you are in front of the vault", "panel a code 1"], actions=actions, vocab_size=300
    )
    config = Reinforce(steps=5, tasks=3, group=4, lr=1e-3, checkpoint_every=2, loop=LoopSettings(staleness=2))
    learners, policys = (new_model(len(tokenizer), size="tiny", seed=5, context=128) for _ in range(2))
    begun = {name: value.clone() for name, value in learners.state_dict().items()}
    history: list[dict[str, float]] = []

    async def on_step(progress, found, told):
        history.append(told)

    async def run():
        async with TransformerPolicy(policys) as policy:
            with StoreWriter(tmp_path / "store") as memory:
                made = Overlapped(
                    Parts(
                        Learner(Scorer(learners), adamw(learners, lr=config.lr, weight_decay=0.0)),
                        policy,
                        LMAgents(policy, template_for(tokenizer), "compact", Sampling(max_tokens=1)),
                        Arena("test-vault", Rollout(limits=Limits(turns=5)), concurrency=16, memory=memory),
                        TaskOrder(vault.tasks().split("train"), 0),
                        config,
                        0,
                        tmp_path / "run",
                        on_step,
                    )
                )
                progress = await made.run()
                assert progress.step == 5
                assert policy.version == made.queue.version

    asyncio.run(run())
    assert max(told.get("staleness_max", 0.0) for told in history) <= 2
    gaps = [told["sampler_gap"] for told in history if "sampler_gap" in told]
    assert gaps
    assert max(gaps) < 1e-4
    trained = learners.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in policys.state_dict().items())
    assert not all(torch.equal(trained[name], value) for name, value in begun.items())
