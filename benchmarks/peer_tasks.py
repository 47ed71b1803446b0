"""What peers' tasks pay here, unmodified: to a script that plays them, beside one line that is said over and over.

reasoning-gym (all generators), TextArena (every id that is played here), TextWorld, and tau2's domains where
``--tau2 FOLDER`` names a folder of them. Rewards are the libraries' own, as means over tasks; nothing is timed. The
numbers in docs/tool-environments.md are this benchmark's.
"""

import asyncio
import json
import warnings
from dataclasses import fields
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
SIZES = ((1, 2, 1), (3, 5, 4), (6, 10, 6), (10, 20, 10))
"""Rooms, objects and the length of the quest of TextWorld's games."""
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
    tasks = reasoning.reasoning_tasks(len(names) * most, generators=names)
    yield "reasoning-gym", reasoning.SPEC, tasks, reasoning.expert, "I do not know"
    for rooms, objects, quest in () if given.quick else SIZES:
        tasks = textworld_games.textworld_tasks(2 * most, rooms=rooms, objects=objects, quest=quest)
        yield f"textworld {rooms}-{objects}-{quest}", textworld_games.SPEC, tasks, textworld_games.expert, "look"
    for folder in sorted(given.tau2.iterdir()) if given.tau2 else ():
        tasks = service.service_tasks(path=str(folder))
        yield f"tau2 {folder.name}", service.SPEC, tasks, service.expert, "It is done."


def main(arguments=None):
    def more(parser):
        parser.add_argument("--most", type=int, default=10, help="tasks of each row")
        parser.add_argument("--long", action="store_true", help="the games of thousands of moves, too")
        parser.add_argument("--only", default="", help="rows whose names begin so")
        parser.add_argument(
            "--keep", action="store_true", help="rows that are not played stay as --json has them, and are named"
        )
        parser.add_argument(
            "--tau2", type=Path, help="a folder of tau2's domains, each with tasks.json and db.json"
        )

    given = options(__doc__, arguments, more=more)
    warnings.simplefilter("ignore", ResourceWarning)
    rows, won, counts = [], {}, {}
    for name, spec, tasks, expert, line in (one for one in groups(given) if one[0].startswith(given.only)):
        ours, theirs, share = played(spec, tasks, expert, line)
        rows.append(Row(name, ours, theirs, LINE, "reward"))
        won[name], counts[name] = round(share, 3), len(tasks)
        print(f"{name}: {ours:.3f} beside {theirs:.3f}, won {share:.2f} of {len(tasks)}", flush=True)
    kept = _kept(rows, won, counts, given.json) if given.keep and given.json else {}
    finish("peer_tasks", rows, given, won=won, episodes=counts, kept=kept)


def _kept(rows, won, counts, file):
    """Add the rows of an earlier record that were not played now; of each, when it was."""
    before = json.loads(file.read_text())
    played = {row.name for row in rows}
    since = {}
    for old in before["rows"]:
        name = old["name"]
        if name in played or name == "textworld":  # a row of one size has that size in its name now
            continue
        rows.append(Row(**{field.name: old[field.name] for field in fields(Row)}))
        won[name], counts[name] = before["won"][name], before["episodes"][name]
        since[name] = before.get("kept", {}).get(name, before["machine"]["date"])
    return since


if __name__ == "__main__":
    main()
