"""What peers' tasks pay here, unmodified: to a script that plays them, beside one line that is said over and over.

reasoning-gym (all generators), TextArena (every id that is played here), TextWorld, and tau2's domains where
``--tau2 FOLDER`` names a folder of them. Rewards are the libraries' own, as means over tasks; nothing is timed. The
numbers in docs/tool-environments.md are this benchmark's.
"""

import asyncio
import warnings
from pathlib import Path
from statistics import fmean

from _harness import Row, finish, options
from envgym_environments.text import arena, arena_expert, reasoning, textworld_games
from envgym_environments.tool.service import world as service

from envgym import make
from envgym.env import StopReason
from envgym.testing.fakes import ScriptedAgent

LINE = "one line over and over"
MOST_TURNS = 20_000
LONG = (*(f"2048-v0{kind}" for kind in ("", "-5x5", "-hard", "-very-hard", "-extreme")), "Sokoban-v0-medium")
"""Thousands of moves each, or rooms that take the library half a minute: only with --long, and a third of them."""
QUICK = ("GuessTheNumber-v0", "Secretary-v0", "Slitherlink-v0", "LogicPuzzle-v0")


async def ended(env, agent, seed):
    """Reward and whether the goal was reached."""
    total = 0.0
    step = await env.reset(seed=seed)
    for _ in range(MOST_TURNS):
        total += step.reward or 0.0
        if step.stop is not None:
            break
        step = await env.step((await agent.act(step)).action)
    await env.close()
    return total, step.stop is StopReason.GOAL


def played(spec, tasks, expert, line):
    """Mean reward of the expert, of the line (None where there is no expert), and the share that was won."""
    ours, theirs = [], []
    for seed, task in enumerate(tasks):
        ours.append(asyncio.run(ended(make(spec, task), expert(task, seed=seed), seed)))
        theirs.append(asyncio.run(ended(make(spec, task), ScriptedAgent([line] * MOST_TURNS), seed))[0])
    return fmean(reward for reward, _ in ours), fmean(theirs), fmean(won for _, won in ours)


def groups(given):
    """Name, specification, tasks, expert and line of each row."""
    most = 2 if given.quick else given.most
    games = [game for game in arena.GAMES if game.partition("-v0")[0] in arena_expert.KNOWN]
    for game in QUICK if given.quick else games:
        if given.long or game not in LONG:
            tasks = arena.arena_tasks(max(1, most // 3) if game in LONG else most, game=game)
            yield f"textarena {game}", arena.SPEC, tasks, arena_expert.expert, "[9 9 9]"
    names = reasoning.GENERATORS[:5] if given.quick else reasoning.GENERATORS
    tasks = reasoning.reasoning_tasks(len(names) * max(1, most // 10), generators=names)
    yield "reasoning-gym", reasoning.SPEC, tasks, reasoning.expert, "I do not know"
    if not given.quick:
        tasks = textworld_games.textworld_tasks(max(1, most // 5))
        yield "textworld", textworld_games.SPEC, tasks, textworld_games.expert, "look"
    for folder in sorted(given.tau2.iterdir()) if given.tau2 else ():
        tasks = service.service_tasks(path=str(folder))
        yield f"tau2 {folder.name}", service.SPEC, tasks, service.expert, "It is done."


def main(arguments=None):
    def more(parser):
        parser.add_argument("--most", type=int, default=10, help="tasks of each row")
        parser.add_argument("--long", action="store_true", help="the games of thousands of moves, too")
        parser.add_argument(
            "--tau2", type=Path, help="a folder of tau2's domains, each with tasks.json and db.json"
        )

    given = options(__doc__, arguments, more=more)
    warnings.simplefilter("ignore", ResourceWarning)
    rows, won, counts = [], {}, {}
    for name, spec, tasks, expert, line in groups(given):
        ours, theirs, share = played(spec, tasks, expert, line)
        rows.append(Row(name, ours, theirs, LINE, "reward"))
        won[name], counts[name] = round(share, 3), len(tasks)
        print(f"{name}: {ours:.3f} beside {theirs:.3f}, won {share:.2f} of {len(tasks)}", flush=True)
    finish("peer_tasks", rows, given, won=won, episodes=counts)


if __name__ == "__main__":
    main()
