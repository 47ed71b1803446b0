"""An actor on the node that it was placed on, and what is raised where it answers with an error, or not at all."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envgym.errors import HostLost, InfrastructureFailure
from envgym_agents.learn.cluster.placement import Placed

__all__ = ["Member", "begun", "ended", "raised"]


@dataclass(slots=True, eq=False)
class Member:
    """An actor, what it was placed as, where, and how many episodes it has now."""

    placed: Placed
    actor: Any
    busy: int = 0


def begun(ray: Any, made: type[Any], placed: Placed, *values: Any, at_once: int, where: Any) -> Member:
    """An actor of class `made`, never restarted nor asked again by Ray. at_once: calls; where: Ray's strategy."""
    need = placed.need
    actor = ray.remote(made).options(
        num_cpus=need.cpus, num_gpus=need.gpus, memory=need.memory or None, max_restarts=0, max_task_retries=0,
        max_concurrency=at_once, scheduling_strategy=where,
    )  # fmt: skip
    return Member(placed, actor.remote(*values))


def ended(ray: Any, member: Member) -> None:
    """It is gone after this, if it was not before."""
    with suppress(ray.exceptions.RayError, ValueError):
        ray.kill(member.actor)


def raised(ray: Any, error: Exception) -> Exception:
    """What an actor raised itself; HostLost where it is gone, or its host, or it did not answer in time."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, Exception) else InfrastructureFailure(str(error))
    return HostLost(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
