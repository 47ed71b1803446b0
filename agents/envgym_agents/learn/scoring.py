"""How a configuration has a model scored: the one place where `[learner]` becomes a `Scorer`.

`envgym train`, each process of a divided learner and `benchmarks/gpu.py` score alike because they all ask here.
"""

from typing import Any

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.score import Scorer

__all__ = ["scorer_of"]


def scorer_of(config: TrainConfig, model: Any, *, trains: bool = True) -> Scorer:
    """A scorer of the model. trains: layers are checkpointed as configured, for there is a way back."""
    memory = config.learner
    return Scorer(
        model, temperature=config.model.temperature, chunk=memory.chunk, logits_mib=memory.logits_mib,
        checkpointed=memory.checkpoint and trains, share=memory.share == "auto", precision=memory.precision,
    )  # fmt: skip
