"""How many bytes each part of a training run holds at once, by what they are for.

Formulas that are functions of the model's shape and the configuration; they do not know of the allocator's holes or
the libraries' own. `plan` adds them up, device by device.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.facts import Facts
from envgym_agents.learn.head import positions_at_once
from envgym_agents.model import empty_model, new_model, parameters

__all__ = ["FLOAT", "Memory", "critics_of", "frozen_of", "memory_of", "sampler_of", "saved", "together", "vllm_of"]

FLOAT = 4
"""Bytes of a number: weights that train are float32 (`student.begin_model`)."""
_PRODUCT = {"float32": 4, "bfloat16": 2}
"""Bytes of a number that a matrix product gives (`learner.precision`)."""


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


def memory_of(facts: Facts, config: TrainConfig, *, processes: int, frozen: int = 0) -> Memory:
    """What one process of a learner holds in an update.

    frozen: how many weights the model beside it has, which is divided, too. Weights, gradients and AdamW's two
    moments are 4 + 4 + 8 bytes a weight in float32, divided by the number of processes (Rajbhandari et al. 2020,
    "ZeRO", arXiv 1910.02054, sections 3.1 and 5); embeddings and output layer are whole besides. What a layer keeps
    for the way back is counted as in Korthikanti et al. 2022 (arXiv
    2205.05198, section 4.1), for this kind of layer: float32, no dropout, no scores of attention; about
    4 (7 h + 4 k + 3 i) bytes a position, with widths h hidden, k of keys, i inner. Checkpointed it is 4 h a layer,
    and one layer whole. In bfloat16 what matrix products give has 2 bytes, 28 h + 2 (4 k + 3 i), and without
    checkpoints the way back keeps the weights as they were multiplied, 2 bytes each, whole, divided or not. Logits
    exist for a chunk of positions (`head.positions_at_once`), three times: they, their softmax and the gradient.
    A pass has `max_tokens` positions, or one row that is longer (`pack.batches`): as long as the context, at most.
    """
    positions, layers, memory = max(config.max_tokens, config.model.context), facts.layers, config.learner
    at_once = positions_at_once(min(memory.chunk, positions), memory.logits_mib, facts.vocabulary)
    product = _PRODUCT[memory.precision]
    layer = (FLOAT * 7 * facts.hidden + product * (4 * facts.kv_width + 3 * facts.inner)) * positions
    kept = layers * FLOAT * facts.hidden * positions + layer if config.learner.checkpoint else layers * layer
    unit = 0 if processes == 1 else FLOAT * (2 * facts.vocabulary * facts.hidden)
    copied = facts.parameters if product != FLOAT and not memory.checkpoint else 0
    return Memory(
        weights=FLOAT * (facts.parameters + frozen) // processes + unit + product * copied,
        gradients=FLOAT * facts.trained // processes,
        optimizer=2 * FLOAT * facts.trained // processes,
        activations=kept,
        logits=3 * FLOAT * at_once * facts.vocabulary,
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
        found = together([found, Memory(FLOAT * whole, FLOAT * trained, 2 * FLOAT * trained)])
    return found


def frozen_of(facts: Facts, config: TrainConfig) -> int:
    """Weights of the models that the loss asks: a teacher's, or those that RL begins with, and a renewed mask's."""
    loss = config.reinforce.loss
    masks = facts.parameters if loss.renews_mask else 0
    if not loss.wants_reference:
        return masks
    if not loss.distill.teacher:
        return facts.parameters + masks
    return parameters(empty_model(loss.distill.teacher))


def sampler_of(facts: Facts, config: TrainConfig, *, among: int = 1) -> Memory:
    """Weights, and keys and values of every context that is played at once (2 a layer, position and key unit).

    among: how many samplers share them. A masking policy beside has as much once more. Of vLLM what stays in the
    process that asks it: a copy of the weights, and the file that they come to it in; see `vllm_of`.
    """
    if config.sampler.kind == "vllm":
        return Memory(weights=2 * FLOAT * facts.parameters)
    played = -(-config.concurrency // among)
    models = 2 if config.reinforce.loss.mask.top_p < 1 and config.masks_sampler else 1
    cache = 2 * facts.layers * facts.kv_width * FLOAT * config.model.context * played
    return Memory(weights=FLOAT * facts.parameters * models, kv_cache=cache * models)


def vllm_of(facts: Facts, config: TrainConfig, device: int | None) -> Memory:
    """What vLLM's own process holds: on a GPU its share of the whole device (bytes), whatever the model.

    device: None: on a CPU, where it holds weights and the cache that it is given.
    """
    if config.sampler.kind != "vllm":
        return Memory()
    weights = FLOAT * facts.parameters
    if device is None:
        return Memory(weights=weights, kv_cache=config.sampler.cache_gib << 30)
    return Memory(weights=weights, kv_cache=max(0, int(config.sampler.gpu_share * device) - weights))


def saved(facts: Facts) -> Memory:
    """What the first process of a divided learner holds in its host's memory while it saves, whole."""
    return Memory(weights=FLOAT * facts.parameters, optimizer=2 * FLOAT * facts.trained)


def together(parts: Sequence[Memory]) -> Memory:
    """All of them."""
    return Memory(**{name: sum(getattr(part, name) for part in parts) for name in Memory.__slots__})
