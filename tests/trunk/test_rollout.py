"""The rules of a rollout, numbered; a change of any of them is a change of contract."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from envgym.deadlines import deadline
from envgym.env import Env, Snapshot, Step, StopReason
from envgym.episode import Began, Episode, ForkPoint, Group, Turn
from envgym.errors import (
    AgentFailure,
    Boundary,
    ContextFull,
    EnvironmentFailure,
    InfrastructureFailure,
    Misconfigured,
    SandboxDied,
)
from envgym.jobs import Job, Stretch, run_episode, stream
from envgym.limits import Limits
from envgym.messages import Action, Message
from envgym.policy import Agent, Reply
from envgym.rollout import Origin, Rollout, branch, play
from envgym.testing.fakes import Faults, FaultyEnv, MemoryEnv, RandomAgent, ScriptedAgent, ScriptedPolicy, SlowEnv
from envgym.testing.leftovers import Census

NOTE = Action.call("note", text="x")
GIVE_UP = Action.call("give_up")


class Watched(MemoryEnv):
    """Counts its instances' life."""

    opened = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).opened += 1
        self._live = True

    async def fork(self) -> "Watched":
        inner = await super().fork()
        other = Watched()
        other._seed, other._board = inner._seed, inner._board
        return other

    async def close(self) -> None:
        type(self).closed += self._live
        self._live = False


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Any:
    Watched.opened = Watched.closed = 0
    yield
    assert Watched.opened == Watched.closed


def job(
    actions: Sequence[Action] | Callable[[Env], Agent] = (GIVE_UP,),
    *,
    make: Callable[[], Env] = Watched,
    number: int = 0,
    seed: int = 0,
    **options: Any,
) -> Job:
    async def make_env() -> Env:
        return make()

    make_agent = actions if callable(actions) else lambda env: ScriptedAgent(actions)
    rollout = Rollout(limits=Limits(**{"step_s": 0.2, "act_s": 0.2, "reset_s": 0.2, "close_s": 0.2, **options}))
    return Job(make_env, make_agent, "memory/0", seed, f"e{number}", rollout)


def faulty(faults: Faults) -> Callable[[], Env]:
    return lambda: FaultyEnv(Watched(), faults=faults, rng=np.random.default_rng(0))


def raising(error: Exception) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


def run(one: Job) -> Episode:
    return asyncio.run(run_episode(one))


async def collect(jobs: Any, **options: Any) -> list[Episode]:
    return [episode async for episode in stream(jobs, **options)]


def test_01_an_episode_is_the_root_step_and_one_turn_per_action_with_the_step_that_followed() -> None:
    async def direct() -> list[Step]:
        env = MemoryEnv()
        return [await env.reset(seed=4), await env.step(NOTE), await env.step(GIVE_UP)]

    episode = run(job([NOTE, GIVE_UP], seed=4))
    assert [episode.root, *(turn.step for turn in episode.turns)] == asyncio.run(direct())
    assert [turn.messages for turn in episode.turns] == [(NOTE.message,), (GIVE_UP.message,)]
    assert (episode.id, episode.task_id, episode.seed, episode.stop) == ("e0", "memory/0", 4, StopReason.GAVE_UP)
    assert episode.failure is None


def test_02_the_turn_limit_truncates_before_the_agent_is_asked_again() -> None:
    episode = run(job([NOTE, NOTE], turns=2))
    assert (episode.stop, len(episode.turns), episode.failure) == (StopReason.TURN_LIMIT, 2, None)


def test_03_an_end_on_the_last_allowed_turn_is_that_end_and_no_truncation() -> None:
    assert run(job([NOTE, GIVE_UP], turns=2)).stop == StopReason.GAVE_UP


def test_04_the_token_limit_counts_prompt_and_sampled_tokens_and_truncates_after_the_turn_that_reached_it() -> None:
    def agent(env: Env) -> Agent:
        return ScriptedAgent([NOTE] * 9, policy=ScriptedPolicy(tokens=6), prompt_tokens=4)

    episode = run(job(agent, tokens=25))
    assert (episode.stop, len(episode.turns)) == (StopReason.TOKEN_LIMIT, 3)
    assert episode.sampled_tokens == 18


def test_05_the_time_limit_of_an_episode_truncates_between_turns() -> None:
    slow = lambda: SlowEnv(Watched(), mean_s=0.02, rng=np.random.default_rng(0))  # noqa: E731
    episode = run(job([NOTE] * 100, make=slow, episode_s=0.05))
    assert episode.stop == StopReason.TIME_LIMIT
    assert 0 < len(episode.turns) < 100


