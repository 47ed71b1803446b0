"""The synchronous view: a true Gymnasium environment over the one async implementation."""

import asyncio
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from envgym import registry
from envgym.as_gymnasium import AsGymnasium, Cost
from envgym.driver import Driver
from envgym.env import Env, Step, StopReason
from envgym.errors import DeadlineExceeded
from envgym.limits import Limits
from envgym.messages import Action
from envgym.spaces import Unicode
from envgym.task import Task
from envgym.testing.fakes import MEMORY, Faults, FaultyEnv, MemoryEnv, SlowEnv
from envgym.testing.memory import memory_tasks

WAITING = registry.EnvSpec(
    name="memory-waiting",
    tasks=memory_tasks,
    make=lambda task: SlowEnv(MemoryEnv(task), mean_s=1e-4, rng=np.random.default_rng(0)),
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    registry.register("environments", "memory", MEMORY)
    registry.register("environments", "memory-waiting", WAITING)
    yield
    registry.unregister("environments", "memory")
    registry.unregister("environments", "memory-waiting")


@pytest.mark.parametrize("env_id", ["envgym/Memory-v0", "envgym/MemoryWaiting-v0"])
def test_passes_gymnasiums_checker_without_a_warning(env_id: str) -> None:
    env = gymnasium.make(env_id)
    check_env(env.unwrapped)
    env.close()


def test_gives_what_the_steps_say() -> None:
    env = gymnasium.make("envgym/Memory-v0", render_mode="ansi")
    text, info = env.reset(seed=3)
    assert text.startswith("A treasure is in one of 5 cells")
    assert env.render() == text
    assert info["legal"][0] == "open 0"
    assert info["stop"] is None
    assert not info["rewarded"]
    secret = int(np.random.default_rng(3).integers(5))
    text, reward, terminated, truncated, info = env.step(f"open {(secret + 1) % 5}")
    assert (reward, terminated, truncated, info["rewarded"]) == (-0.1, False, False, True)
    text, reward, terminated, truncated, info = env.step(json.dumps({"name": "look", "arguments": {"cell": 2}}))
    assert (reward, info["rewarded"]) == (0.0, False)
    text, reward, terminated, truncated, info = env.step(f"open {secret}")
    assert (reward, terminated, truncated, info["stop"]) == (1.0, True, False, "goal")
    assert info["channels"] == {"reward": 1.0, "opened": 1.0}
    env.close()


def test_a_bad_text_is_answered_and_a_non_text_is_refused() -> None:
    env = AsGymnasium(MEMORY)
    env.reset(seed=0)
    assert "unknown tool" in env.step("fly away")[0]
    with pytest.raises(TypeError, match="actions of this environment are str"):
        env.step(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown reset option"):
        env.reset(options={"tsak": 1})
    with pytest.raises(ValueError, match="render_mode is 'human'"):
        AsGymnasium(MEMORY, render_mode="human")
    env.close()


def test_an_unknown_option_or_a_task_of_a_wrong_kind_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match=r"environment memory\.foo = 1: there is no such option"):
        gymnasium.make("envgym/Memory-v0", foo=1)
    with pytest.raises(
        TypeError, match="task of environment 'memory' is 'memory/1'; it must be a Task or its index"
    ):
        gymnasium.make("envgym/Memory-v0", task="memory/1")


def test_a_step_that_cannot_be_made_is_an_error_where_its_environment_makes_it() -> None:
    class Lying(MemoryEnv):
        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), reward=float("nan"))

    env = AsGymnasium(replace(MEMORY, make=Lying))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="reward is nan; it must be a finite float or None"):
        env.step("give_up")


def test_the_seed_is_the_environments_own_and_unseeded_resets_differ() -> None:
    env = AsGymnasium(MEMORY)
    direct = asyncio.run(MemoryEnv().reset(seed=11)).text
    assert env.reset(seed=11)[0] == direct
    assert len({env.reset()[0] for _ in range(5)}) > 1


