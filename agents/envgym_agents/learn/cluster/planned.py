"""What a run would place where, before it is begun: the same function of the same nodes as the run's own."""

from envgym_agents.learn.cluster.connect import connected, here, living
from envgym_agents.learn.cluster.placement import Placed, place, placement_lines, wanted
from envgym_agents.learn.config import TrainConfig

__all__ = ["placement_of"]


def placement_of(config: TrainConfig) -> tuple[tuple[Placed, ...], list[str]]:
    """What is placed, and lines that say so. A cluster with an address is asked; none is started.

    Raises ValueError, one line, where the cluster cannot hold it.
    """
    cluster = config.cluster
    if cluster.address:
        with connected(cluster) as ray:
            nodes, where = living(ray), f"joined at {cluster.address}"
    else:
        nodes, where = here(cluster), "started on this host for the run"
    placed = place(wanted(cluster), nodes, cluster.spread)
    return placed, placement_lines(placed, nodes, here=config.learner.processes, where=where)
