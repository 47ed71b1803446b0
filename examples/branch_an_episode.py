"""Measure what a turn is worth: play to it, fork the world there, and play many continuations of each choice.

The value of a state is estimated by playing on from it, not by a critic; the choices share their whole history, so
nothing else differs. Run it: ``python examples/branch_an_episode.py``
"""

import asyncio
import statistics

from envgym import Action, ForkPoint, Group, Origin, Rollout, branch, make, play
from envgym.registry import find

CONTINUATIONS = 32


async def value_of(guess: int, seed: int) -> float:
    """Mean reward of random play after one given first guess."""
    env = make("guess")
    agent = find("agents", "random")(env.task, seed=seed)
    await env.reset(seed=seed)
    step = await env.step(Action.say(f"guess {guess}"))
    if step.stop is not None:
        return step.reward or 0.0
    at = Origin("root", seed, parent=ForkPoint("root", 1), step=step)
    episodes = await branch(env, agent, at=at, seeds=range(CONTINUATIONS), rollout=Rollout())
    await env.close()
    return statistics.fmean(episode.reward or 0.0 for episode in episodes)


async def whole_tree(seed: int) -> Group:
    """One episode and the continuations of its end state's parent, as the group that credit reads."""
    env = make("guess")
    agent = find("agents", "random")(env.task, seed=seed)
    root = await play(env, {agent.name: agent}, origin=Origin("root", seed), rollout=Rollout())
    forks = []
    if len(root.turns) > 1:
        again = make("guess")
        await again.reset(seed=seed)
        step = await again.step(Action.say(root.turns[0].messages[0].content))
        at = Origin("root", seed, parent=ForkPoint("root", 1), step=step)
        forks = list(await branch(again, agent, at=at, seeds=range(8), rollout=Rollout()))
        await again.close()
    await env.close()
    return Group(root.task_id, (root, *forks))


async def main() -> None:
    for guess in (1, 5, 10, 15, 20):
        values = [await value_of(guess, seed) for seed in range(10)]
        print(f"first guess {guess:2}: mean reward of what follows {statistics.fmean(values):.2f}")
    group = await whole_tree(seed=1)
    for episode in group:
        print(f"{episode.id:8} {len(group.path(episode))} turns, ended {episode.stop}, reward {episode.reward}")


if __name__ == "__main__":
    asyncio.run(main())