@pytest.mark.parametrize(
    ("faults", "where", "boundary", "kind", "turns"),
    [
        (Faults(reset_failure=1), "reset", Boundary.ENVIRONMENT, "EnvironmentFailure", 0),
        (Faults(step_crash=1), "step", Boundary.ENVIRONMENT, "EnvironmentFailure", 0),
        (Faults(hang=1), "step", Boundary.ENVIRONMENT, "DeadlineExceeded", 0),
        (Faults(out_of_memory=1), "step", Boundary.ENVIRONMENT, "EnvironmentFailure", 0),
        (Faults(killed=1), "step", Boundary.INFRASTRUCTURE, "SandboxDied", 0),
    ],
)
def test_06_a_fault_of_the_world_is_a_failure_with_its_place_and_never_a_reward(
    faults: Faults, where: str, boundary: Boundary, kind: str, turns: int
) -> None:
    episode = run(job([NOTE], make=faulty(faults)))
    failure = episode.failure
    assert failure is not None
    assert (failure.where, failure.boundary, failure.kind, failure.turn) == (where, boundary, kind, turns)
    assert failure.message
    assert failure.trace
    assert (episode.reward, episode.stop) == (None, None)


WRONG_ANSWERS = [
    (lambda step: ("text", 1.0), "the answer is ('text', 1.0); it must be a Step"),
    (lambda step: None, "the answer is None; it must be a Step"),
    (lambda step: replace(step, reward="1"), "reward is '1'; it must be a finite float or None"),
    (lambda step: replace(step, reward=float("nan")), "reward is nan; it must be a finite float or None"),
    (
        lambda step: replace(step, reward=np.float32(1)),
        "reward is np.float32(1.0); it must be a finite float or None",
    ),
    (lambda step: replace(step, channels={"a": float("inf")}), "channel 'a' is inf; it must be a finite float"),
    (lambda step: replace(step, channels=None), "channels is None; it must be a mapping of names to finite floats"),
    (lambda step: replace(step, stop="goal"), "stop is 'goal'; it must be a StopReason or None"),
    (lambda step: Step("hello"), "observation is 'hello'; it must be a tuple of Messages"),
    (lambda step: Step(("hello",)), "observation is ('hello',); it must be a tuple of Messages"),
]


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(("spoil", "message"), WRONG_ANSWERS)
def test_06b_an_answer_of_a_wrong_kind_is_the_environments_failure_and_is_not_stored(
    spoil: Callable[[Step], Any], message: str, where: str
) -> None:
    class Lying(Watched):
        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            step = await super().reset(seed=seed, start=start)
            return spoil(step) if where == "reset" else step

        async def step(self, action: Action) -> Step:
            step = await super().step(action)
            return spoil(step) if action == GIVE_UP else step

    episode = run(job([NOTE, GIVE_UP], make=Lying))
    failure = episode.failure
    assert failure is not None
    turns = 1 if where == "step" else 0
    assert (failure.where, failure.kind, failure.turn) == (where, "EnvironmentFailure", turns)
    assert message in failure.message
    assert len(episode.turns) == turns


@pytest.mark.parametrize("reward", [None, 1, 0.5, np.float64(0.5)])
def test_06c_every_finite_number_is_a_reward(reward: float | None) -> None:
    class Paying(Watched):
        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), reward=reward, channels={"part": 1})

    assert run(job(make=Paying)).reward == reward


def test_07_the_turns_before_a_failure_are_kept_and_counted() -> None:
    class Dying(Watched):
        async def step(self, action: Action) -> Step:
            step = await super().step(action)
            assert self._board is not None
            if len(self._board.notes) == 3:
                raise SandboxDied("gone")
            return replace(step, reward=1.0)

    episode = run(job([NOTE] * 9, make=Dying))
    assert episode.failure is not None
    assert (len(episode.turns), episode.failure.turn, episode.reward) == (2, 2, None)


def test_08_an_agent_that_breaks_is_the_agents_failure() -> None:
    class Broken(ScriptedAgent):
        async def act(self, step: Step) -> Reply:
            raise KeyError("template")

    episode = run(job(lambda env: Broken([])))
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.kind, episode.failure.where) == (
        "agent",
        "AgentFailure",
        "act",
    )
    over = run(job([NOTE]))
    assert over.failure is not None
    assert (over.failure.boundary, len(over.turns)) == ("agent", 1)


