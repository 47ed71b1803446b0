"""What one step of the loop learns from: groups of episodes that teach, with their credit as rows.

Groups whose members all did the same carry no signal; new tasks are drawn in their place. Every episode played is
kept for the metrics, also those that do not train.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from envgym.credit import Ledger, Running, Scheme, centre, checked_credit, means_of, outcome
from envgym.credit.reference import is_greedy
from envgym.credit.sources import Estimate, Truncation
from envgym.env import THE_AGENT
from envgym.episode import Episode, Group
from envgym.jobs import Memory
from envgym.registry import find, make_scheme
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.curriculum import EdgeOrder
from envgym_agents.learn.evaluate import succeeded
from envgym_agents.learn.members import Players, chosen, played_groups, sampled_only, whole_paths
from envgym_agents.learn.pack import Row, rows_of
from envgym_agents.learn.play import TaskOrder

__all__ = [
    "Collected", "collect", "comparable", "credited", "metrics", "of_what_was_sampled", "running_of", "scheme_of",
    "teaches", "truncation_of",
]  # fmt: skip


@dataclass(slots=True)
class Collected:
    """What one step played: the groups that teach, the others, every episode, and how many groups were played.

    whole: all groups with every member that was played, also those that were not chosen to be learned from.
    """

    groups: list[Group] = field(default_factory=list)
    others: list[Group] = field(default_factory=list)
    whole: list[Group] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    played: int = 0

    @property
    def sampled(self) -> list[Group]:
        """All groups with every member that the policy sampled; greedy ones are none."""
        return [sampled_only(group) for group in self.whole]

    def names(self) -> dict[str, Any]:
        """All of it but the groups that teach, as JSON: episodes by their names."""
        others, whole = ([[one.id for one in group] for group in groups] for groups in (self.others, self.whole))
        return {"others": others, "whole": whole, "played": self.played}

    @classmethod
    def named(cls, stored: Mapping[str, Any], memory: Memory) -> "Collected":
        """What `names` said. Raises KeyError for an episode that is not in the memory."""

        def groups(names: Sequence[Sequence[str]]) -> list[Group]:
            known = [tuple(memory[name] for name in group) for group in names]
            return [Group(members[0].task_id, members) for members in known]

        others, whole = groups(stored["others"]), groups(stored["whole"])
        every = [episode for group in whole for episode in group]
        return cls(others=others, whole=whole, episodes=every, played=stored["played"])


async def collect(
    players: Players, order: TaskOrder | EdgeOrder, config: Reinforce, *, scheme: Scheme | None = None
) -> Collected:
    """Play groups until `config.tasks` of them teach, or the bound on oversampling is reached.

    scheme: that of the configuration, made with what it needs; none: it is made without. The size of each wave
    depends on what earlier waves gave, never on timing.
    """
    found, bound = Collected(), int(config.tasks * config.oversample)
    while len(found.groups) < config.tasks and found.played < bound:
        teaching = max(len(found.groups) / found.played, 0.25) if found.played else 1.0
        wave = min(ceil((config.tasks - len(found.groups)) / teaching), bound - found.played)
        numbers = range(found.played, found.played + wave)
        for number, whole in zip(
            numbers, await played_groups(players, config, order.draw(wave), numbers), strict=True
        ):
            group = chosen(whole, config, np.random.default_rng([players.seed, 9, players.step, number]))
            (found.groups if teaches(group, config, scheme) else found.others).append(group)
            found.whole.append(whole)
            found.episodes += whole
        found.played += wave
    return found


def teaches(group: Group, config: Reinforce, scheme: Scheme | None = None) -> bool:
    """Whether its outcomes differ (a bounded episode's as the scheme counts it), or what `teaches` asks for.

    A group that cannot be compared (see `comparable`) teaches nothing.
    """
    known = outcome(truncation=truncation_of(config)).of(ledger := Ledger.of([group]))
    if not comparable(group, config):
        return False
    if config.teaches == "all":
        return bool(sampled_only(group).scored)
    if config.teaches == "credit":
        return any(credit.any() for credit in (scheme or scheme_of(config))([group]))
    return bool(np.nan_to_num(centre(known, ledger.group_G)).any())


def comparable(group: Group, config: Reinforce) -> bool:
    """Whether the greedy member's outcome is known, where the scheme compares with one and must have it.

    It is not where its world failed, where a bound cut it off and that counts as not known, or where it became too
    old for its group. True for any other scheme.
    """
    if not find("schemes", config.credit).greedy or config.credit_options.get("missing", "raise") != "raise":
        return True
    known = outcome(truncation=truncation_of(config)).of(ledger := Ledger.of([group]))
    marked = np.array([is_greedy(episode) for episode, _ in ledger.parts], np.bool_)
    return bool((marked & ~np.isnan(known)).any())


def truncation_of(config: Reinforce) -> Truncation:
    """What the scheme counts a truncated episode's outcome as; where it bootstraps, what was earned until then."""
    option = inspect.signature(find("schemes", config.credit).make).parameters.get("truncation")
    given: Truncation | None = config.credit_options.get("truncation", None if option is None else option.default)
    return 0.0 if given is None else given


def running_of(config: Reinforce) -> Running | None:
    """The running mean that a scheme begins with, by its option: a table {by, decay, start}, or what its paper has.

    None where the scheme has no use for one, or is given a number, or "sampled": the means of what a step sampled.
    """
    spec = find("schemes", config.credit)
    given = config.credit_options.get(spec.running) if spec.running else None
    if given is None:
        return Running(by=("actor",)) if spec.running in spec.needs else None
    if not isinstance(given, Mapping):
        return None
    unknown = sorted(set(given) - {"by", "decay", "start"})
    by = given.get("by", ("actor",))
    if unknown or isinstance(by, str) or not all(isinstance(name, str) for name in by):
        raise ValueError(
            f"credit_options.{spec.running} is {given!r}; a running mean is a table of by (a list of names), decay "
            "and start"
        )
    options = {name: given[name] for name in ("decay", "start") if name in given}
    return Running(by=tuple(by), **options)


def of_what_was_sampled(config: Reinforce) -> bool:
    """Whether a scheme's baseline is the means of all that a step sampled of each task."""
    spec = find("schemes", config.credit)
    return bool(spec.running) and config.credit_options.get(spec.running) == "sampled"


def scheme_of(
    config: Reinforce, estimates: Mapping[str, Estimate] | None = None, running: Running | None = None
) -> Scheme:
    """The credit scheme that a configuration names, given what it needs.

    running: the mean that is expected now, for a scheme that has one; none: what it begins with.

    A need is met by the option of that name, or the estimate; a scheme with one need takes the only estimate there
    is, whatever its name; an option that may be left out is given where there is an estimate of its name. Raises
    ValueError for an unmet need, for a critic that the scheme has no use for, and for a name or an option there is
    not.
    """
    estimates = estimates or {}
    spec = find("schemes", config.credit)
    may_have = inspect.signature(spec.make).parameters
    given: dict[str, Any] = {name: estimate for name, estimate in estimates.items() if name in may_have}
    options = dict(config.credit_options)
    mean = running or running_of(config)
    if mean is not None or of_what_was_sampled(config):
        options[spec.running] = mean or means_of([])
    unmet = [need for need in spec.needs if need not in given and need not in options]
    if len(unmet) == 1 and len(estimates) == 1 and not given:
        given = {unmet[0]: next(iter(estimates.values()))}
        unmet = []
    if unmet:
        raise ValueError(
            f"scheme {config.credit!r} needs {', '.join(unmet)}; name a critic that estimates it: "
            f"reinforce.critic.kind is {config.critic.kind!r}"
        )
    if estimates and not given:
        raise ValueError(
            f"scheme {config.credit!r} uses no estimate, and reinforce.critic.kind is {config.critic.kind!r}: "
            "make it 'none', or choose a scheme that needs one"
        )
    return make_scheme(config.credit, **options, **given)


def credited(
    groups: Sequence[Group], scheme: Scheme, config: Reinforce,
    learned: Callable[[Episode], bool] = lambda episode: True,
) -> list[list[Row]]:  # fmt: skip
    """The rows of each group's episodes with their credit; none of a failed world's, and none of greedy members.

    learned: which of the others are learned from.
    Weights sum to 1 per episode, or to its sampled tokens with ``token_share="token"``. Groups without rows are
    left out.
    """
    credits = iter(checked_credit(groups, scheme(groups), name=f"scheme {config.credit!r}"))
    found = []
    for group in groups:
        rows: list[Row] = []
        for episode, credit in zip(group, credits, strict=False):
            if episode.failure is None and not is_greedy(episode) and learned(episode):
                left = 0 if episode.parent is None else episode.parent.token  # what a fork shares does not train
                share = 1.0 if config.token_share == "episode" else float(max(episode.sampled_tokens - left, 0))
                made = rows_of(episode, credit, history=group.path(episode), root=group.root(episode))
                rows += [row.weighted(share) for row in made]
        if rows:
            found.append(rows)
    return found


def metrics(found: Collected) -> dict[str, float]:
    """Means per scored episode of everything a step sampled, the groups that did not teach included.

    Greedy members are in none of them; what they earned has a mean of its own. Nor are forks, which are counted:
    they begin in chosen states, and say nothing of how a whole episode goes.
    """
    sampled = [episode for episode in found.episodes if not is_greedy(episode)]
    episodes = whole_paths(sampled)
    scored = [episode for episode in episodes if episode.failure is None]
    means = {
        "groups": float(found.played),
        "zero_variance": 1.0 - len(found.groups) / max(found.played, 1),
        "failures": float(len(episodes) - len(scored)),
        "episodes": float(len(scored)),
    } | _of_forks([episode for episode in sampled if episode.parent is not None])
    likeliest = [one.reward or 0.0 for one in found.episodes if is_greedy(one) and one.failure is None]
    if likeliest:
        means["greedy_reward"] = float(np.mean(likeliest))
    if not scored:
        return means
    per_episode = [_measure(episode) for episode in scored]
    names = sorted({name for values in per_episode for name in values})
    means |= _by_actor(scored)
    return means | {name: float(np.mean([values.get(name, 0.0) for values in per_episode])) for name in names}


def _of_forks(forks: Sequence[Episode]) -> dict[str, float]:
    """How many continuations were played, and what they cost; nothing where none were."""
    if not forks:
        return {}
    return {
        "forks": float(len(forks)),
        "fork_failures": float(sum(fork.failure is not None for fork in forks)),
        "fork_turns": float(sum(len(fork.turns) for fork in forks)),
        "fork_tokens": float(sum(fork.sampled_tokens for fork in forks)),
    }


def _by_actor(episodes: Sequence[Episode]) -> dict[str, float]:
    """In worlds with several: what each earned, on average over the episodes in which it acted."""
    earned: dict[str, list[float]] = {}
    for episode in episodes:
        own: dict[str, float] = {}
        for turn in episode.turns:
            own[turn.actor] = own.get(turn.actor, 0.0) + (turn.step.reward or 0.0)
        for actor, reward in own.items():
            earned.setdefault(actor, []).append(reward)
    if earned.keys() <= {THE_AGENT}:
        return {}
    return {f"reward_{actor}": float(np.mean(each)) for actor, each in earned.items()}


def _measure(episode: Episode) -> dict[str, float]:
    values = {
        "success": float(succeeded(episode)),
        "reward": episode.reward or 0.0,
        "turns": float(len(episode.turns)),
        "sampled_tokens": float(episode.sampled_tokens),
        "tokens": float(episode.sampled_tokens + sum(len(turn.prompt_ids) for turn in episode.turns)),
        "wall_s": episode.wall_s,
    }
    for turn in episode.turns:
        for name, value in turn.step.cost.items():
            values[f"cost_{name}"] = values.get(f"cost_{name}", 0.0) + value
    return values
