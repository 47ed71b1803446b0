"""A policy over a model in this process: calls that wait together are computed together, contexts stay cached.

Passes run in one worker thread, so worlds go on meanwhile. Whoever is ready joins the next pass; nobody waits for
stragglers, and no time is slept. A beginning that several contexts share is computed once. Each token is drawn from
its own request's generator, so what else is in the batch changes a draw only through the rounding of matrix
products.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from torch import Tensor

from envgym.errors import AgentFailure
from envgym.limits import Sampling
from envgym.policy import Completion, Prompt, Session, VersionRun
from envgym_agents.eyes import eyes_of
from envgym_agents.model import max_length as model_length
from envgym_agents.policies.draw import draws
from envgym_agents.policies.engine import Part, engine_for
from envgym_agents.policies.masking import Beside, Masking
from envgym_agents.policies.prompts import checked_length, checked_prompt
from envgym_agents.policies.sessions import WORTH, Pool, TransformerSession, common

__all__ = ["TransformerPolicy"]


@dataclass(slots=True, eq=False)
class _Request:
    """One call of `sample` while it is served."""

    context: list[int]
    sampling: Sampling
    session: TransformerSession
    rng: np.random.Generator
    future: asyncio.Future[Completion]
    own_session: bool
    images: tuple[bytes, ...] = ()
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionRun] = field(default_factory=list)

    def take(self, token: int, logprob: float, version: int) -> Literal["stop", "length"] | None:
        """Record a sampled token; says how the completion ended, or None."""
        if not self.versions or self.versions[-1].version != version:
            self.versions.append(VersionRun(len(self.ids), version))
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.context.append(token)
        if token in self.sampling.stop_ids:
            return "stop"
        return "length" if len(self.ids) >= self.sampling.max_tokens else None


@dataclass(frozen=True, slots=True)
class _Update:
    """New weights that wait for the present pass to end."""

    weights: Mapping[str, Tensor] | None
    version: int | None
    masks: Mapping[str, Tensor] | None
    loaded: asyncio.Future[None]


class TransformerPolicy:
    """Samples from a Hugging Face causal LM, or from one that sees (see `envgym_agents.eyes`).

    `Prompt.media` are then the bytes of the images in its context, in order.

    model: used in place; who trains it must not do so during a pass, and says `update` (or raises `version`)
        afterwards: caches of older weights are then computed anew. version: count of weight updates.
    max_length: the longest context, sampled tokens included; the model's own bound by default.
    max_cached_tokens: bound of cached positions over all sessions; idle sessions lose their cache first (it is
        computed anew when they go on). pass_tokens: about how many new positions one pass computes at most.
    seed: of draws whose Sampling has no seed of its own.

    Raises ValueError for prompts that are empty, too long, or hold unknown ids. A failing pass raises AgentFailure
    in every call it served, anything else that fails here in every call that waits.
    """

    def __init__(
        self, model: Any, *, max_length: int | None = None, max_cached_tokens: int = 1 << 20,
        pass_tokens: int = 16384, seed: int = 0,
    ) -> None:  # fmt: skip
        self.model = model
        self.version = 0
        self.max_length = checked_length(max_length, model_length(model))
        if max_cached_tokens < self.max_length:
            raise ValueError(
                f"max_cached_tokens is {max_cached_tokens} but one context may hold {self.max_length}; raise the "
                "first or lower max_length"
            )
        self._engine = engine_for(model)
        self._pool = Pool(max_cached_tokens, packs=self._engine.packs)
        self._masking: Masking | None = None
        self._pass_tokens = pass_tokens
        self._rng = np.random.default_rng(seed)
        self._updates: list[_Update] = []
        self._waiting: list[_Request] = []
        self._active: list[_Request] = []
        self._server: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="envgym-policy")
        self.passes = 0
        self.computed_tokens = 0

    @property
    def batches(self) -> bool:
        """Whether sessions are computed together; False where the architecture allows one at a time only."""
        return self._engine.packs

    @property
    def cached_tokens(self) -> int:
        """Positions that all caches have room for now."""
        return self._pool.used

    def session(self) -> TransformerSession:
        """A fresh, empty session."""
        return self._pool.open()

    def mask(self, model: Any | None, *, top_p: float = 1.0) -> None:
        """From now on draw among what the nucleus of another model leaves open (NLPO); None: among all ids again.

        Log-probabilities are then of the distribution over what is open. model: of the same vocabulary, and nobody
        else's. Raises ValueError for another one, and while calls are being served.
        """
        if self._active or self._waiting:
            raise ValueError("the policy is sampling: mask it before, or after")
        if self._masking is not None:
            self._masking.close()
        self._masking = None
        if model is not None:
            here, there = (one.config.get_text_config().vocab_size for one in (self.model, model))
            if here != there:
                raise ValueError(f"a masking model of {there} ids cannot mask one of {here}")
            self._masking = Masking(model, top_p=top_p, capacity=self._pool.capacity)

    async def update(
        self, weights: Mapping[str, Tensor] | None = None, *, version: int | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> int:  # fmt: skip
        """New weights from the next pass on; returns the version, one more than before unless given.

        weights: a state dict to load between two passes; None when the model was changed in place. Completions in
        progress go on under the new weights, and say so in their version runs. masks: those of the masking policy
        from then on; None: as they are. Raises ValueError where there is none.
        """
        if masks is not None and self._masking is None:
            raise ValueError("no masking policy is there to be renewed: give `mask` one first")
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._updates.append(_Update(weights, version, masks, loaded))
        self._start()
        await loaded
        return self.version

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        """Sample a completion. Calls that wait at the same time are batched."""
        own = session is None
        request = self._request(prompt, sampling, self.session() if session is None else session, own=own)
        self._waiting.append(request)
        self._start()
        return await request.future

    async def close(self) -> None:
        """Stop serving and free every cache; calls in progress are cancelled. Idempotent."""
        if self._server is not None and not self._server.done():
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._pool.clear()
        if self._masking is not None:
            self._masking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _request(self, prompt: Prompt, sampling: Sampling, session: Session, *, own: bool) -> _Request:
        if not isinstance(session, TransformerSession) or session.pool is not self._pool:
            raise ValueError("this session belongs to another policy; ask this one for a session()")
        vocabulary = self.model.config.get_text_config().vocab_size
        context = checked_prompt(prompt, sampling, self.max_length, vocabulary, eyes_of(self.model))
        session.take()
        rng = np.random.default_rng(sampling.seed) if sampling.seed is not None else self._rng.spawn(1)[0]
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        return _Request(context, sampling, session, rng, future, own, prompt.media)

    def _start(self) -> None:
        if self._server is None or self._server.done():
            self._server = asyncio.get_running_loop().create_task(self._serve())

    async def _load(self) -> None:
        """Between two passes: take the new weights, in order."""
        while self._updates:
            update = self._updates.pop(0)
            if update.weights is not None or update.masks is not None:
                loop = asyncio.get_running_loop()
                try:
                    await loop.run_in_executor(self._thread, self._take, update)
                except Exception as error:  # torch says with a RuntimeError which names or shapes do not fit
                    if not update.loaded.done():
                        known = isinstance(error, RuntimeError)
                        update.loaded.set_exception(ValueError(str(error)) if known else error)
                    continue
            self.version = self.version + 1 if update.version is None else update.version
            if not update.loaded.done():
                update.loaded.set_result(None)

    def _take(self, update: _Update) -> None:
        """In the worker thread: load what is new."""
        if update.weights is not None:
            self.model.load_state_dict(update.weights)
        if update.masks is not None and self._masking is not None:
            self._masking.renew(update.masks)

    async def _serve(self) -> None:
        """Serve until nobody waits; new calls join between passes."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._active or self._updates:
                await self._load()
                await self._gather()
                chosen, parts, beside = self._plan()
                if not chosen:
                    continue
                version = self.version
                try:
                    drawn = await loop.run_in_executor(self._thread, self._compute, chosen, parts, beside)
                except Exception as error:  # the model's code may raise anything; it is told to every caller
                    self._fail(chosen, error, "the policy's forward pass failed")
                    continue
                self._absorb(chosen, parts, drawn, version)
                if self._masking is not None:
                    self._masking.commit(beside)
        except Exception as error:  # such as no memory for a cache: a cancelled call would not know why
            self._active, self._waiting = [*self._active, *self._waiting], []
            self._fail(tuple(self._active), error, "the policy could not serve")
            for update in self._updates:
                if not update.loaded.done():
                    update.loaded.set_exception(_failure(error, "the policy could not serve"))
        finally:
            for request in [*self._active, *self._waiting]:
                request.future.cancel()
                self._free(request)
            for update in self._updates:
                update.loaded.cancel()
            self._active, self._waiting, self._updates = [], [], []

    async def _gather(self) -> None:
        """Let every call that is about to be made in this turn of the event loop arrive, then admit them all."""
        count = -1
        while len(self._waiting) != count:
            count = len(self._waiting)
            await asyncio.sleep(0)
        self._active += self._waiting
        self._waiting = []
        for request in [request for request in self._active if request.future.done()]:
            self._active.remove(request)  # its caller was cancelled
            self._free(request)

    def _plan(self) -> tuple[list[_Request], list[Part], list[Beside]]:
        """As many requests as one pass and the memory bound allow, first come first served; and what masks them.

        Who begins with what another computes in this very pass takes it over in the next.
        """
        chosen: list[_Request] = []
        sessions: set[TransformerSession] = set()
        parts: list[Part] = []
        beside: list[Beside] = []
        room = self._pass_tokens
        for request in self._active:
            if self._waits(request, parts):
                continue
            part = request.session.reserve(
                request.context, self.version, busy=sessions, room=room if chosen else None, images=request.images
            )
            if part is None:
                break
            if self._masking is not None:
                masks = self._masking.reserve(request.session, part, busy={session for session, _ in beside})
                if masks is None:
                    break
                beside.append(masks)
            chosen.append(request)
            sessions.add(request.session)
            parts.append(part)
            room -= len(part.ids)
        return chosen, parts, beside

    def _waits(self, request: _Request, parts: Sequence[Part]) -> bool:
        """Whether a part of this pass computes so much of a request's context that one more pass costs less."""
        shares = self._pool.packs and not request.images
        long = [part for part in parts if len(part.ids) > WORTH and not part.images] if shares else []
        if not long:
            return False
        own = request.session.known(request.context, self.version)
        most = len(request.context) - 1
        return most - own > WORTH and any(
            common(part.context, request.context, min(len(part.context), most)) - max(own, part.past) >= WORTH
            for part in long
        )

    def _compute(
        self, chosen: Sequence[_Request], parts: Sequence[Part], beside: Sequence[Beside]
    ) -> list[tuple[int, float]]:
        """In the worker thread: one pass and its draws."""
        logits, nuclei = self._engine.logits(parts), None
        if self._masking is not None:
            asked = [(request.sampling, not request.ids) for request in chosen]
            nuclei = self._masking.nuclei([part for _session, part in beside], asked)
        return draws(logits, [(request.sampling, request.rng, not request.ids) for request in chosen], nuclei)

    def _absorb(
        self, chosen: Sequence[_Request], parts: Sequence[Part], drawn: Sequence[tuple[int, float]], version: int
    ) -> None:
        self.passes += 1
        for request, part, (token, logprob) in zip(chosen, parts, drawn, strict=True):
            self.computed_tokens += len(part.ids)
            request.session.commit(part, version)
            finish = request.take(token, logprob, version)
            if finish is not None or request.future.done():
                self._active.remove(request)
                self._free(request)
            if finish is not None and not request.future.done():
                completion = Completion(
                    tuple(request.ids), tuple(request.logprobs), tuple(request.versions), finish
                )
                request.future.set_result(completion)

    def _fail(self, chosen: Sequence[_Request], error: Exception, what: str) -> None:
        for request in chosen:
            self._active.remove(request)
            request.session.spoil()
            self._free(request)
            if not request.future.done():
                request.future.set_exception(_failure(error, what))

    def _free(self, request: _Request) -> None:
        request.session.release()
        if request.own_session:
            request.session.close()


def _failure(error: Exception, what: str) -> AgentFailure:
    failure = AgentFailure(f"{what}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