@pytest.mark.parametrize("wait", [False, True])
def test_08b_an_environment_or_agent_that_exits_is_a_recorded_failure_and_an_interrupt_ends_the_run(
    wait: bool,
) -> None:
    class Leaving(Watched):
        leaving: ClassVar[BaseException] = SystemExit(3)

        async def step(self, action: Action) -> Step:
            if wait:
                await asyncio.sleep(0)
            raise self.leaving

    class Quitter(ScriptedAgent):
        async def act(self, step: Step) -> Reply:
            if wait:
                await asyncio.sleep(0)
            raise SystemExit(3)

    jobs = [job(make=Leaving, number=0), job(lambda env: Quitter([NOTE]), number=1), job(number=2)]
    episodes = {one.id: one for one in asyncio.run(collect(jobs, concurrency=3))}
    assert episodes["e2"].failure is None
    for number, (where, kind) in enumerate([("step", "EnvironmentFailure"), ("act", "AgentFailure")]):
        failure = episodes[f"e{number}"].failure
        assert failure is not None
        assert (failure.where, failure.kind, failure.message) == (where, kind, f"{where}: SystemExit: 3")
    Leaving.leaving = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(job(make=Leaving))


def test_09_an_agent_that_hangs_meets_its_deadline() -> None:
    class Hanging(ScriptedAgent):
        async def act(self, step: Step) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

    failure = run(job(lambda env: Hanging([]), act_s=0.02)).failure
    assert failure is not None
    assert (failure.kind, failure.boundary, failure.where) == ("DeadlineExceeded", "agent", "act")


def test_10_an_environment_that_cannot_be_made_is_a_failure_of_the_infrastructure() -> None:
    failure = run(job(make=raising(OSError("no space left")))).failure
    assert failure is not None
    assert (failure.where, failure.boundary, failure.kind) == ("make", "infrastructure", "InfrastructureFailure")


@pytest.mark.parametrize("error", [AgentFailure("no endpoint"), ConnectionRefusedError("no endpoint")])
def test_10b_an_agent_that_cannot_be_made_is_the_agents_failure_and_its_environment_is_closed(
    error: Exception,
) -> None:
    failure = run(job(lambda env: raising(error)())).failure
    assert Watched.opened == Watched.closed == 1
    assert failure is not None
    assert (failure.where, failure.boundary, failure.kind) == ("make", "agent", "AgentFailure")
    assert "no endpoint" in failure.message


def test_11_a_programmers_fault_ends_the_run() -> None:
    def nonsense(env: Env) -> Agent:
        raise TypeError("no such option")

    with pytest.raises(TypeError, match="no such option"):
        run(job(nonsense))
    for mistake in (TypeError, ValueError, KeyError, ImportError):
        with pytest.raises(mistake):
            run(job(make=raising(mistake("no such option"))))

    class Other(Watched):
        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), stop=None, next_actor="opponent")

    with pytest.raises(ValueError, match="asks for actor 'opponent'; agents given"):
        run(job(make=Other))
    with pytest.raises(ValueError, match="concurrency is 0"):
        asyncio.run(collect([], concurrency=0))


def test_12_a_deadline_costs_no_timer_when_nothing_waits_and_reaches_what_does() -> None:
    cleaned = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def quick() -> int:
        return 3

    async def main() -> None:
        assert await deadline(quick(), 1e-9, "quick", Boundary.AGENT) == 3
        with pytest.raises(Exception, match=r"slow did not finish within its deadline of 0\.01 s"):
            await deadline(waits(), 0.01, "slow", Boundary.AGENT)

    asyncio.run(main())
    assert cleaned == [True]


def test_13_episodes_come_as_they_finish_a_hung_world_delays_only_itself() -> None:
    hung = job([NOTE], make=faulty(Faults(hang=1)), number=0, step_s=0.3)
    jobs = [hung, *(job([NOTE, GIVE_UP], number=number) for number in range(1, 20))]
    episodes = asyncio.run(collect(jobs, concurrency=2))
    assert [episode.id for episode in episodes[:-1]] == [f"e{number}" for number in range(1, 20)]
    assert episodes[-1].failure is not None