def test_reset_options_choose_task_and_start() -> None:
    env = AsGymnasium(MEMORY)
    assert "7 cells" in env.reset(seed=0, options={"task": 2})[0]
    assert "7 cells" in env.reset(seed=0)[0]
    assert "5 cells" in env.reset(seed=0, options={"task": memory_tasks(1)[0]})[0]
    env.step("note before")
    start = env.snapshot()
    after = env.step("note after")
    env.step("give_up")
    env.reset(options={"start": start})
    assert env.step("note after")[0] == after[0] == "noted: before | after"


def test_a_turn_limit_truncates() -> None:
    env = AsGymnasium(MEMORY, limits=Limits(turns=2))
    env.reset(seed=0)
    assert env.step("note a")[3] is False
    _, _, terminated, truncated, info = env.step("note b")
    assert (terminated, truncated, info["stop"]) == (False, True, str(StopReason.TURN_LIMIT))


def test_a_time_limit_of_an_episode_truncates_and_begins_anew_with_a_reset() -> None:
    env = AsGymnasium(MEMORY, limits=Limits(episode_s=1e-9))
    for _ in range(2):
        env.reset(seed=0)
        _, _, terminated, truncated, info = env.step("note a")
        assert (terminated, truncated, info["stop"]) == (False, True, str(StopReason.TIME_LIMIT))
    patient = AsGymnasium(MEMORY, limits=Limits(episode_s=1000))
    patient.reset(seed=0)
    assert patient.step("note a")[3] is False


def test_a_token_limit_is_refused_because_no_tokens_are_here() -> None:
    with pytest.raises(ValueError, match=r"limits\.tokens is 5; .*no tokens are counted here"):
        AsGymnasium(MEMORY, limits=Limits(tokens=5))


def test_an_environment_that_never_waits_may_still_be_isolated() -> None:
    env = gymnasium.make("envgym/Guess-v0", isolate="process", disable_env_checker=True)
    alone = gymnasium.make("envgym/Guess-v0", disable_env_checker=True)
    assert env.reset(seed=3)[0] == alone.reset(seed=3)[0]
    env.close()


def test_a_long_observation_loses_its_middle_visibly() -> None:
    env = AsGymnasium(MEMORY, max_text=60)
    env.reset(seed=0)
    text = env.step("note " + "x" * 79)[0]
    assert text in env.observation_space
    assert "middle is left out" in text
    assert text.startswith("note")
    assert text.endswith("x")


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env_id", ["envgym/Memory-v0", "envgym/MemoryWaiting-v0"])
def test_vector_environments_batch_texts(mode: str, env_id: str) -> None:
    envs = gymnasium.make_vec(env_id, num_envs=3, vectorization_mode=mode)
    texts, infos = envs.reset(seed=[1, 2, 3])
    alone = [AsGymnasium(MEMORY).reset(seed=seed)[0] for seed in (1, 2, 3)]
    assert list(texts) == alone
    assert texts in envs.observation_space
    assert [len(legal) for legal in infos["legal"]] == [10, 10, 10]
    texts, _, terminated, _, infos = envs.step(("note 東京", "give_up", "nonsense"))
    assert texts == ("noted: 東京", "you gave up", texts[2])
    assert terminated.tolist() == [False, True, False]
    texts, *_ = envs.step(("note b", "note b", "note b"))
    assert texts[0] == "noted: 東京 | b"
    assert texts[1].startswith("A treasure")
    envs.close()


@pytest.mark.parametrize("shared", [True, False])
def test_asynchronous_vectors_work_with_and_without_shared_memory(shared: bool) -> None:
    envs = gymnasium.make_vec(
        "envgym/Memory-v0", num_envs=2, vectorization_mode="async", vector_kwargs={"shared_memory": shared}
    )
    first, _ = envs.reset(seed=4)
    second, *_ = envs.step(("note \U0001f600", "note \ud800"))
    told = "note: 'text'='\\ud800' is no Unicode text: it holds half a surrogate pair"
    assert second == ("noted: \U0001f600", told), "what was said arrives as it was, and is answered"
    assert first[0].startswith("A treasure")
    envs.close()


def test_in_process_needs_neither_loop_nor_thread_and_works_inside_a_loop() -> None:
    async def inside() -> str:
        env = AsGymnasium(MEMORY)
        env.reset(seed=0)
        text = env.step("note hi")[0]
        env.close()
        return text

    before = threading.active_count()
    env = AsGymnasium(MEMORY)
    env.reset(seed=0)
    assert env._driver._loop is None
    assert threading.active_count() == before
    assert asyncio.run(inside()) == "noted: hi"


