"""How groups come to their members: who plays them, how many, in which rounds, and which of them are learned from.

Everything drawn is a function of (seed, step, number of the group, number of the member), so it does not depend on
what finished first, and a run that goes on plays the same.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envgym.credit.groups import Adaptive, malformed_share, resample_on_correct
from envgym.credit.reference import GREEDY, is_greedy
from envgym.episode import Episode, Group
from envgym.growing import growing
from envgym.jobs import Job
from envgym.policy import AgentFactory
from envgym.stems import Forking, Stems
from envgym.task import Task
from envgym_agents.learn.config_reinforce import Members, Reinforce
from envgym_agents.learn.play import Arena, seed_of

__all__ = [
    "Players", "adaptive_of", "chosen", "in_rounds", "played_groups", "sampled_only", "slot", "stems_of",
    "whole_paths",
]  # fmt: skip


def slot(step: int, number: int) -> str:
    """The id of a group, with which those of its members begin."""
    return f"s{step:05d}-g{number:03d}"


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays a step's groups, and where. greedy: makes the agent of a group's greedy member; None: it has none.

    A greedy member's provenance says that it is one.
    """

    arena: Arena
    make_agent: AgentFactory
    seed: int
    step: int
    greedy: AgentFactory | None = None

    def jobs(self, number: int, task: Task, members: range, stems: Stems) -> list[Job]:
        """Sampled members of one group, which grow as the stems say; with the first of them, the greedy one."""
        name = slot(self.step, number)
        sampled = (
            self.arena.job(
                task,
                self.make_agent,
                seed=seed_of(self.seed, 5, self.step, number, member),
                episode_id=f"{name}-{member:03d}",
                group=name,
            )
            for member in members
        )
        found = [growing(job, stems) if stems.forking.points else job for job in sampled]
        if self.greedy is not None and members.start == 0:
            likeliest = self.arena.noted(GREEDY).job(
                task,
                self.greedy,
                seed=seed_of(self.seed, 10, self.step, number),
                episode_id=f"{name}-greedy",
                group=name,
            )
            found.append(likeliest)
        return found


async def played_groups(
    players: Players, config: Reinforce, tasks: Sequence[Task], numbers: Sequence[int]
) -> list[Group]:
    """One whole group for each task: all that was played, a greedy member last.

    With members of kind "adaptive" round follows round, each of the tasks of which not enough is known.
    """
    found: dict[int, tuple[Episode, ...]] = dict.fromkeys(numbers, ())
    task_of = dict(zip(numbers, tasks, strict=True))
    adaptive = adaptive_of(config)
    wanted = dict.fromkeys(numbers, _at_first(config, adaptive))
    begun, rounds = dict.fromkeys(numbers, 0), 0
    while wanted:
        by_group: dict[str, list[Episode]] = {}
        async with stems_of(config) as stems:
            jobs = [
                job
                for number, more in wanted.items()
                for job in players.jobs(number, task_of[number], range(begun[number], begun[number] + more), stems)
            ]
            for episode in await players.arena.play(jobs):
                by_group.setdefault(episode.group, []).append(episode)
        for number, more in wanted.items():
            found[number] += tuple(by_group.get(slot(players.step, number), ()))
            begun[number] += more
        rounds += 1
        wanted = {} if adaptive is None else _next(adaptive, task_of, found, rounds)
    return [
        Group(task_of[number].id, tuple(sorted(found[number], key=lambda episode: episode.id)))
        for number in numbers
    ]


async def in_rounds(config: Reinforce, play: Callable[[range], Awaitable[Sequence[Episode]]]) -> Group:
    """One whole group by itself, a greedy member last. play: those of its members that have these numbers."""
    adaptive = adaptive_of(config)
    numbers, found, rounds = range(_at_first(config, adaptive)), list[Episode](), 0
    while True:
        found += await play(numbers)
        rounds += 1
        group = Group(found[0].task_id, tuple(sorted(found, key=lambda episode: episode.id)))
        wanted = {} if adaptive is None else adaptive.wanted({group.task_id: sampled_only(group)}, rounds)
        if not wanted:
            return group
        numbers = range(numbers.stop, numbers.stop + wanted[group.task_id])


def _at_first(config: Reinforce, adaptive: Adaptive | None) -> int:
    """How many members a group has, or its first round."""
    if adaptive is not None:
        return adaptive.per_round
    return config.members.played if config.members.kind == "resample-on-correct" else config.group


def _next(
    adaptive: Adaptive, task_of: Mapping[int, Task], found: Mapping[int, tuple[Episode, ...]], rounds: int
) -> dict[int, int]:
    so_far = {str(number): sampled_only(Group(task_of[number].id, found[number])) for number in found}
    return {int(number): more for number, more in adaptive.wanted(so_far, rounds).items()}


def stems_of(config: Reinforce) -> Stems:
    """Where episodes of a configuration are forked while they are played."""
    forks = config.members.forks
    return Stems(Forking(forks.points, forks.times, forks.by, forks.turns))


def whole_paths(episodes: Iterable[Episode]) -> list[Episode]:
    """Those that were played from their beginning: a fork's own turns are the rest of a path that was chosen."""
    return [episode for episode in episodes if episode.parent is None]


def sampled_only(group: Group) -> Group:
    """The group without its greedy members, which are no samples of the policy that learns."""
    if not any(map(is_greedy, group)):
        return group
    return Group(group.task_id, tuple(episode for episode in group if not is_greedy(episode)))


def adaptive_of(config: Reinforce) -> Adaptive | None:
    """The rounds that a configuration asks for; None for another kind of members."""
    members = config.members
    if members.kind != "adaptive":
        return None
    make = Adaptive.balance if members.enough == "balance" else Adaptive.positive
    return make(config.group, per_round=members.per_round, rounds=members.rounds, above=members.above)


def chosen(group: Group, config: Reinforce, rng: np.random.Generator) -> Group:
    """The members of a whole group that are learned from, and its greedy one, in their order."""
    members, adaptive, sampled = config.members, adaptive_of(config), sampled_only(group)
    if adaptive is not None:
        (kept,) = adaptive.groups([sampled], rng=rng)
    elif members.kind == "resample-on-correct":
        kept = resample_on_correct(
            sampled,
            config.group,
            rng=rng,
            penalty=lambda episode: _penalty(episode, members),
            above=members.above,
            negatives=members.failures,
        )
    else:
        return group
    names = {episode.id for episode in kept}
    return Group(group.task_id, tuple(one for one in group if one.id in names or is_greedy(one)))


def _penalty(episode: Episode, members: Members) -> float:
    """GRPO-RoC's: the share of an episode's calls that failed (0.5: none made), plus that of turns with no action.

    A call is what the world answered as one: a message with calls, or any action of a world that lists them. It
    failed where the channel says so. Source: rStar2-Agent (Shang et al. 2025, arXiv 2508.20722), whose code counts
    answers of tools with an error in them, and answers that were not closed.
    """
    listed = episode.root.legal is not None
    calls = [t for t in episode.turns if t.error is None and (listed or t.action.message.tool_calls)]
    failed = sum(turn.step.channels.get(members.errors, 0.0) != 0 for turn in calls)
    return (failed / len(calls) if calls else 0.5) + malformed_share(episode)