def test_13_those_that_ended_together_come_in_the_order_in_which_they_ended() -> None:
    episodes = asyncio.run(collect([job([NOTE, GIVE_UP], number=number) for number in range(40)], concurrency=40))
    assert [episode.id for episode in episodes] == [f"e{number}" for number in range(40)]


def test_14_jobs_are_drawn_lazily_and_never_more_than_concurrency_are_open() -> None:
    most = drawn = 0

    def jobs() -> Any:
        nonlocal drawn, most
        for number in range(12):
            drawn += 1
            most = max(most, Watched.opened - Watched.closed)
            yield job(make=lambda: SlowEnv(Watched(), mean_s=1e-3, rng=np.random.default_rng(0)), number=number)

    async def main() -> None:
        iterator = stream(jobs(), concurrency=3)
        await anext(iterator)
        assert drawn <= 6
        async for _ in iterator:
            pass

    asyncio.run(main())
    assert drawn == 12
    assert most <= 3


def test_15_a_failed_episode_is_played_afresh_up_to_retries_and_the_last_try_is_given() -> None:
    made = 0

    def flaky() -> Env:
        nonlocal made
        made += 1
        return faulty(Faults(killed=1.0 if made < 3 else 0.0))()

    (episode,) = asyncio.run(collect([job([GIVE_UP], make=flaky)], concurrency=1, retries=2))
    assert (episode.failure, made) == (None, 3)
    made = -9
    (episode,) = asyncio.run(collect([job([GIVE_UP], make=flaky)], concurrency=1, retries=1))
    assert episode.failure is not None
    assert made == -7


def test_16_leaving_the_stream_cancels_and_closes_everything() -> None:
    async def main() -> None:
        before = Census.take()
        slow = lambda: SlowEnv(Watched(), mean_s=10, rng=np.random.default_rng(0))  # noqa: E731
        jobs = [job([GIVE_UP]), *(job([NOTE], make=slow, number=number, step_s=60) for number in range(1, 6))]
        iterator = stream(jobs, concurrency=6)
        assert (await anext(iterator)).id == "e0"
        await iterator.aclose()
        assert Watched.opened == Watched.closed == 6
        assert await before.wait_until_back() == []

    asyncio.run(main())


def test_17_a_close_that_fails_or_hangs_leaves_the_episode_standing_and_is_reported_once_in_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(Watched):
        async def close(self) -> None:
            await super().close()
            raise OSError("busy\nand more")

    class Endless(Watched):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    async def main() -> None:
        for make in (Stubborn, Endless, Stubborn):
            assert (await run_episode(job([GIVE_UP], make=make, close_s=0.02))).failure is None

    caplog.set_level("DEBUG", "envgym")
    for _ in range(2):  # another run is told again
        caplog.clear()
        asyncio.run(main())
        said = [record for record in caplog.records if record.levelname == "WARNING"]
        assert [record.exc_info for record in said] == [None, None]
        assert said[0].getMessage().startswith("closing Stubborn failed: close: OSError: busy and more")
        assert said[1].getMessage().startswith("closing Endless failed: close did not finish")
        traces = [record for record in caplog.records if record.levelname == "DEBUG" and record.name == "envgym"]
        assert [record.exc_info is not None for record in traces] == [True] * 3


class Told:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.began: list[Began] = []
        self.heard: list[tuple[str, str, int, Turn]] = []

    def begin(self, began: Began) -> None:
        self.began.append(began)

    def said(self, episode: str, index: int, turn: Turn) -> None:
        self.heard.append(("said", episode, index, turn))

    def turn(self, episode: str, index: int, turn: Turn) -> None:
        self.heard.append(("turn", episode, index, turn))


def test_18_what_happens_is_told_as_it_happens() -> None:
    one, told = job([NOTE, GIVE_UP]), Told()
    one.rollout.record = told
    episode = run(one)
    assert told.began == [Began.of(episode)]
    assert told.heard == [("turn", "e0", 0, episode.turns[0]), ("turn", "e0", 1, episode.turns[1])]


def test_18_what_a_world_that_takes_its_time_is_asked_is_told_before_it_answers() -> None:
    told = Told()

    class Slow(Watched):
        async def step(self, action: Action) -> Step:
            await asyncio.sleep(0)
            assert told.heard[-1][0] == "said"
            return await super().step(action)

    async def world() -> Env:
        return Slow()

    one = replace(job([NOTE, GIVE_UP]), make_env=world)
    one.rollout.record = told
    episode = run(one)
    assert [(kind, index) for kind, _, index, _ in told.heard] == [
        ("said", 0),
        ("turn", 0),
        ("said", 1),
        ("turn", 1),
    ]
    assert told.heard[2][3] == replace(episode.turns[1], step=Step())


