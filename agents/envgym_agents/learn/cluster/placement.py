"""What is placed on which node: a pure function of what is wanted and what is free.

Ray could choose the nodes itself; then nobody could say beforehand what is co-located, or why it does not fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from envgym_agents.learn.config_cluster import Cluster

__all__ = ["LEARNER", "SAMPLER", "WORKER", "Need", "Node", "Placed", "place", "placement_lines", "wanted"]

WORKER, SAMPLER, LEARNER = "worker", "sampler", "learner"


@dataclass(frozen=True, slots=True)
class Node:
    """A host, as Ray counts it: what is free there. memory: bytes."""

    id: str
    address: str
    cpus: float
    gpus: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """One process to be placed, and what it takes. kind: `WORKER`, `SAMPLER` or `LEARNER`. memory: bytes."""

    kind: str
    number: int
    cpus: float
    gpus: float = 0.0
    memory: int = 0

    @property
    def name(self) -> str:
        """As a person reads it."""
        return f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A need and the node that it goes to."""

    need: Need
    node: Node

    @property
    def name(self) -> str:
        """As a person reads it."""
        return f"{self.need.name} on {self.node.address}"


def wanted(config: Cluster) -> tuple[Need, ...]:
    """All that a configuration places: learners and samplers of their own first, which take most."""
    beside, memory = 0.0 if config.samplers else config.gpus, config.learner_memory_mib * 2**20
    return (
        *(Need(LEARNER, n, config.learner_cpus, config.learner_gpus, memory) for n in range(config.learners)),
        *(Need(SAMPLER, n, config.sampler_cpus, config.gpus) for n in range(config.samplers)),
        *(Need(WORKER, n, config.cpus, beside) for n in range(config.workers)),
    )


def place(
    needs: Sequence[Need], nodes: Sequence[Node], how: Literal["spread", "pack"], *,
    taken: Mapping[str, int] | None = None,
) -> tuple[Placed, ...]:  # fmt: skip
    """A node for every need, one after the other, in their order.

    spread: the node that has the fewest of that kind, then the one with most free. pack: the first that has room.
    taken: by node, how many of the kind are there already. Raises ValueError, one line, for the first that has no
    room.
    """
    free = {node.id: node for node in nodes}
    count = {(kind, name): number for name, number in (taken or {}).items() for kind in {n.kind for n in needs}}
    found: list[Placed] = []
    for need in needs:
        fitting = [node for node in free.values() if _fits(need, node)]
        if not fitting:
            raise ValueError(_no_room(need, needs, found, nodes))
        if how == "spread":
            chosen = min(fitting, key=lambda node: (count.get((need.kind, node.id), 0), -node.gpus, -node.cpus))
        else:
            chosen = fitting[0]
        count[need.kind, chosen.id] = count.get((need.kind, chosen.id), 0) + 1
        left = (chosen.cpus - need.cpus, chosen.gpus - need.gpus, chosen.memory - need.memory)
        free[chosen.id] = replace(chosen, cpus=left[0], gpus=left[1], memory=left[2])
        found.append(Placed(need, next(node for node in nodes if node.id == chosen.id)))
    return tuple(found)


_ROUNDING = 1e-6


def _fits(need: Need, node: Node) -> bool:
    memory = not need.memory or need.memory <= node.memory
    return memory and need.cpus <= node.cpus + _ROUNDING and need.gpus <= node.gpus + _ROUNDING


def _no_room(need: Need, needs: Sequence[Need], found: Sequence[Placed], nodes: Sequence[Node]) -> str:
    """The refusal: what has no place, and what there is."""
    same = [one for one in needs if one.kind == need.kind]
    there = sum(one.need.kind == need.kind for one in found)
    takes = f"{need.cpus:g} CPU" + (f" and {need.gpus:g} GPU" if need.gpus else "")
    takes += f" and {need.memory >> 20} MiB" if need.memory else ""
    each = (f"{one.address} {one.cpus:g} CPU, {one.gpus:g} GPU, {one.memory >> 20} MiB" for one in nodes)
    free = "; ".join(each) or "no node"
    return (
        f"the cluster has room for {there} of {len(same)} {need.kind}(s) of {takes} each; free are: {free}. Lower "
        f"cluster.{need.kind}s or what each takes, or add hosts"
    )


def placement_lines(placed: Sequence[Placed], nodes: Sequence[Node], *, here: int, where: str) -> list[str]:
    """To be read by a person: every node, what it holds together, what stays here.

    here: how many processes the learner has where none of them is placed. where: which cluster.
    """
    beside = not any(one.need.kind == SAMPLER for one in placed)
    far, plays = (any(one.need.kind == kind for one in placed) for kind in (LEARNER, WORKER))
    found = [f"Ray cluster, {where}: {len(nodes)} node(s)"]
    for node in nodes:
        own = [one.need for one in placed if one.node.id == node.id]
        cpus, gpus = sum(need.cpus for need in own), sum(need.gpus for need in own)
        takes = f"{cpus:g} of {node.cpus:g} free CPU" + (f", {gpus:g} of {node.gpus:g} GPU" if node.gpus else "")
        names = [need.name + (" with its sampler" if beside and need.kind == WORKER else "") for need in own]
        found.append(f"  {node.address}: {', '.join(names) or 'nothing of this run'}; {takes}")
    who = "the learner" if here == 1 else f"the learner's {here} processes (or torchrun's)"
    kept = ["a copy of the weights" if far else who, *([] if plays else ["worlds and sampler"])]
    found.append(f"  this host, outside Ray: {', '.join(kept)}, the store of all episodes, critics")
    return found
