"""What runs on the hosts: workers that play whole episodes, and samplers. Plain classes; Ray makes actors of them.

A worker has its own environments, sandbox backend and, unless samplers are placed by themselves, its own policy.
It keeps nothing: an episode goes back whole, and the driver's store is the only one. What is lost with a worker is
played again, so nothing has to be found again here.
"""

import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from envgym.buffer import Partial
from envgym.episode import Episode
from envgym.jobs import Stretch, run_episode
from envgym.limits import Sampling
from envgym.policy import AgentFactory, Completion, Prompt, Session
from envgym.registry import make_backend, spec
from envgym.rollout import Rollout
from envgym.stems import Branch
from envgym.task import Task
from envgym_agents.chat import Format, LMAgents
from envgym_agents.hub import SAFELY
from envgym_agents.learn.cluster.carried import Carried
from envgym_agents.learn.cluster.far_policy import FarPolicy
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.play import Arena
from envgym_agents.learn.staleness import staleness_of
from envgym_agents.policies.chosen import ModelPolicy, policy_over
from envgym_agents.template import FolderTemplate, OwnTemplate, template_for
from envgym_agents.tokenizer import load_tokenizer

__all__ = ["Request", "RolloutWorker", "SamplerHost", "Shipped", "Speaking"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model without its weights: configuration and tokenizer, as a model folder. context: the most ids of one."""

    folder: Carried
    context: int

    @staticmethod
    def of(model: Any, tokenizer: Any, *, context: int) -> "Shipped":
        """What makes the same model, given its weights, wherever it is."""
        with tempfile.TemporaryDirectory(prefix="envgym-") as name:
            model.config.save_pretrained(name)
            tokenizer.save_pretrained(name)
            return Shipped(Carried.of(Path(name)), context)

    @property
    def tokenizer(self) -> Any:
        """A fresh one."""
        with self.folder.laid() as folder:
            return load_tokenizer(folder)

    def model(self, weights: Mapping[str, Tensor], device: str) -> Any:
        """In float32 and evaluation mode, as `load_model` gives it."""
        with self.folder.laid() as folder:
            shape = AutoConfig.from_pretrained(folder, **SAFELY)
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
        model.load_state_dict(weights)
        return model.to(device).eval()


@dataclass(frozen=True, slots=True)
class Speaking:
    """A language model's agent, but for policy and template, which a worker has."""

    format: Format
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One episode. agent: the student, or the factory of another. stretch: as `Stretch.tokens`; 0: none.

    branch: of a continuation where it begins; nothing stands ready for it here, so it goes by the record.
    """

    task: Task
    agent: Speaking | AgentFactory
    seed: int
    episode_id: str
    group: str
    rollout: Rollout
    stretch: int = 0
    branch: Branch | None = None


class _Holder:
    """A policy over the weights of one version; another model takes its place."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._device = "cuda" if config.cluster.gpus else "cpu"
        self._policy: ModelPolicy | None = None
        os.environ.pop("RAY_AUTH_TOKEN", None)  # Ray has read it; what a sandbox of this process runs must not
        if config.threads is not None:
            torch.set_num_threads(config.threads)

    @property
    def policy(self) -> ModelPolicy:
        assert self._policy is not None, "a model is loaded before anything is sampled"
        return self._policy

    async def load(self, shipped: Shipped, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from this model from now on."""
        await self.close()
        model = shipped.model(weights, self._device)
        config = self._config
        self._policy = policy_over(model, config.sampler, max_length=shipped.context, seed=config.seed)
        await self._policy.update(version=version)

    async def close(self) -> None:
        if self._policy is not None:
            await self._policy.close()
            self._policy = None


class SamplerHost:
    """A sampler of its own: the policy behind every worker's `FarPolicy`, its sessions by their keys."""

    def __init__(self, config: TrainConfig) -> None:
        self._holder = _Holder(config)
        self._sessions: dict[str, Session] = {}

    async def ready(self) -> tuple[str, int]:
        """Where it is: host and process."""
        return socket.gethostname(), os.getpid()

    async def load(self, shipped: Shipped, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from another model; what was cached is of no use any more."""
        self._sessions.clear()
        await self._holder.load(shipped, weights, version)

    async def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from these weights from the next pass on."""
        await self._holder.policy.update(weights, version=version)

    async def sample(self, key: str, ids: NDArray[np.int32], sampling: Sampling) -> Completion:
        """As `Policy.sample`; the session is made when its key is first used."""
        policy = self._holder.policy
        if key not in self._sessions:
            self._sessions[key] = policy.session()
        session: Any = self._sessions[key]
        return await policy.sample(Prompt(ids.tolist()), sampling, session)

    async def fork(self, key: str, other: str) -> None:
        """A session with the same cache under another key."""
        if key in self._sessions:
            self._sessions[other] = self._sessions[key].fork()

    async def end(self, key: str) -> None:
        """Free a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.close()

    async def close(self) -> None:
        """Stop sampling."""
        await self._holder.close()


class RolloutWorker:
    """Plays episodes with environments and sandboxes of this host."""

    def __init__(self, config: TrainConfig) -> None:
        self._config, self._holder, self._stack = config, _Holder(config), AsyncExitStack()
        self._arena: Arena | None = None
        self._template: OwnTemplate | FolderTemplate | None = None
        self._version, self._context = 0, 0

    async def ready(self) -> tuple[str, int]:
        """Open the sandbox backend; host and process. Raises SandboxUnavailable where it cannot run here."""
        config, backend = self._config, None
        if spec(config.env).sandbox:
            backend = await self._stack.enter_async_context(make_backend(config.sandbox))
        self._arena = Arena(config.env, Rollout(), backend, config.env_options, others=config.model.others)
        return socket.gethostname(), os.getpid()

    async def load(self, shipped: Shipped, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Speak as this model. weights: None where a sampler of its own has them."""
        if weights is not None:
            await self._holder.load(shipped, weights, version)
        self._template, self._context, self._version = template_for(shipped.tokenizer), shipped.context, version

    async def update(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Sample from these weights from the next pass on; None: another does, and this is its version."""
        if weights is not None:
            await self._holder.policy.update(weights, version=version)
        self._version = version

    async def play(self, asked: Request, sampler: Any = None) -> Episode:
        """One whole episode, played or failed. sampler: the actor to sample from; None: this worker's policy."""
        assert self._arena is not None, "ready() comes first"
        arena = replace(self._arena, rollout=asked.rollout)
        job = arena.job(
            asked.task,
            self._agent(asked.agent, sampler),
            seed=asked.seed,
            episode_id=asked.episode_id,
            group=asked.group,
        )
        job = replace(job, branch=asked.branch)
        if asked.stretch:
            job = replace(job, stretch=Stretch(asked.stretch, self._fresh))
        return await run_episode(job)

    def _agent(self, asked: Speaking | AgentFactory, sampler: Any) -> AgentFactory:
        if not isinstance(asked, Speaking):
            return asked
        assert self._template is not None, "a student plays after load()"
        far = FarPolicy(sampler, self._context, self._version) if sampler is not None else None
        return LMAgents(far or self._holder.policy, self._template, asked.format, asked.sampling)

    async def _fresh(self, cut: Episode) -> bool:
        """Whether the learner could still use what was begun: the weights here are never newer than its own."""
        oldest = Partial(cut).oldest_version
        return oldest is None or oldest >= self._version - staleness_of(self._config.reinforce)

    async def close(self) -> None:
        """Close the sandboxes and the policy."""
        await self._holder.close()
        await self._stack.aclose()
