"""The settings of where episodes are played and sampled, and where is learned, where that is not this process.

A part of `envgym_agents.learn.config`, which reads and checks it.
"""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from envgym_agents.learn.config_loss import Frozen, refuse_unused

__all__ = ["Cluster"]


class Cluster(Frozen):
    """What Ray places on hosts: rollout workers, samplers, the learner's processes. All else stays here."""

    workers: int = Field(default=0, ge=0, le=4096)
    """that play, each with environments and sandboxes of its own; 0: this process plays, without Ray"""
    samplers: int = Field(default=0, ge=0, le=4096)
    """of their own, shared by all workers; 0: each worker has one in its process"""
    learners: int = Field(default=0, ge=0, le=1024)
    """processes that the learner is divided over, as learner.processes here; 0: `envgym train` learns"""
    address: str = ""
    """of a cluster that is there, "auto" or host:port; none: one is started on this host, and ends with the run"""
    cpus: float = Field(default=1.0, gt=0)
    """of a worker"""
    sampler_cpus: float = Field(default=1.0, gt=0)
    """of a sampler of its own"""
    learner_cpus: float = Field(default=1.0, gt=0)
    """of a learner's process"""
    learner_gpus: int = Field(default=0, ge=0, le=1)
    """of a learner's process; 0: it learns on CPUs"""
    learner_memory_mib: int = Field(default=0, ge=0)
    """of a learner's process, that Ray keeps for it; 0: it keeps none"""
    gpus: float = Field(default=0.0, ge=0)
    """of whoever samples; 0: it samples on CPUs"""
    spread: Literal["spread", "pack"] = "spread"
    """over all hosts evenly, or on as few as will do"""
    restarts: int = Field(default=8, ge=0)
    """most workers and samplers that are begun in the place of lost ones"""
    start_s: float = Field(default=300.0, gt=0)
    """seconds in which each must be there, and take new weights"""
    host_cpus: int | None = Field(default=None, ge=1)
    """of a cluster that is started here, the processors that it counts; none: as many as there are"""
    store_mib: int = Field(default=256, ge=80)
    """of a cluster that is started here, shared memory; the weights must have room in it twice"""

    @property
    def used(self) -> bool:
        """Whether anything is placed."""
        return self.workers > 0 or self.learners > 0

    @field_validator("address")
    @classmethod
    def _is_one(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if address in ("", "auto") or (host and "/" not in host and port.isdigit() and 0 < int(port) < 2**16):
            return address
        raise ValueError('an address is "auto" or host:port, of the cluster\'s head (6379 where Ray chooses)')

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if not self.used:
            names = tuple(name for name in type(self).model_fields if name not in ("workers", "samplers"))
            refuse_unused(self, names, "cluster.workers and cluster.learners are 0")
        if not self.workers:
            refuse_unused(self, ("samplers", "cpus", "gpus", "restarts"), "cluster.workers is 0")
        if not self.samplers:
            refuse_unused(self, ("sampler_cpus",), "cluster.samplers is 0")
        if not self.learners:
            refuse_unused(self, ("learner_cpus", "learner_gpus", "learner_memory_mib"), "cluster.learners is 0")
        if self.address:
            refuse_unused(self, ("host_cpus", "store_mib"), "a cluster is joined (address)")
        return self
