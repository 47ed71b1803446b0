"""A policy whose tokens vLLM samples: the same contract as a model in this process, with an engine behind it.

The engine has weights of its own, in this process or in one that is started with the first call and ends with us.
After every update, and at the start, it samples a few tokens whose log-probabilities must be the model's own: what
differs is refused, for it would train something else than what was sampled.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from envgym.errors import AgentFailure, InfrastructureFailure
from envgym.limits import Sampling
from envgym.policy import Completion, Prompt, Session, VersionRun
from envgym_agents.model import max_length as model_length
from envgym_agents.policies.prompts import checked_length, checked_prompt
from envgym_agents.policies.vllm.link import Link, Opener
from envgym_agents.policies.vllm.weights import (
    SamplerDiffers,
    Weights,
    gap,
    probes,
    tolerance_of,
    write_folder,
    write_weights,
)
from envgym_agents.policies.vllm.wire import (
    ALL,
    Abort,
    EngineSettings,
    Failed,
    Generate,
    Load,
    Loaded,
    Said,
    Sampled,
)

__all__ = ["VllmPolicy", "VllmSession"]

_COLDEST = 0.01
"""The lowest temperature that vLLM samples with as it is told; what is lower and not 0, it raises to this."""


class VllmSession:
    """One growing context. What is cached of it, vLLM keeps, by its ids: forks share it without being asked."""

    def __init__(self, policy: "VllmPolicy") -> None:
        self.policy = policy
        self._number: int | None = None
        self._closed = False

    def fork(self) -> "VllmSession":
        """A session with the same history, independent from here on."""
        if self._number is not None or self._closed:
            raise ValueError("a session can be forked only while it is open and no sample call uses it")
        return VllmSession(self.policy)

    def abort(self) -> None:
        """End the sample call that uses it, if one does: it returns what there is, with finish "abort".

        To resume, sample again with those ids after the context; all but the last of them are cached.
        """
        if self._number is not None:
            self.policy.abort(self._number)

    def close(self) -> None:
        """Take no more calls; idempotent."""
        self._closed = True

    def take(self, number: int) -> None:
        """Mark as in use by one sample call. Raises ValueError when it is closed or in use."""
        if self._closed:
            raise ValueError("this session is closed; ask the policy for a new one")
        if self._number is not None:
            raise ValueError("two sample calls use one session at a time; fork it or wait for the first")
        self._number = number

    def release(self) -> None:
        """End the use by a sample call."""
        self._number = None


@dataclass(slots=True)
class _Waiting:
    """Who waits for an answer, and in which event loop."""

    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Said]

    def told(self, said: Said) -> None:
        def tell() -> None:
            if not self.answer.done():
                self.answer.set_result(said)

        with contextlib.suppress(RuntimeError):  # a loop that has ended waits for nothing
            self.loop.call_soon_threadsafe(tell)


@dataclass(slots=True)
class _Counts:
    """What an engine has done for a policy."""

    requests: int = 0
    cached_tokens: int = 0
    updates: int = 0
    gaps: list[float] = field(default_factory=list)


class VllmPolicy:
    """Samples from a Hugging Face causal LM by vLLM.

    model: the learner's, or one like it; its weights are what the engine is given, at the start and by `update`.
    opened: makes the engine, in the first call that needs it (`link.server`, `link.inside`). settings: of the
    engine; its folder, length and number type are set here. tolerance: in nats; by the model's number type where
    not given. weights_of: the weights of the model as vLLM knows it, where they are not its state dict (adapters).
    seed: of draws whose Sampling has no seed of its own.

    Raises ValueError for prompts that are empty, too long, or hold unknown ids, AgentFailure when the engine broke
    in a call (the next one starts another), SamplerDiffers when it does not compute what the model computes.
    """

    def __init__(
        self, model: Any, opened: Opener, *, settings: EngineSettings | None = None, max_length: int | None = None,
        tolerance: float | None = None, weights_of: Callable[[Any], Weights] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.version = model, 0
        self.max_length = checked_length(max_length, model_length(model))
        self.tolerance = tolerance_of(model) if tolerance is None else tolerance
        self.counts = _Counts()
        self._opened, self._settings = opened, settings or EngineSettings("", 0)
        self._weights_of = weights_of or _state
        self._rng = np.random.default_rng(seed)
        self._link: Link | None = None
        self._folder = Path()
        self._refused: SamplerDiffers | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count()
        self._turn = asyncio.Lock()

    @property
    def engine(self) -> str:
        """Which one it is; "" while there is none."""
        return "" if self._link is None else self._link.name

    def session(self) -> VllmSession:
        """A fresh, empty session."""
        return VllmSession(self)

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        """Sample a completion. Calls that wait at the same time are batched."""
        chosen = self.session() if session is None else session
        if not isinstance(chosen, VllmSession) or chosen.policy is not self:
            raise ValueError("this session belongs to another policy; ask this one for a session()")
        context = checked_prompt(prompt, sampling, self.max_length, self.model.config.vocab_size)
        if 0 < sampling.temperature < _COLDEST:
            raise ValueError(
                f"Sampling.temperature is {sampling.temperature}; vLLM samples with 0 (greedy) or at least "
                f"{_COLDEST}"
            )
        number = next(self._numbers)
        chosen.take(number)
        try:
            await self._started()
            return await self._sampled(number, context, sampling)
        finally:
            chosen.release()

    def abort(self, number: int) -> None:
        """End one request; see `VllmSession.abort`."""
        if self._link is not None and number in self._waiting:
            with contextlib.suppress(InfrastructureFailure):  # who waits is told by the link
                self._link.ask(Abort(number))

    async def update(
        self, weights: Mapping[str, Tensor] | None = None, *, version: int | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> int:  # fmt: skip
        """New weights from the next step of the engine on; returns the version, one more than before unless given.

        weights: a state dict for the model; None when the model was changed in place. Completions in progress go on
        under the new weights, computed anew from their ids, and say so in their version runs. Raises ValueError for
        weights that do not fit, and for a masking policy's, and SamplerDiffers when the engine then computes
        something else.
        """
        if masks is not None:
            raise ValueError("vLLM samples without a masking policy, so there is none to be renewed")
        async with self._turn:
            if weights is not None:
                try:
                    await asyncio.to_thread(self.model.load_state_dict, weights)
                except RuntimeError as error:  # says which names or shapes do not fit
                    raise ValueError(str(error)) from error
            new = self.version + 1 if version is None else version
            if self._link is not None:
                await self._load(new)
                self.version = new
                await self._check()
            self.version = new
            self.counts.updates += 1
        return new

    async def update_from(self, folder: str | Path, *, version: int | None = None) -> int:
        """`update` with the safetensors files of a model folder."""
        weights = await asyncio.to_thread(_stored, Path(folder))
        own = self.model.state_dict()
        names = {weight.data_ptr(): name for name, weight in own.items() if name in weights}
        for name, weight in own.items():  # a folder has what is tied once
            if name not in weights and weight.data_ptr() in names:
                weights[name] = weights[names[weight.data_ptr()]]
        return await self.update(weights, version=version)

    async def close(self) -> None:
        """End the engine; calls in progress fail. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.close)
        self._all_fail("the policy was closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the engine --------------------------------------------------------------------------------------------

    async def _started(self) -> None:
        """An engine with the present weights that was found to compute what the model computes."""
        if self._link is None:
            async with self._turn:
                if self._link is None:
                    self._refused = None
                    self._link = await asyncio.to_thread(self._open)
                    await self._check()
        if self._refused is not None:
            raise self._refused

    def _open(self) -> Link:
        folder = Path(tempfile.mkdtemp(prefix=f"envgym-vllm-{os.getpid()}-", dir=_place()))
        try:
            write_folder(folder, self.model, self._weights_of(self.model))
            dtype = str(self.model.dtype).removeprefix("torch.")
            settings = msgspec.structs.replace(
                self._settings, folder=str(folder), max_length=self.max_length, dtype=dtype
            )
            link = self._opened(settings, self.version, self._heard)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / "model.safetensors").unlink(missing_ok=True)  # it is in the engine's memory
        self._folder = folder
        return link

    async def _load(self, version: int) -> None:
        file = self._folder / f"weights-{version}.safetensors"
        try:
            await asyncio.to_thread(write_weights, file, self.model, self._weights_of(self.model))
            said = await self._asked(Load(next(self._numbers), version, str(file)))
        finally:
            file.unlink(missing_ok=True)
        if isinstance(said, Failed) and said.refused:
            raise ValueError(f"vLLM refuses weights: {said.text}")
        if not isinstance(said, Loaded):
            raise _failed(said)

    async def _check(self) -> None:
        """Raise SamplerDiffers, now and in every further call, unless the engine computes what the model does."""
        worst = 0.0
        for context, sampling in probes(self.model.config.vocab_size, self.max_length, self.version):
            found = await self._sampled(next(self._numbers), context, sampling)
            arguments = (self.model, context, found.ids, found.logprobs, sampling)
            worst = max(worst, await asyncio.to_thread(gap, *arguments))
        self.counts.gaps.append(worst)
        self._refused = None
        if not worst <= self.tolerance:
            what = f"{type(self.model).__name__}, {self.model.dtype}"
            self._refused = SamplerDiffers(
                f"after update {self.version} the log-probabilities of {self.engine} differ by {worst:.3g} nats "
                f"from the model's own, and {self.tolerance:g} are allowed: it did not take the weights, or "
                f"computes this architecture ({what}) in another way. Sample with sampler.kind = 'transformers', "
                "or raise sampler.tolerance if that is what the number type gives"
            )
            raise self._refused

    async def _sampled(self, number: int, context: list[int], sampling: Sampling) -> Completion:
        seed = int(self._rng.integers(1 << 62)) if sampling.seed is None else _seed(sampling.seed)
        allowed = None if sampling.allowed is None else tuple(sampling.allowed)
        said = await self._asked(
            Generate(
                number, tuple(context), sampling.max_tokens, seed, sampling.temperature, sampling.top_p,
                tuple(sampling.stop_ids), allowed,
            )
        )  # fmt: skip
        if isinstance(said, Failed) and said.refused:
            raise ValueError(f"vLLM refuses the request: {said.text}")
        if not isinstance(said, Sampled):
            raise _failed(said)
        self.counts.requests += 1
        self.counts.cached_tokens += said.cached
        runs = tuple(VersionRun(start, version) for start, version in said.runs)
        return Completion(said.ids, tuple(min(one, 0.0) for one in said.logprobs), runs, said.finish)

    async def _asked(self, message: Generate | Load) -> Said:
        """Ask, and wait for the answer; a request whose caller is cancelled is aborted."""
        if self._link is None:
            raise AgentFailure("the policy was closed")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(loop, loop.create_future())
        self._waiting[message.number] = waiting
        try:
            await asyncio.to_thread(self._link.ask, message) if isinstance(message, Load) else self._link.ask(
                message
            )
            return await waiting.answer
        except InfrastructureFailure as error:
            self._link = None
            raise AgentFailure(str(error)) from error
        except asyncio.CancelledError:
            self.abort(message.number)
            raise
        finally:
            self._waiting.pop(message.number, None)

    def _heard(self, said: Said) -> None:
        """In a thread of the link: pass an answer to who waits for it."""
        if isinstance(said, Failed) and said.number == ALL:
            self._link = None
            self._all_fail(said.text)
        elif isinstance(said, Sampled | Loaded | Failed):
            waiting = self._waiting.get(said.number)
            if waiting is not None:
                waiting.told(said)

    def _all_fail(self, text: str) -> None:
        for waiting in list(self._waiting.values()):
            waiting.told(Failed(ALL, text))


def _failed(said: Said) -> AgentFailure:
    return AgentFailure(said.text if isinstance(said, Failed) else f"vLLM answered with {said}")


def _state(model: Any) -> Weights:
    weights: Weights = model.state_dict()
    return weights


def _stored(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(str(file))
    if not weights:
        raise ValueError(f"{str(folder)!r} is no folder with safetensors files")
    return weights


def _seed(seed: int) -> int:
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(2))


def _place() -> str | None:
    """Where weights are handed over: in memory where that is a folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
