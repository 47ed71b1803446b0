"""What a training run will do and need, said before it is begun: stages, processes, memory of each device.

Memory is what is held at the worst moment (`memory`). Time is that of the arithmetic of learning, and of sampling
where this process samples, with every context full, at the rate that a matrix product is measured to reach. How
long worlds take is not known.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from envgym_agents.learn.cluster.placement import LEARNER, SAMPLER, WORKER, Node, Placed
from envgym_agents.learn.config import Reinforce, TrainConfig
from envgym_agents.learn.facts import Facts
from envgym_agents.learn.memory import (
    FLOAT,
    Memory,
    critics_of,
    frozen_of,
    memory_of,
    sampler_of,
    saved,
    together,
    vllm_of,
)
from envgym_agents.learn.staleness import staleness_of, told_of
from envgym_agents.learn.work import Work, work_of
from envgym_agents.model import check_device

__all__ = ["Device", "Plan", "plan_of"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device: who is there, what they hold together, what there is (bytes; None: nobody here knows)."""

    name: str
    holds: str
    memory: Memory
    there: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run, in order, and on what.

    minutes: the most that warm start and RL may take by the configuration, None where it sets no such bound.
    """

    stages: tuple[str, ...]
    devices: tuple[Device, ...]
    episodes: int
    tokens: int
    work: Work
    rate: float | None
    minutes: tuple[float | None, float | None] = (None, None)

    def check(self) -> None:
        """Raise ValueError when a device cannot hold its part, with the settings that would change it."""
        wrong = [_too_much(one) for one in self.devices if one.there is not None and one.memory.total > one.there]
        if wrong:
            raise ValueError("\n".join(wrong))

    def lines(self) -> list[str]:
        """To be read by a person."""
        found = [f"{number}. {stage}" for number, stage in enumerate(self.stages, 1)]
        for device in self.devices:
            found.append(f"{device.name}: {device.holds}")
            parts = [f"{name} {_mib(size)}" for name, size in asdict(device.memory).items() if size]
            there = "an unknown size" if device.there is None else _mib(device.there)
            found.append(f"  {_mib(device.memory.total)} of {there}: {', '.join(parts)}")
        found.append(
            f"RL: at most {self.episodes} episodes, and {self.tokens} tokens to learn from (assumed: every group "
            f"and continuation that may be played is, and fills its context); learning is {self.work.learning:.1e} "
            f"operations{f', sampling {self.work.sampling:.1e}' if self.work.sampling else ''}"
        )
        return [*found, *self._time()]

    def _time(self) -> list[str]:
        """How long it takes, as far as it can be told, and what ends it sooner."""
        warm, reinforce = self.minutes
        ends = (("the warm start", warm, "warm_start.minutes"), ("RL", reinforce, "reinforce.minutes"))
        until = [
            f"  {what} ends after {most:g} minutes ({field}), however far it is then"
            for what, most, field in ends if most is not None
        ]  # fmt: skip
        if self.rate is None:
            return ["  how long that takes is not known: the device is not here", *until]
        shares = {name: one / self.rate / 60 for name, one in asdict(self.work).items() if one}
        each = ", ".join(f"{name.replace('_', ' ')} {one:,.1f}" for name, one in shares.items())
        first = shares.pop("warm_start", 0.0)
        rest = sum(shares.values())
        taken, whole = _bounded(first, warm) + _bounded(rest, reinforce), first + rest
        cut = f", of which a bound on time lets at most {taken:,.1f} happen" if taken < whole else ""
        return [
            f"  about {whole:,.1f} minutes of arithmetic at {self.rate / 1e9:,.1f} GFLOP/s, which a "
            f"matrix product reaches here now ({each}){cut}; what worlds take, and who samples elsewhere, comes on "
            "top",
            *until,
        ]


def _bounded(minutes: float, most: float | None) -> float:
    return minutes if most is None else min(minutes, most)


def plan_of(
    config: TrainConfig, facts: Facts, *, there: int | None = None, rate: float | None = None,
    placed: Sequence[Placed] = (),
) -> Plan:  # fmt: skip
    """The plan of a configuration. there: bytes of a device's memory; None: what is free here.

    placed: what is played and sampled on a cluster, and not here. rate: floating-point operations a second; None:
    as measured. How many there are: `work.work_of`. Of a device that is not here, memory and rate are not known.
    Raises ValueError for a device that torch does not know.
    """
    here, apart = _is_here(config.device), staleness_of(config.reinforce) > 0
    devices = _devices(config, facts, there, placed) if placed else _devices_here(config, facts, there, apart=apart)
    playing = config.reinforce.loop.past.kind != "alone"
    groups = int(config.reinforce.tasks * config.reinforce.oversample) if playing else config.reinforce.tasks
    played, learned = _members(config.reinforce)
    episodes = config.reinforce.steps * groups * played
    tokens = config.reinforce.steps * groups * learned * config.model.context
    sampled = episodes * config.model.context if playing else 0
    work = work_of(config, facts, tokens=tokens, played=sampled, frozen=frozen_of(facts, config))
    if rate is None and here:
        rate = _rate(config.device, config.learner.precision)
    most = (config.warm_start.minutes if work.warm_start else None, config.reinforce.minutes)
    return Plan(_stages(config), devices, episodes, tokens, work, rate, most)


def _devices_here(config: TrainConfig, facts: Facts, there: int | None, *, apart: bool) -> tuple[Device, ...]:
    """Where all is in this process, or on this host. apart: the sampler has weights of its own."""
    processes = config.learner.processes
    learner = memory_of(facts, config, processes=processes, frozen=frozen_of(facts, config))
    sampler, critics = sampler_of(facts, config), critics_of(facts, config)
    beside = _critics_named(config)
    copy = Memory(weights=FLOAT * facts.parameters if apart else 0)
    kind = torch.device(config.device).type
    free, total = _free(config.device) if there is None else (there, there)
    if kind == "cpu":
        shared = Memory() if processes > 1 or apart else Memory(weights=-FLOAT * facts.parameters)
        held = [sampler, critics, *[learner] * processes, shared, *([copy, saved(facts)] if processes > 1 else [])]
        held.append(vllm_of(facts, config, None))
        who = f"the worlds, {_sampler_named(config)}{beside} and {processes} learner process(es){_whole(config)}"
        return (Device("this host's memory", who, together(held), free),)
    first = together(
        [sampler, vllm_of(facts, config, total), learner, critics, copy if processes > 1 else Memory()]
    )
    rest = [Device(f"{kind}:{rank}", f"learner process {rank}", learner, free) for rank in range(1, processes)]
    if processes > 1:
        rest.append(Device("this host's memory", f"{processes} learner processes{_whole(config)}", saved(facts),
                           _free_here() if there is None else there))  # fmt: skip
    return (Device(f"{kind}:0", f"{_sampler_named(config)}{beside} and learner process 0", first, free), *rest)


def _sampler_named(config: TrainConfig) -> str:
    return "vLLM in a process of its own" if config.sampler.kind == "vllm" else "the sampler"


def _whole(config: TrainConfig) -> str:
    """What is whole in a divided learner, and when."""
    if config.learner_processes == 1:
        return ""
    begins = "; with adapters each reads the whole model as it begins" if config.model.lora_rank else ""
    return f" (whole: weights and moments, in the first of them, while it saves{begins})"


def _devices(config: TrainConfig, facts: Facts, there: int | None, placed: Sequence[Placed]) -> tuple[Device, ...]:
    """Where something is on a cluster: this host with what stays, and every node that samples or learns on CPUs.

    Of a cluster that is started here, the one node is this host. Ray counts the GPUs of its nodes and does not know
    their memory: what each has to hold is told.
    """
    cluster, kind = config.cluster, torch.device(config.device).type
    learner = memory_of(facts, config, processes=config.learner_processes, frozen=frozen_of(facts, config))
    whole = Memory(weights=FLOAT * facts.parameters)  # what is sent, as Ray's store has it
    sampler = sampler_of(facts, config, among=cluster.samplers or cluster.workers or 1)
    if not cluster.gpus:
        sampler = together([sampler, vllm_of(facts, config, None)])
    free = _free(config.device)[0] if there is None else there
    own, who = _staying(config, kind, learner=learner, sampler=sampler, whole=whole)
    own.append(critics_of(facts, config))
    devices = []
    for node in {one.node.id: one.node for one in placed}.values():
        there_are = [one.need for one in placed if one.node.id == node.id]
        names = ", ".join(need.name for need in there_are)
        learners = 0 if cluster.learner_gpus else sum(need.kind == LEARNER for need in there_are)
        samplers = 0 if cluster.gpus else _samplers(placed, node)
        held = together([whole, *[sampler] * samplers, *[learner] * learners])
        if not node.id and kind == "cpu":
            own, who = [*own, held], f"{who}; {names}"
        elif learners or samplers:
            devices.append(Device(f"node {node.address}", names, held, node.memory))
        kinds = [(LEARNER, learner, cluster.learner_gpus), (_sampling(placed), sampler, cluster.gpus)]
        for which, memory, gpus in kinds:
            count = sum(need.kind == which for need in there_are)
            if gpus and count:
                each = f"{count} {which}(s), each with this much on its {gpus:g} GPU"
                devices.append(Device(f"GPUs of node {node.address}", each, memory, None))
    return (Device("this host's memory" if kind == "cpu" else f"{kind}:0", who, together(own), free), *devices)


def _staying(
    config: TrainConfig, kind: str, *, learner: Memory, sampler: Memory, whole: Memory
) -> tuple[list[Memory], str]:
    """What this host holds beside a cluster, and who that is. whole: all weights, such as a far learner sends."""
    cluster, processes = config.cluster, config.learner.processes
    held, who = [], ["weights to be sent"]
    if not cluster.workers:
        held, who = [sampler, *([whole] if staleness_of(config.reinforce) else [])], ["the worlds, the sampler"]
    if cluster.learners:
        return [*held, whole, whole], ", ".join([*who, "a copy of the weights"]) + _critics_named(config)
    held += [learner] * (processes if kind == "cpu" else 1) + [whole] * (2 if processes > 1 else 1)
    return held, ", ".join([f"{processes} learner process(es){_critics_named(config)}", *who])


def _samplers(placed: Sequence[Placed], node: Node) -> int:
    """How many sample on a node: samplers of their own, or else every worker."""
    return sum(one.node.id == node.id and one.need.kind == _sampling(placed) for one in placed)


def _sampling(placed: Sequence[Placed]) -> str:
    """Which kind of process samples."""
    return SAMPLER if any(one.need.kind == SAMPLER for one in placed) else WORKER


def _critics_named(config: TrainConfig) -> str:
    return ", the critics, whole" if config.reinforce.critic.kind != "none" else ""


def _stages(config: TrainConfig) -> tuple[str, ...]:
    warm, reinforce = config.warm_start, config.reinforce
    size = config.learner_processes
    by = f"over {size} processes (FSDP2)" if size > 1 else "in this process"
    if config.cluster.learners:
        by = f"over {size} process(es) that Ray places (FSDP2)"
    if config.learner.precision != "float32":
        by += f", {config.learner.precision} products"
    found = []
    if warm.episodes_per_task:
        found.append(f"expert {config.expert!r} plays {warm.episodes_per_task} episode(s) of each training task")
        if warm.max_updates:
            found.append(f"warm start: at most {warm.max_updates} updates of {warm.rows} rows, learner {by}")
    players = ", ".join((*config.evaluate.baselines, "student"))
    found.append(f"evaluation on split {config.evaluate.split!r} of {players}")
    found.append(
        f"RL: {reinforce.steps} steps of {_groups(config)}, credit {reinforce.credit!r}, loss "
        f"{reinforce.loss.kind!r}{_beside(config)}; {_where(config)}, learner {by}; {told_of(reinforce)}"
    )
    return (*found, "evaluation again, and the report")


def _members(reinforce: Reinforce) -> tuple[int, int]:
    """Of one group at most: episodes that are played, and those that are learned from, continuations among both."""
    members, forks = reinforce.members, reinforce.members.forks
    if members.kind == "plain" or reinforce.loop.past.kind == "alone":
        return (reinforce.group * (1 + forks.points * forks.times),) * 2
    most = members.played if members.kind == "resample-on-correct" else members.per_round * members.rounds
    return most, reinforce.group


def _groups(config: TrainConfig) -> str:
    """Of which episodes a step learns."""
    reinforce, past = config.reinforce, config.reinforce.loop.past
    if past.kind == "alone":
        return f"{reinforce.tasks} stored groups of {past.path!r}, nothing played"
    found = f"{reinforce.tasks} groups of {reinforce.group}"
    if past.kind == "beside":
        when = f" in the first {past.steps}" if past.steps else ""
        found += f" and {past.groups} stored ones of {past.path!r}{when}"
    if reinforce.loop.curriculum.kind != "none":
        found += f", tasks drawn by {reinforce.loop.curriculum.kind}"
    return found


def _beside(config: TrainConfig) -> str:
    """Which other models learning asks."""
    reinforce, found = config.reinforce, ""
    if reinforce.loss.kind == "distill":
        found += f", teacher {reinforce.loss.distill.teacher!r}"
    if reinforce.critic.kind != "none":
        kinds = [one.kind for one in (reinforce.critic, reinforce.critic.second) if one is not None]
        found += f", critic {' and '.join(map(repr, kinds))} (whole, in this process)"
    return found


def _where(config: TrainConfig) -> str:
    cluster = config.cluster
    if not cluster.workers:
        return "sampler in this process"
    beside = f"{cluster.samplers} sampler(s) of their own" if cluster.samplers else "each with its sampler"
    return f"played by {cluster.workers} worker(s) that Ray places, {beside}"


def _is_here(device: str) -> bool:
    """Whether torch has it on this host. Raises ValueError for a name that it does not know."""
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device = {device!r}: {str(error).splitlines()[0]}") from None
    try:
        check_device(device)
    except ValueError:
        return False
    return True


def _free(device: str) -> tuple[int | None, int | None]:
    """Bytes of a device that are free, and that it has; None where it is not here."""
    if torch.device(device).type == "cpu":
        return _free_here(), None
    return torch.cuda.mem_get_info() if _is_here(device) else (None, None)


def _rate(device: str, precision: str) -> float:
    """Operations a second of the best of a few matrix products, in the learner's precision."""
    size, best = 768, 0.0
    one = torch.ones(size, size, device=device, dtype=getattr(torch, precision))
    for _ in range(5):
        begun = time.perf_counter()
        float((one @ one)[0, 0])
        best = max(best, 2.0 * size**3 / (time.perf_counter() - begun))
    return best


def _free_here() -> int:
    """Bytes that this host can still give, caches of files included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError(
        "this host does not say how much memory is free (/proc/meminfo): --plan cannot compare with it"
    )


def _too_much(device: Device) -> str:
    assert device.there is not None
    largest = max(asdict(device.memory).items(), key=lambda one: one[1])[0]
    change = {
        "weights": "a smaller model; learner.processes divides the learner's share",
        "gradients": "model.lora_rank, or more learner.processes on more devices",
        "optimizer": "model.lora_rank, or more learner.processes on more devices",
        "activations": "learner.checkpoint = true, or a smaller max_tokens and model.context (the larger counts)",
        "logits": "a smaller learner.logits_mib",
        "kv_cache": "a smaller concurrency or model.context; of vLLM sampler.cache_gib, on a GPU gpu_share",
    }[largest]
    return (
        f"{device.name} has {_mib(device.there)} free, and the run holds about {_mib(device.memory.total)} there; "
        f"most of it is {largest}, {_mib(getattr(device.memory, largest))}: {change}"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