def test_18_what_a_recorder_raises_ends_the_run() -> None:
    class Full(Told):
        def turn(self, episode: str, index: int, turn: Turn) -> None:
            raise OSError(28, "No space left on device", "the/store")

    one = job([NOTE, GIVE_UP])
    one.rollout.record = Full()
    with pytest.raises(OSError, match="No space left"):
        run(one)


def test_19_snapshots_are_taken_before_every_nth_turn() -> None:
    one = job([NOTE, NOTE, NOTE, GIVE_UP])
    one.rollout.snapshot_every = 2
    episode = run(one)
    assert [turn.snapshot is not None for turn in episode.turns] == [True, False, True, False]
    again = run(replace(job([NOTE, GIVE_UP]), start=episode.turns[2].snapshot))
    assert again.turns[0].step == episode.turns[2].step


def test_20_branches_share_the_history_differ_by_seed_and_leave_their_origin_as_it_is() -> None:
    async def main() -> None:
        env, agent = Watched(), RandomAgent(MemoryEnv.tools, seed=1)
        await env.reset(seed=2)
        step = await env.step(NOTE)
        before = await env.snapshot()
        at = Origin("b", 0, parent=ForkPoint("e0", 1), step=step)
        episodes = await branch(env, agent, at=at, seeds=(1, 2, 2), rollout=Rollout(limits=Limits(turns=6)))
        assert [episode.id for episode in episodes] == ["b/0", "b/1", "b/2"]
        assert {episode.parent for episode in episodes} == {ForkPoint("e0", 1)}
        assert {episode.root.text for episode in episodes} == {step.text}
        assert episodes[1].turns == episodes[2].turns
        assert episodes[0].turns != episodes[1].turns
        assert await env.snapshot() == before
        await env.close()
        with pytest.raises(ValueError, match=r"at\.step"):
            await branch(env, agent, at=Origin("b", 0), seeds=(1,), rollout=Rollout())

    asyncio.run(main())


def test_21_a_fork_plays_on_without_a_reset_and_joins_its_parents_path() -> None:
    async def main() -> None:
        env = Watched()
        rollout = Rollout()
        parent = await play(
            env, {"agent": ScriptedAgent([NOTE, NOTE, GIVE_UP])}, origin=Origin("p", 3), rollout=rollout
        )
        await env.reset(seed=3)
        step = await env.step(NOTE)
        origin = Origin("c", 3, parent=ForkPoint("p", 1), step=step)
        child = await play(env, {"agent": ScriptedAgent([GIVE_UP])}, origin=origin, rollout=rollout)
        await env.close()
        group = Group("memory/0", (parent, child))
        assert group.path(child) == (parent.turns[0], *child.turns)

    asyncio.run(main())


def test_22_a_cancelled_episode_closes_what_it_made() -> None:
    async def main() -> None:
        slow = lambda: SlowEnv(Watched(), mean_s=10, rng=np.random.default_rng(0))  # noqa: E731
        task = asyncio.create_task(run_episode(job([NOTE], make=slow, step_s=60)))
        while not Watched.opened:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_23_the_environments_own_verdict_becomes_a_grade_of_a_terminated_episode_only() -> None:
    class Graded(Watched):
        class grader:
            name, version = "memory", "1"

    ended = run(job([GIVE_UP], make=Graded))
    assert [(grade.grader, grade.channels) for grade in ended.grades] == [
        ("memory", {"reward": 0.0, "opened": 0.0})
    ]
    assert run(job([NOTE], make=Graded, turns=1)).grades == ()
    assert run(job([GIVE_UP])).grades == ()


def test_24_the_same_job_gives_the_same_episode() -> None:
    def agent(env: Env) -> Agent:
        return RandomAgent(env.tools, seed=8)

    assert run(job(agent, turns=9)) == run(job(agent, turns=9))


def test_25_an_infrastructure_error_of_the_agent_keeps_its_own_boundary() -> None:
    class Unplugged(ScriptedAgent):
        async def act(self, step: Step) -> Reply:
            raise InfrastructureFailure("the inference server is gone")

    failure = run(job(lambda env: Unplugged([]))).failure
    assert failure is not None
    assert failure.boundary == Boundary.INFRASTRUCTURE


