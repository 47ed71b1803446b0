"""The rows that a step learns from are made of credit alone: what a scheme gave is looked at before."""

import numpy as np
import pytest

pytest.importorskip("torch")

from envgym_agents.learn.collect import Collected, credited, metrics
from envgym_agents.learn.config import Reinforce

from envgym.credit.schemes.relative import dr_grpo
from envgym.episode import Group
from envgym.testing.credit_groups import made_episode, made_turn

GROUPS = [Group("t", (made_episode("a", [made_turn(1.0)]), made_episode("b", [made_turn(0.0)])))]


def test_a_step_learns_from_no_credit_that_is_no_number() -> None:
    def endless(groups):
        return [np.full(one.sampled_tokens, np.nan, np.float32) for group in groups for one in group]

    def short(groups):
        return [np.zeros(one.sampled_tokens - 1, np.float32) for group in groups for one in group]

    config = Reinforce()
    assert len(credited(GROUPS, dr_grpo(), config)[0]) == 2
    for scheme, said in ((endless, "gave nan for episode a"), (short, r"gave float32\[1\] for episode a")):
        with pytest.raises(ValueError, match=f"scheme '{config.credit}' {said}"):
            credited(GROUPS, scheme, config)
    with pytest.raises(TypeError, match="gave None"):
        credited(GROUPS, lambda groups: None, config)


def test_what_an_actor_earned_is_told_also_where_nobody_else_came_to_act() -> None:
    """As where every proposal is refused: one that names no actors has one reward alone."""
    alone = made_turn(1.0)
    proposer, solver = made_turn(-1.0, actor="proposer"), made_turn(0.5, actor="solver-1")

    def told(*turns) -> dict[str, float]:
        found = metrics(Collected(episodes=[made_episode("e", list(turns))]))
        return {name: value for name, value in found.items() if name.startswith("reward_")}

    assert told(alone) == {}
    assert told(proposer) == {"reward_proposer": -1.0}
    assert told(proposer, solver) == {"reward_proposer": -1.0, "reward_solver-1": 0.5}
