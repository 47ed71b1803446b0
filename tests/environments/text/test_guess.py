from envgym_environments.text.guess import SPEC, Guess, guess_tasks

from envgym.env import StopReason
from envgym.messages import Action
from envgym.registry import make
from envgym.replay import Replaying
from envgym.testing.check_env import check_env_sync
from envgym.testing.check_task import check_tasks


def test_guess_meets_the_environment_contract() -> None:
    check_env_sync(lambda: Guess(guess_tasks()[0]), uses_seed=True)


def test_guess_tasks_meet_the_task_contract() -> None:
    check_tasks(guess_tasks(20), splits=("train", "heldout"), seeded=True)


def test_the_registry_makes_it_a_full_environment() -> None:
    assert isinstance(make(SPEC, 0), Replaying)


async def _binary_search(tries: int) -> StopReason | None:
    env = Guess(guess_tasks(1, most=20, tries=tries)[0])
    step = await env.reset(seed=3)
    while step.stop is None:
        assert step.legal
        step = await env.step(Action.say(step.legal[len(step.legal) // 2]))
    return step.stop


def test_binary_search_wins_and_one_try_does_not() -> None:
    import asyncio

    assert asyncio.run(_binary_search(5)) is StopReason.GOAL
    assert asyncio.run(_binary_search(1)) is StopReason.LOST
