"""All that a run has on a cluster, begun together: who plays and samples, and the learner's processes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from envgym_agents.learn.cluster.connect import connected, living
from envgym_agents.learn.cluster.learners import PlacedCrew
from envgym_agents.learn.cluster.placement import LEARNER, place, wanted
from envgym_agents.learn.cluster.places import Places
from envgym_agents.learn.config import TrainConfig

__all__ = ["elsewhere"]


@asynccontextmanager
async def elsewhere(config: TrainConfig, *, learns: bool) -> AsyncIterator[tuple[Places | None, PlacedCrew | None]]:
    """What a configuration places: where is played, if not here, and who learns, if not here. learns: if anybody.

    Raises ValueError where the cluster cannot hold it, InfrastructureFailure where there is no cluster.
    """
    cluster = config.cluster
    needs = [need for need in wanted(cluster) if learns or need.kind != LEARNER]
    async with AsyncExitStack() as stack:
        places, crew = None, None
        if needs:
            ray = stack.enter_context(connected(cluster))
            placed = place(needs, living(ray), cluster.spread)
            learners = [one for one in placed if one.need.kind == LEARNER]
            playing = [one for one in placed if one.need.kind != LEARNER]
            if learners:
                crew = stack.enter_context(PlacedCrew(config, ray, learners))
            if playing:
                places = await stack.enter_async_context(Places(config, ray, playing))
        yield places, crew