@pytest.mark.slow
def test_26_a_finished_episode_of_ten_turns_and_5000_tokens_keeps_at_most_60_kib() -> None:
    class Talking(Watched):
        async def step(self, action: Action) -> Step:
            self._said = getattr(self, "_said", 0) + 1
            return Step(
                observation=(Message(role="user", content=f"{self._said:04}" * 125),), state_key=str(self._said)
            )

    def agent(env: Env) -> Agent:
        script = [f"{turn:04}" * 125 for turn in range(10)]
        return ScriptedAgent(script, policy=ScriptedPolicy(tokens=250), prompt_tokens=250)

    async def many() -> list[Episode]:
        return [await run_episode(job(agent, make=Talking, turns=10, number=number)) for number in range(20)]

    asyncio.run(many())
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = asyncio.run(many())
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(episode.sampled_tokens == 2500 and len(episode.turns) == 10 for episode in kept)
    assert grown / len(kept) <= 60 << 10


class Keeping(Watched):
    """Counts snapshots that are not released; its second step fails, or hangs."""

    held: ClassVar[list[Snapshot]] = []
    hangs = False

    async def snapshot(self) -> Snapshot:
        self.held.append(await super().snapshot())
        return self.held[-1]

    async def release(self, snapshot: Snapshot) -> None:
        self.held.remove(snapshot)

    async def step(self, action: Action) -> Step:
        if len(self.held) % 2 == 0:
            if self.hangs:
                await asyncio.Event().wait()
            raise SandboxDied("gone")
        return await super().step(action)


def keeping(*, hangs: bool = False, **options: Any) -> Job:
    Keeping.held.clear()
    Keeping.hangs = hangs
    one = job([NOTE, NOTE], make=Keeping, **options)
    one.rollout.snapshot_every = 1
    return one


def test_27_the_snapshot_of_a_failed_turn_is_released_and_those_of_complete_turns_are_the_callers() -> None:
    episode = run(keeping())
    assert episode.failure is not None
    assert [turn.snapshot for turn in episode.turns] == Keeping.held


def test_28_a_try_that_is_played_again_keeps_no_snapshot() -> None:
    (episode,) = asyncio.run(collect([keeping()], concurrency=1, retries=2))
    assert [turn.snapshot for turn in episode.turns] == Keeping.held
    assert len(Keeping.held) == 1


@pytest.mark.parametrize("told", [True, False])
def test_29_a_cancelled_episode_releases_the_snapshots_that_nobody_was_told_of(told: bool) -> None:
    recorder = Told()

    async def main() -> None:
        one = keeping(hangs=True, step_s=60)
        one.rollout.record = recorder if told else None
        task = asyncio.create_task(run_episode(one))
        while len(Keeping.held) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen = [turn for kind, _, _, turn in recorder.heard if kind == "turn"]
        assert Keeping.held == [turn.snapshot for turn in seen]
        assert len(seen) == told

    asyncio.run(main())


class Forking(Watched):
    """Its forks fail or hang, as told."""

    error: Exception | None = None

    async def fork(self) -> "Watched":
        if self.error is None:
            await asyncio.Event().wait()
        assert self.error is not None
        raise self.error


async def branched(
    env: Watched, agent: Agent, *, seeds: Sequence[int] = (1, 2), **limits: Any
) -> Sequence[Episode]:
    step = await env.reset(seed=2)
    at = Origin("b", 0, parent=ForkPoint("e0", 0), step=step)
    try:
        return await branch(env, agent, at=at, seeds=seeds, rollout=Rollout(limits=Limits(**limits)))
    finally:
        await env.close()


class Unforkable(ScriptedAgent):
    def fork(self, *, seed: int) -> ScriptedAgent:
        if seed == 1:
            raise OSError("no more sessions")
        return super().fork(seed=seed)


def test_30_a_fork_that_fails_or_hangs_is_an_episode_with_a_typed_failure() -> None:
    def failures(env: Watched, agent: Agent, **limits: Any) -> list[Any]:
        found = asyncio.run(branched(env, agent, **limits))
        assert all(one.root.text and one.parent == ForkPoint("e0", 0) for one in found)
        return [one.failure and (one.failure.kind, one.failure.where, one.failure.boundary) for one in found]

    broken = Forking()
    broken.error = EnvironmentFailure("no")
    script = ScriptedAgent([GIVE_UP])
    assert failures(broken, script) == [("EnvironmentFailure", "fork", "environment")] * 2
    assert failures(Forking(), script, reset_s=0.02) == [("DeadlineExceeded", "fork", "environment")] * 2
    assert failures(Watched(), Unforkable([GIVE_UP])) == [("AgentFailure", "fork", "agent"), None]


