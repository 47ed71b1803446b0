"""Synthetic episodes and groups, as small as they can be."""

from collections.abc import Callable

import numpy as np
import pytest

from envgym.env import Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.policy import VersionRun


def make_group(
    name: str, *, task: str = "t", members: int = 1, tokens: int = 4, version: int = 0, reward: float = 0.0
) -> Group:
    """Members of one turn with one prompt id and tokens - 1 sampled ids."""
    sampled = tokens - 1
    made = []
    for index in range(members):
        turn = Turn(
            "agent", (), Step(reward=reward), np.zeros(1, np.int32), np.zeros(sampled, np.int32),
            np.zeros(sampled, np.float32), (VersionRun(0, version),) if sampled else (),
        )  # fmt: skip
        made.append(Episode(f"{name}/{index}", task, Step(), (turn,), 0, stop=StopReason.SUBMITTED))
    return Group(task, tuple(made))


@pytest.fixture(scope="session")
def group_of() -> Callable[..., Group]:
    return make_group
