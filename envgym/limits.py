"""Bounds and sampling settings, each travelling as one frozen value instead of loose knobs."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Limits", "Resources", "Sampling"]


class Limits(BaseModel):
    """How long an episode may be, and how long each call in it may take.

    Units: turns and tokens are counts over one episode, ``*_s`` are wall-clock seconds per call.
    Reaching `turns`, `tokens` or `episode_s` truncates the episode (data); outliving a per-call deadline
    is a failure (the world's fault).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int = Field(default=50, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    episode_s: float | None = Field(default=None, gt=0)
    reset_s: float = Field(default=60.0, gt=0)
    act_s: float = Field(default=300.0, gt=0)
    step_s: float = Field(default=120.0, gt=0)
    close_s: float = Field(default=30.0, gt=0)


class Resources(BaseModel):
    """What a sandbox may use. A backend that cannot enforce a bound it is given says so when created."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: int = Field(default=1 << 30, ge=16 << 20)
    pids: int = Field(default=256, ge=8)
    cpus: float | None = Field(default=None, gt=0)
    disk_bytes: int = Field(default=1 << 30, ge=1 << 20)
    output_bytes: int = Field(default=1 << 20, ge=1 << 10)
    command_s: float = Field(default=60.0, gt=0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a policy samples one completion.

    `allowed` restricts the *first* sampled token to these ids (ascending); log-probabilities are then of the
    renormalised distribution, which is the distribution that was sampled from. `seed` fixes the draw
    whatever else is in the batch; None lets the policy choose.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"Sampling.max_tokens is {self.max_tokens}; it must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"Sampling.temperature is {self.temperature}; it must be at least 0 (0 is greedy)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Sampling.top_p is {self.top_p}; it must be in (0, 1]")
        if self.allowed is not None and not self.allowed:
            raise ValueError("Sampling.allowed is empty; nothing could be sampled (None means no restriction)")
