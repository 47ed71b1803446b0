"""What a training run will do and need, said before it is begun: stages, processes, memory of each device.

Memory is what is held at the worst moment, by formulas that are functions of the model's shape and the
configuration; it does not know of the allocator's holes or the libraries' own. Time is a bound: of the learner's
arithmetic, at the rate that a matrix product is measured to reach. How long worlds take is not known.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from envgym_agents.learn.cluster.placement import LEARNER, SAMPLER, WORKER, Node, Placed
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.head import positions_at_once
from envgym_agents.learn.overlap import staleness_of
from envgym_agents.model import new_model, parameters
from envgym_agents.tokenizer import load_tokenizer

__all__ = ["Device", "Facts", "Memory", "Plan", "critics_of", "facts_of", "memory_of", "plan_of"]

_FLOAT = 4
"""Bytes of a number: weights that train are float32 (`student.begin_model`)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a model's shape, all that memory and time depend on."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_width: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes held at once, by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    kv_cache: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Device:
    """One device: who is there, what they hold together, what there is (bytes)."""

    name: str
    holds: str
    memory: Memory
    there: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run, in order, and on what."""

    stages: tuple[str, ...]
    devices: tuple[Device, ...]
    episodes: int
    tokens: int
    flops: float
    rate: float

    def check(self) -> None:
        """Raise ValueError when a device cannot hold its part, with the settings that would change it."""
        wrong = [_too_much(one) for one in self.devices if one.memory.total > one.there]
        if wrong:
            raise ValueError("\n".join(wrong))

    def lines(self) -> list[str]:
        """To be read by a person."""
        found = [f"{number}. {stage}" for number, stage in enumerate(self.stages, 1)]
        for device in self.devices:
            found.append(f"{device.name}: {device.holds}")
            parts = [f"{name} {_mib(size)}" for name, size in asdict(device.memory).items() if size]
            found.append(f"  {_mib(device.memory.total)} of {_mib(device.there)}: {', '.join(parts)}")
        found.append(
            f"RL: at most {self.episodes} episodes of {self.tokens} tokens together (assumed: every group that "
            f"may be played is, and fills its context); learning from them is {self.flops:.1e} operations, "
            f"{self.flops / self.rate / 60:,.1f} minutes at {self.rate / 1e9:,.1f} GFLOP/s, which a matrix product "
            "reaches here now; playing comes on top"
        )
        return found


def facts_of(config: TrainConfig) -> Facts:
    """The shape of the model that a configuration begins with; no weight of a folder is read."""
    if config.model.path is None:
        taken = config.model.tokenizer
        width = config.model.vocabulary if taken is None else len(load_tokenizer(taken))
        model = new_model(width, size=config.model.size, context=config.model.context)
    else:
        shape = AutoConfig.from_pretrained(config.model.path, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape)
    own, count = model.config.get_text_config(), parameters(model)
    heads = own.num_attention_heads
    kv = getattr(own, "num_key_value_heads", None) or heads
    width = getattr(own, "head_dim", None) or own.hidden_size // heads
    return Facts(
        parameters=count,
        trained=_adapted(model, config.model.lora_rank) if config.model.lora_rank else count,
        layers=own.num_hidden_layers,
        hidden=own.hidden_size,
        inner=getattr(own, "intermediate_size", None) or 4 * own.hidden_size,
        heads=heads,
        kv_width=kv * width,
        vocabulary=own.vocab_size,
    )


def _adapted(model: Any, rank: int) -> int:
    """Weights of low-rank adapters: two factors a linear layer, but the output (LoRA, Hu et al. 2021)."""
    head = model.get_output_embeddings()
    linear = [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    return rank * sum(one.in_features + one.out_features for one in linear)


def memory_of(facts: Facts, config: TrainConfig, *, processes: int, frozen: int = 0) -> Memory:
    """What one process of a learner holds in an update.

    frozen: how many weights the model beside it has, which is divided, too. Weights, gradients and AdamW's two
    moments are 4 + 4 + 8 bytes a weight in float32, divided by the number of processes (Rajbhandari et al. 2020,
    "ZeRO", arXiv 1910.02054, sections 3.1 and 5); embeddings and output layer are whole besides. What a layer keeps
    for the way back is counted as in Korthikanti et al. 2022 (arXiv
    2205.05198, section 4.1), for this kind of layer: float32, no dropout, no scores of attention; about
    4 (7 h + 4 k + 3 i) bytes a position, with widths h hidden, k of keys, i inner. Checkpointed it is 4 h a layer,
    and one layer whole. Logits exist for a chunk of positions (`head.positions_at_once`), three times: they, their
    softmax and the gradient.
    """
    positions, layers, memory = config.max_tokens, facts.layers, config.learner
    at_once = positions_at_once(min(memory.chunk, positions), memory.logits_mib, facts.vocabulary)
    layer = _FLOAT * (7 * facts.hidden + 4 * facts.kv_width + 3 * facts.inner) * positions
    kept = layers * _FLOAT * facts.hidden * positions + layer if config.learner.checkpoint else layers * layer
    unit = 0 if processes == 1 else _FLOAT * (2 * facts.vocabulary * facts.hidden)
    return Memory(
        weights=_FLOAT * (facts.parameters + frozen) // processes + unit,
        gradients=_FLOAT * facts.trained // processes,
        optimizer=2 * _FLOAT * facts.trained // processes,
        activations=kept,
        logits=3 * _FLOAT * at_once * facts.vocabulary,
    )


def critics_of(facts: Facts, config: TrainConfig) -> Memory:
    """What the critics hold: whole, in `envgym train` itself, however many processes the learner has.

    Of "policy" only small networks on the policy's states (not counted: a few H^2 numbers), of "frozen" a copy of
    the weights; an own body trains (4 + 8 bytes a weight more) and has a slow copy, and "implicit" a copy of the
    policy that trains and one that does not.
    """
    found, one = Memory(), config.reinforce.critic
    for critic in (one, one.second):
        if critic is None or critic.kind == "none":
            continue
        whole, trained = 0, 0
        if critic.kind == "implicit":
            whole, trained = 2 * facts.parameters, facts.parameters
        elif critic.body == "frozen":
            whole = facts.parameters
        elif critic.body == "own":
            trained = parameters(new_model(facts.vocabulary, size=critic.size, context=config.model.context))
            whole = 2 * trained
        found = _sum([found, Memory(_FLOAT * whole, _FLOAT * trained, 2 * _FLOAT * trained)])
    return found


def _frozen(facts: Facts, config: TrainConfig) -> int:
    """Weights of the models that the loss asks: a teacher's, or those that RL begins with, and a renewed mask's."""
    loss = config.reinforce.loss
    masks = facts.parameters if loss.renews_mask else 0
    if not loss.wants_reference:
        return masks
    if not loss.distill.teacher:
        return facts.parameters + masks
    shape = AutoConfig.from_pretrained(loss.distill.teacher, local_files_only=True)
    with torch.device("meta"):
        return parameters(AutoModelForCausalLM.from_config(shape))


def _sampler(facts: Facts, config: TrainConfig, *, among: int = 1) -> Memory:
    """Weights, and keys and values of every context that is played at once (2 a layer, position and key unit).

    among: how many samplers share them. A masking policy beside has as much once more.
    """
    played = -(-config.concurrency // among)
    models = 2 if config.reinforce.loss.mask.top_p < 1 and config.masks_sampler else 1
    cache = 2 * facts.layers * facts.kv_width * _FLOAT * config.model.context * played
    return Memory(weights=_FLOAT * facts.parameters * models, kv_cache=cache * models)


def plan_of(
    config: TrainConfig, facts: Facts, *, there: int | None = None, rate: float | None = None,
    placed: Sequence[Placed] = (),
) -> Plan:  # fmt: skip
    """The plan of a configuration. there: bytes of a device's memory; None: what is free here.

    placed: what is played and sampled on a cluster, and not here.

    rate: floating-point operations a second; None: as measured. An update takes 6 of them a weight and token
    (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
    """
    apart = staleness_of(config.reinforce) > 0
    devices = _devices(config, facts, there, placed) if placed else _devices_here(config, facts, there, apart=apart)
    playing = config.reinforce.loop.past.kind != "alone"
    groups = int(config.reinforce.tasks * config.reinforce.oversample) if playing else config.reinforce.tasks
    episodes = config.reinforce.steps * groups * config.reinforce.group
    tokens = episodes * config.model.context
    flops = 6.0 * facts.parameters * tokens * config.reinforce.epochs
    return Plan(_stages(config, apart), devices, episodes, tokens, flops, rate or _rate(config.device))


def _devices_here(config: TrainConfig, facts: Facts, there: int | None, *, apart: bool) -> tuple[Device, ...]:
    """Where all is in this process, or on this host. apart: the sampler has weights of its own."""
    processes = config.learner.processes
    learner = memory_of(facts, config, processes=processes, frozen=_frozen(facts, config))
    sampler, critics = _sampler(facts, config), critics_of(facts, config)
    beside = _critics_named(config)
    copy = Memory(weights=_FLOAT * facts.parameters if apart else 0)
    kind = torch.device(config.device).type
    if kind == "cpu":
        free = _free_here() if there is None else there
        shared = Memory() if processes > 1 or apart else Memory(weights=-_FLOAT * facts.parameters)
        held = [sampler, critics, *[learner] * processes, shared, *([copy] if processes > 1 else [])]
        who = f"the worlds, the sampler{beside} and {processes} learner process(es)"
        return (Device("this host's memory", who, _sum(held), free),)
    free = torch.cuda.mem_get_info()[0] if there is None else there
    first = _sum([sampler, learner, critics, copy if processes > 1 else Memory()])
    rest = (Device(f"{kind}:{rank}", f"learner process {rank}", learner, free) for rank in range(1, processes))
    return (Device(f"{kind}:0", f"the sampler{beside} and learner process 0", first, free), *rest)


def _devices(config: TrainConfig, facts: Facts, there: int | None, placed: Sequence[Placed]) -> tuple[Device, ...]:
    """Where something is on a cluster: this host with what stays, and every node that samples or learns on CPUs.

    Of a cluster that is started here, the one node is this host. GPUs of other hosts are not known.
    """
    cluster, kind = config.cluster, torch.device(config.device).type
    learner = memory_of(facts, config, processes=config.learner_processes, frozen=_frozen(facts, config))
    whole = Memory(weights=_FLOAT * facts.parameters)  # what is sent, as Ray's store has it
    sampler = _sampler(facts, config, among=cluster.samplers or cluster.workers or 1)
    free = (_free_here() if kind == "cpu" else torch.cuda.mem_get_info()[0]) if there is None else there
    own, who = _staying(config, kind, learner=learner, sampler=sampler, whole=whole)
    own.append(critics_of(facts, config))
    devices = []
    for node in {one.node.id: one.node for one in placed}.values():
        there_are = [one.need for one in placed if one.node.id == node.id]
        names = ", ".join(need.name for need in there_are)
        learners = 0 if cluster.learner_gpus else sum(need.kind == LEARNER for need in there_are)
        samplers = 0 if cluster.gpus else _samplers(placed, node)
        held = _sum([whole, *[sampler] * samplers, *[learner] * learners])
        if not node.id and kind == "cpu":
            own, who = [*own, held], f"{who}; {names}"
        elif learners or samplers:
            devices.append(Device(f"node {node.address}", names, held, node.memory))
    return (Device("this host's memory" if kind == "cpu" else f"{kind}:0", who, _sum(own), free), *devices)


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
    apart = any(one.need.kind == SAMPLER for one in placed)
    kind = SAMPLER if apart else WORKER
    return sum(one.node.id == node.id and one.need.kind == kind for one in placed)


def _critics_named(config: TrainConfig) -> str:
    return ", the critics, whole" if config.reinforce.critic.kind != "none" else ""


def _stages(config: TrainConfig, apart: bool) -> tuple[str, ...]:
    warm, reinforce = config.warm_start, config.reinforce
    size = config.learner_processes
    by = f"over {size} processes (FSDP2)" if size > 1 else "in this process"
    if config.cluster.learners:
        by = f"over {size} process(es) that Ray places (FSDP2)"
    how = "playing and learning overlap" if apart else "playing and learning take turns"
    found = []
    if warm.episodes_per_task:
        found.append(f"expert {config.expert!r} plays {warm.episodes_per_task} episode(s) of each training task")
        if warm.max_updates:
            found.append(f"warm start: at most {warm.max_updates} updates of {warm.rows} rows, learner {by}")
    players = ", ".join((*config.evaluate.baselines, "student"))
    found.append(f"evaluation on split {config.evaluate.split!r} of {players}")
    found.append(
        f"RL: {reinforce.steps} steps of {_groups(config)}, credit {reinforce.credit!r}, loss "
        f"{reinforce.loss.kind!r}{_beside(config)}; {_where(config)}, learner {by}; {how}"
    )
    return (*found, "evaluation again, and the report")


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


def _rate(device: str) -> float:
    """Operations a second of the best of a few matrix products, in float32."""
    size, best = 768, 0.0
    one = torch.ones(size, size, device=device)
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


def _sum(parts: Sequence[Memory]) -> Memory:
    return Memory(**{name: sum(getattr(part, name) for part in parts) for name in Memory.__slots__})


def _too_much(device: Device) -> str:
    largest = max(asdict(device.memory).items(), key=lambda one: one[1])[0]
    change = {
        "weights": "a smaller model; learner.processes divides the learner's share",
        "gradients": "model.lora_rank, or more learner.processes on more devices",
        "optimizer": "model.lora_rank, or more learner.processes on more devices",
        "activations": "learner.checkpoint = true, or a smaller max_tokens",
        "logits": "a smaller learner.logits_mib",
        "kv_cache": "a smaller concurrency or model.context",
    }[largest]
    return (
        f"{device.name} has {_mib(device.there)} free, and the run holds about {_mib(device.memory.total)} there; "
        f"most of it is {largest}, {_mib(getattr(device.memory, largest))}: {change}"
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