def test_31_what_ends_a_branch_ends_its_siblings_before_it_raises() -> None:
    class Endless(Watched):
        async def fork(self) -> "Watched":
            return Endless()

        async def step(self, action: Action) -> Step:
            await asyncio.Event().wait()
            raise AssertionError

    class Named(ScriptedAgent):
        def fork(self, *, seed: int) -> ScriptedAgent:
            return ScriptedAgent([NOTE], name="other" if seed == 2 else "agent")

    async def main() -> None:
        with pytest.raises(ValueError, match="asks for actor 'agent'; agents given"):
            await branched(Endless(), Named([]), step_s=60)
        assert Endless.opened == Endless.closed == 3

    asyncio.run(main())


class Raising(ScriptedAgent):
    """Says so often what it is told, and then raises; `wait` says whether it takes its time."""

    def __init__(self, error: Exception, *, after: int, wait: bool) -> None:
        super().__init__([NOTE] * after)
        self._error, self._left, self._wait = error, after, wait

    async def act(self, step: Step) -> Reply:
        if self._wait:
            await asyncio.sleep(0)
        if not self._left:
            raise self._error
        self._left -= 1
        return await super().act(step)


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_32_a_context_that_is_full_truncates_and_is_no_failure_where_an_agent_says_so(
    after: int, wait: bool
) -> None:
    one = job(lambda env: Raising(ContextFull("too long"), after=after, wait=wait))
    one.rollout.snapshot_every = 1
    episode = run(one)
    assert (episode.stop, episode.failure) == (StopReason.CONTEXT_LIMIT, None)
    assert episode.stop is not None
    assert episode.stop.truncated
    assert len(episode.turns) == after


def test_32_a_worlds_own_full_context_is_the_failure_that_it_says() -> None:
    class Judged(Watched):
        async def step(self, action: Action) -> Step:
            raise ContextFull("the judge's")

    episode = run(job([NOTE], make=Judged))
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.where, episode.stop) == ("ContextFull", "step", None)


@pytest.mark.parametrize("wait", [False, True])
def test_33_what_every_episode_would_meet_ends_the_run_and_is_no_episode(wait: bool) -> None:
    one = job(lambda env: Raising(Misconfigured("no key"), after=1, wait=wait))
    with pytest.raises(Misconfigured, match="no key"):
        run(one)
    with pytest.raises(Misconfigured, match="no key"):
        asyncio.run(collect([one, job(number=1)], concurrency=2, retries=3))

    class Unmade(Watched):
        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            raise Misconfigured("there is no such image")

    with pytest.raises(Misconfigured, match="there is no such image"):
        run(job([NOTE], make=Unmade))


def test_an_episode_in_stretches_is_the_one_that_was_never_cut_and_may_be_given_up_between_two() -> None:
    policy = ScriptedPolicy(tokens=4)
    asked: list[int] = []

    def stretched(answers: Sequence[bool]) -> Job:
        left = list(answers)

        async def goes_on(cut: Episode) -> bool:
            assert cut.stop is StopReason.TOKEN_LIMIT
            asked.append(len(cut.turns))
            return left.pop(0)

        made = job(lambda env: ScriptedAgent([NOTE, NOTE, NOTE, GIVE_UP], policy=policy))
        return replace(made, stretch=Stretch(8, goes_on)) if answers else made

    whole = asyncio.run(run_episode(stretched([])))
    parts = asyncio.run(run_episode(stretched([True, True, True])))
    assert asked == [1, 2, 3]
    assert (parts.stop, parts.root, len(parts.turns)) == (whole.stop, whole.root, 4)
    for one, other in zip(parts.turns, whole.turns, strict=True):
        assert (one.messages, one.step, one.position) == (other.messages, other.step, other.position)
        assert one.sampled_ids.tolist() == other.sampled_ids.tolist()
    given_up = asyncio.run(run_episode(stretched([True, False])))
    assert (given_up.stop, len(given_up.turns)) == (StopReason.TOKEN_LIMIT, 2)
    with pytest.raises(ValueError, match=r"Stretch\.tokens is 0"):
        Stretch(0, lambda episode: None)
