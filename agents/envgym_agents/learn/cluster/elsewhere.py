"""All that a run has on a cluster, begun together: who plays and samples, and the learner's processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from envgym_agents.learn.cluster.connect import connected, living
from envgym_agents.learn.cluster.learners import PlacedCrew
from envgym_agents.learn.cluster.placement import LEARNER, Need, Placed, place, wanted
from envgym_agents.learn.cluster.places import Places
from envgym_agents.learn.config import TrainConfig

__all__ = ["elsewhere"]

_LOOK_S = 0.5
"""Between two looks at what a cluster has free."""


@asynccontextmanager
async def elsewhere(
    config: TrainConfig, *, learns: bool, waits: bool = False
) -> AsyncIterator[tuple[Places | None, PlacedCrew | None]]:
    """What a configuration places: where is played, if not here, and who learns, if not here. learns: if anybody.

    waits: for room, `cluster.start_s` at the most: a run that goes on may still be giving back what it had.
    Raises ValueError where the cluster cannot hold it, InfrastructureFailure where there is no cluster.
    """
    cluster = config.cluster
    needs = [need for need in wanted(cluster) if learns or need.kind != LEARNER]
    async with AsyncExitStack() as stack:
        places, crew = None, None
        if needs:
            ray = stack.enter_context(connected(cluster))
            placed = await _room(ray, config, needs, within_s=cluster.start_s if waits else 0.0)
            learners = [one for one in placed if one.need.kind == LEARNER]
            playing = [one for one in placed if one.need.kind != LEARNER]
            if learners:
                crew = stack.enter_context(PlacedCrew(config, ray, learners))
            if playing:
                places = await stack.enter_async_context(Places(config, ray, playing))
        yield places, crew


async def _room(ray: Any, config: TrainConfig, needs: Sequence[Need], *, within_s: float) -> tuple[Placed, ...]:
    """Where everything is placed. Raises ValueError where there is no room within the time."""
    until = time.monotonic() + within_s
    while True:
        try:
            return place(needs, living(ray), config.cluster.spread)
        except ValueError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_LOOK_S)