def test_a_waiting_environment_uses_no_thread_until_it_is_called_inside_a_loop() -> None:
    env = AsGymnasium(WAITING)
    before = threading.active_count()
    env.reset(seed=0)
    env.step("note one")
    assert threading.active_count() == before

    async def inside() -> str:
        return env.step("note two")[0]

    assert asyncio.run(inside()) == "noted: one | two"
    assert threading.active_count() == before + 1
    assert env.step("note three")[0].endswith("three")
    env.close()
    env.close()
    assert threading.active_count() == before


def test_closing_inside_a_running_loop_works() -> None:
    async def inside() -> None:
        env = AsGymnasium(WAITING)
        env.reset(seed=0)
        env.close()

    asyncio.run(inside())


def test_an_environment_that_waits_although_it_says_it_does_not_is_refused() -> None:
    liar = registry.EnvSpec(name="liar", tasks=memory_tasks, make=WAITING.make, in_process=True)
    env = AsGymnasium(liar)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="in_process=True"):
        env.step("note a")


def test_a_hang_meets_its_deadline() -> None:
    def hanging(task: Task) -> Env:
        return FaultyEnv(MemoryEnv(task), faults=Faults(hang=1.0), rng=np.random.default_rng(0))

    env = AsGymnasium(
        registry.EnvSpec(name="hanging", tasks=memory_tasks, make=hanging), limits=Limits(step_s=0.05)
    )
    env.reset(seed=0)
    with pytest.raises(DeadlineExceeded, match="step did not finish"):
        env.step("note a")
    env.close()


def test_an_error_in_the_coroutine_reaches_the_caller() -> None:
    async def broken() -> None:
        await asyncio.sleep(0)
        raise LookupError("mine")

    driver = Driver(waits=True)
    with pytest.raises(LookupError, match="mine"):
        driver.run(broken())
    driver.close()
    driver.close()


@given(st.text(alphabet=st.characters(), max_size=50), st.integers(1, 60))
def test_the_unicode_space_holds_every_text_that_is_short_enough(text: str, bound: int) -> None:
    space = Unicode(bound)
    assert (text in space) == (len(text) <= bound)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([text])))) == [text]


@given(st.integers(0, 2**32 - 1), st.integers(1, 100))
def test_samples_are_in_the_space_and_repeat_with_the_seed(seed: int, bound: int) -> None:
    one, two = Unicode(bound, seed=seed), Unicode(bound, seed=seed)
    drawn = [one.sample() for _ in range(5)]
    assert drawn == [two.sample() for _ in range(5)]
    assert all(text in one for text in drawn)
    assert all(text.encode() for text in drawn if text)


def test_the_unicode_space_compares_pickles_and_batches() -> None:
    space = Unicode(9, seed=1)
    assert space == Unicode(9)
    assert space != Unicode(8)
    assert pickle.loads(pickle.dumps(space)) == space
    assert space.sample() in batch_space(space, 1)[0]  # type: ignore[index]
    assert 3 not in space
    for bad in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"Unicode.max_length"):
            Unicode(bad)  # type: ignore[arg-type]


def test_costs_are_outside_the_comparison() -> None:
    assert Cost({"seconds": 1.0}) == Cost({"seconds": 2.0})
    assert dict(Cost({"seconds": 1.0})) == {"seconds": 1.0}


def test_ids_are_known_by_importing_gymnasium_alone_and_no_leaf_is_imported() -> None:
    code = (
        "import sys, gymnasium\n"
        "ids = [i for i in gymnasium.registry if i.startswith('envgym/')]\n"
        "from importlib.metadata import entry_points\n"
        "want = len(entry_points(group='envgym.environments'))\n"
        "assert len(ids) == want, (ids, want)\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in "
        "('envgym_environments', 'envgym_agents', 'envgym_sandboxes', 'pydantic')]\n"
        "assert not heavy, heavy\n"
        "assert not [f for f in sys.meta_path if type(f).__module__ == 'envgym.gymnasium_plugin']\n"
        "print(sorted(ids))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
