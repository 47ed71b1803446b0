"""Whether playing and learning overlap, and how old what trains may then be: what a configuration says of it.

Overlapped, groups come one by one, each when it is ready. What needs all groups of a step before any of them is
credited, or before the next ones are chosen, takes turns.
"""

from collections.abc import Mapping

import numpy as np

from envgym.buffer import Taken, oldest_version
from envgym.credit.reference import is_greedy
from envgym.registry import find
from envgym_agents.learn.collect import of_what_was_sampled, running_of
from envgym_agents.learn.config import Reinforce

__all__ = ["ages_of", "staleness_of", "told_of", "turns_for"]


def staleness_of(config: Reinforce) -> int:
    """The bound that a configuration asks for: its own, or 1 where nothing in it needs whole steps, else 0.

    Raises ValueError where it asks for more than 0 and something needs whole steps; for fresh members of groups
    that have others than plain ones; and for groups to train again under a baseline that has learned from them.
    """
    wanting, asked = turns_for(config), config.loop.staleness
    if asked and wanting:
        raise ValueError(
            f"reinforce.loop.staleness is {asked}, and {' and '.join(wanting)} is of whole steps, one after the "
            "other: leave staleness out, or make it 0"
        )
    found = (0 if wanting else 1) if asked is None else asked
    if found and config.loop.spoiled == "refill" and (others := _not_plain(config)):
        raise ValueError(
            f"reinforce.loop.spoiled 'refill' asks for fresh members of a group in the place of lost ones, and "
            f"with {others} they are not alike: make it 'drop_member', 'drop_group' or 'mask'"
        )
    if found and config.loop.replay and (config.critic.kind != "none" or running_of(config) is not None):
        raise ValueError(
            f"reinforce.loop.replay {config.loop.replay:g} gives groups credit again, and what they are compared "
            "with (a critic, a running mean) has learned from them since: make it 0"
        )
    return found


def turns_for(config: Reinforce) -> list[str]:
    """What of a configuration needs whole steps, so that playing and learning take turns; [] where none does.

    Of a baseline that other groups give, a group which was cut down says too little, and which groups teach by
    their credit is not known before they are taken.
    """
    compares = running_of(config) is not None or of_what_was_sampled(config)
    cut, learns = config.members.kind != "plain", config.critic.kind != "none"
    whole = [
        (config.critic.fresh > 0, f"critic.fresh {config.critic.fresh}"),
        (config.critic.rewards.scale != "none", f"critic.rewards.scale {config.critic.rewards.scale!r}"),
        (config.loop.curriculum.kind != "none", f"curriculum.kind {config.loop.curriculum.kind!r}"),
        (config.loop.past.kind == "alone", "past.kind 'alone'"),
        (cut and compares, f"members.kind {config.members.kind!r} with a baseline of all that is sampled"),
        (config.teaches == "credit" and (compares or learns), "teaches 'credit' with a baseline that is learned"),
    ]
    return [what for wants, what in whole if wants]


def told_of(config: Reinforce) -> str:
    """Whether playing and learning overlap, and why they do not."""
    if bound := staleness_of(config):
        return f"playing and learning overlap, tokens at most {bound} version(s) old"
    if config.loop.staleness == 0:
        return "playing and learning take turns (reinforce.loop.staleness is 0)"
    return f"playing and learning take turns, for {' and '.join(turns_for(config))} is of whole steps"


def ages_of(taken: Taken) -> Mapping[str, float]:
    """How many versions behind the oldest token of each episode is that trains: the most, and the mean."""
    ages = [
        float(taken.version - oldest)
        for group, mask in zip(taken.groups, taken.masked, strict=True)
        for one in group
        if one.id not in mask and one.failure is None and not is_greedy(one)
        and (oldest := oldest_version(one)) is not None
    ]  # fmt: skip
    return {"staleness": float(np.mean(ages)), "staleness_max": max(ages)} if ages else {}


def _not_plain(config: Reinforce) -> str:
    """What makes members of a group differ; "" where all are sampled alike."""
    if config.members.kind != "plain":
        return f"members.kind {config.members.kind!r}"
    return f"credit {config.credit!r}, with its greedy members" if find("schemes", config.credit).greedy else ""
