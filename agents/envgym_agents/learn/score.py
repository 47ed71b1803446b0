"""A causal language model over a `Batch`: the log-probability of every sampled token, and the entropy there.

The output layer is applied at sampled positions only, and for a token drawn from a restricted set only to the
ids it could have been; that is exact, because the sampler renormalised over the same set. `Scorer` tests on the
model itself which short cuts are exact for it, and does without those that are not.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from envgym_agents.eyes import eyes_of
from envgym_agents.learn.attention import IMPLEMENTATION, KEYWORD
from envgym_agents.learn.head import Asked, Scored, in_chunks, positions_at_once
from envgym_agents.learn.pack import Batch, Row, padded, shared
from envgym_agents.refusals import says_cannot

__all__ = ["Scored", "Scorer"]


class Scorer:
    """Scores batches with one model.

    model: any Hugging Face causal language model, or one that sees (see `envgym_agents.eyes`): its rows' images are
    given to it, and are computed side by side. temperature: that of the sampler; log-probabilities are of
    the distribution that was sampled from. chunk, logits_mib: how many sampled positions' logits exist at once, and
    how large they may be together; the lesser counts. checkpointed: keep only the layers' inputs for the way back.
    share: whether prefixes may be computed once. precision: "bfloat16" computes matrix products and attention in it
    (torch's autocast); weights, their gradients and what is made of logits stay as they are.
    shares_prefixes: whether they are, because the model computes a forest of tokens exactly; blocks: whether its
    attention then computes only what is seen.

    Raises ValueError where `checkpointed` is wanted of a model that cannot, or that says something else with it.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float = 1.0,
        chunk: int = 1024,
        logits_mib: int = 256,
        checkpointed: bool = False,
        share: bool = True,
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; a learner needs a distribution, so it must be above 0")
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; at least 1 position is scored at a time")
        self.model, self.temperature, self.chunk, self.logits_mib = model, temperature, chunk, logits_mib
        self._tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2  # of bfloat16's 8 bits
        self._layers: list[Any] = []
        self._mixed = False  # what is tried below is tried in the precision of the weights, which tells more
        self._eyes = eyes_of(model)
        share = share and self._eyes is None
        self._after = self._head_after()
        self.blocks = share and not _windowed(model) and self._attends_in_blocks()
        self.shares_prefixes = self.blocks or (share and not _windowed(model) and self._computes_trees())
        if checkpointed:
            self._layers = self._checkpointed()
        self._mixed = precision == "bfloat16"

    def score(self, batch: Batch, *, other: "Scorer | None" = None, asked: Asked | None = None) -> Scored:
        """Log-probabilities and entropies of the sampled tokens; differentiable.

        other, asked: another model over the same ids, and what is wanted of it. It gets no gradient.
        """
        if other is None or asked is None:
            return self.choose(batch, self.states(batch))
        with torch.no_grad():
            beside = other.states(batch)
        return self.choose(batch, self.states(batch), other=(other, beside), asked=asked)

    @contextmanager
    def apart(self) -> Iterator[Any]:
        """The model, its weights as the optimiser has them."""
        yield self.model

    def states(self, batch: Batch) -> Tensor:
        """At every position [B*L, ...]: the last hidden state, or the logits where the head must not be cut off."""
        model = self.model if self._after is None else self.model.base_model
        with self._keeping_less(), self._computing():
            found = model(**self._inputs(batch), use_cache=False)
        return (found.logits if self._after is None else found.last_hidden_state).flatten(0, 1)  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """The last hidden state at every position [B*L, H], whatever the head; logits where there is no body."""
        body = self.model.base_model
        with self._keeping_less(), self._computing():
            found = body(**self._inputs(batch), use_cache=False)
        return (found.logits if body is self.model else found.last_hidden_state).flatten(0, 1)  # type: ignore[no-any-return]

    def logits(self, states: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """Logits (divided by the temperature) of some states, over the ids of `vocabulary` or over all ids."""
        if self._after is None:
            chosen = states if vocabulary is None else states[:, vocabulary]
            return self._sayable(chosen.float() / self.temperature, vocabulary)
        head = self.model.get_output_embeddings()
        weight, bias = head.weight, getattr(head, "bias", None)
        if vocabulary is not None:
            weight, bias = weight[vocabulary], None if bias is None else bias[vocabulary]
        with self._computing():
            made = self._after(torch.nn.functional.linear(states, weight, bias))
        made = _float(made) / self.temperature
        return self._sayable(made, vocabulary)

    def _sayable(self, logits: Tensor, vocabulary: Tensor | None) -> Tensor:
        """Without mass on ids that stand for images, as the sampler has it."""
        if self._eyes is None or vocabulary is not None:
            return logits
        closed = torch.tensor(self._eyes.unsayable, device=logits.device)
        return logits.index_fill(-1, closed, -torch.inf)

    def choose(
        self, batch: Batch, states: Tensor, *, other: "tuple[Scorer, Tensor] | None" = None,
        asked: Asked | None = None,
    ) -> Scored:  # fmt: skip
        """Score the sampled tokens, given what `states` returned for the batch; other: another model's."""
        limited, there = batch.restricted, states.index_select(0, batch.where)
        beside = None if other is None else other[1].index_select(0, batch.where)
        parts = []
        for piece, vocabulary, targets, choices in (
            (slice(0, limited), batch.vocabulary, batch.slots, batch.open_RU),
            (slice(limited, None), None, batch.targets[limited:], None),
        ):
            if len(targets):
                second = (
                    (beside[piece], partial(other[0].logits, vocabulary=vocabulary))
                    if other is not None and beside is not None else None
                )  # fmt: skip
                parts.append(
                    in_chunks(
                        there[piece], targets, partial(self.logits, vocabulary=vocabulary),
                        chunk=self._at_once(vocabulary), open_KV=choices, other=second, asked=asked,
                    )
                )  # fmt: skip
        if len(parts) == 1:
            return parts[0]
        names = Scored.__slots__
        return Scored(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _at_once(self, vocabulary: Tensor | None) -> int:
        """Of how many positions the logits are made at a time: `positions_at_once` for this model."""
        width = self.model.config.get_text_config().vocab_size if vocabulary is None else len(vocabulary)
        return positions_at_once(self.chunk, self.logits_mib, width)

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        if batch.images:
            return {"input_ids": batch.ids, **self._sights(batch)}
        if batch.forest is None or batch.positions is None:
            return {"input_ids": batch.ids}
        found: dict[str, Any] = {"input_ids": batch.ids, "position_ids": batch.positions}
        if self.blocks:
            # four dimensions: the library makes no mask of its own then
            return found | {"attention_mask": batch.ids.new_zeros(1, 1, 1, 1), KEYWORD: batch.forest}
        mask = torch.zeros(len(batch.forest.ids), len(batch.forest.ids), dtype=self.model.dtype)
        mask = mask.masked_fill_(~batch.forest.sees(), -torch.inf)
        return found | {"attention_mask": mask[None, None].to(batch.ids.device)}

    def _sights(self, batch: Batch) -> dict[str, Any]:
        """What a model that sees takes beside ids. Raises ValueError for one that reads text only."""
        if self._eyes is None:
            raise ValueError("a row shows images, and this model reads text only: it has no processor")
        given: dict[str, Any] = self._eyes.inputs([image for images in batch.images for image in images])
        rows = zip(batch.ids.tolist(), batch.images, strict=True)
        positions = [self._eyes.positions(ids, images) for ids, images in rows]
        if positions[0] is not None:
            given["position_ids"] = torch.stack([one for one in positions if one is not None], dim=1)
        return given

    @torch.no_grad()
    def _head_after(self) -> Callable[[Tensor], Tensor] | None:
        """What the model does with its output layer's result, of the known ways; None where it is none of them."""
        head, body = self.model.get_output_embeddings(), self.model.base_model
        if head is None or body is self.model:
            return None
        probe = padded(_probe(self.model), device=str(self.model.device))
        whole = self.model(input_ids=probe.ids, use_cache=False).logits.float()
        plain = head(body(input_ids=probe.ids, use_cache=False).last_hidden_state)
        for after in _ways(self.model.config):
            if torch.allclose(whole, after(plain).float(), atol=self._tolerance, rtol=self._tolerance):
                return after
        return None

    def _attends_in_blocks(self) -> bool:
        """Give the model attention over forests, and keep it where the result is that of rows side by side."""
        model = self.model
        before = getattr(model.config, "_attn_implementation", None)
        if before not in ("sdpa", IMPLEMENTATION):
            return False
        model.config._attn_implementation = IMPLEMENTATION
        self.blocks = True
        if self._computes_trees():
            return True
        model.config._attn_implementation = before
        return False

    @torch.no_grad()
    def _computes_trees(self) -> bool:
        """Whether a tree of tokens gives the same log-probabilities as its rows side by side."""
        rows, device = _probe(self.model), str(self.model.device)
        apart = self.score(padded(rows, device)).logprobs
        try:
            together = self.score(shared(rows, device)).logprobs
        except TorchDynamoException as error:  # of a GPU's flex_attention
            warnings.warn(
                f"flex_attention does not compile here ({' '.join(str(error).split())[:200]}): attention computes "
                "all pairs of a forest, seen or not; it needs Triton and a C compiler",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return False
        except Exception as error:
            if not says_cannot(error):
                raise
            return False  # this architecture takes no such input: rows are computed side by side
        return bool(torch.allclose(apart.float(), together.float(), atol=self._tolerance, rtol=self._tolerance))

    def _checkpointed(self) -> list[Any]:
        """The layers that keep only their inputs. Raises ValueError where the model has none, or changes by it."""
        layers = [module for module in self.model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers or not getattr(self.model, "supports_gradient_checkpointing", False):
            raise ValueError(
                f"{type(self.model).__name__} has no layers that can be checkpointed; set checkpoint = false"
            )
        probe = padded(_probe(self.model), device=str(self.model.device))
        plain = self.score(probe).logprobs.detach()
        for layer in layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        self._layers = layers
        again = self.score(probe).logprobs.detach()
        if not torch.allclose(plain, again, atol=self._tolerance, rtol=self._tolerance):
            raise ValueError(
                f"{type(self.model).__name__} drops out while it is checkpointed; set checkpoint = false"
            )
        return layers

    def _computing(self) -> AbstractContextManager[Any]:
        """Matrix products in bfloat16, where that is wanted.

        Nothing is kept for a second use of a weight: there is none, and all copies would be there at once.
        """
        device = self.model.device.type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self._mixed, cache_enabled=False)

    @contextmanager
    def _keeping_less(self) -> Iterator[None]:
        """The layers believe that they train, for so the library knows that they are to be checkpointed.

        Only they and not what they are made of, so no dropout begins; and only during the pass, for the sampler
        uses the same model.
        """
        before = [layer.training for layer in self._layers]
        for layer in self._layers:
            layer.training = True
        try:
            yield
        finally:
            for layer, was in zip(self._layers, before, strict=True):
                layer.training = was


def _float(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _ways(config: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """What models do with the output layer's result: nothing, a soft cap, a division, a multiplication."""
    yield lambda logits: logits
    if cap := getattr(config, "final_logit_softcapping", None):
        yield lambda logits: (logits / cap).tanh() * cap
    if scaling := getattr(config, "logits_scaling", None):
        yield lambda logits: logits / scaling
    if scale := getattr(config, "logit_scale", None):
        yield lambda logits: logits * scale


def _windowed(model: Any) -> bool:
    """Whether some layer sees only the last tokens: a mask that we give the model would undo that unseen."""
    config = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any("sliding" in kind or "chunked" in kind for kind in kinds)
    window = getattr(config, "sliding_window", None)
    return window is not None and getattr(config, "use_sliding_window", True) is not False


def _probe(model: Any) -> list[Row]:
    """Two rows that share a prefix, of ids every vocabulary has."""
    rng = np.random.default_rng(0)
    top = min(256, model.config.get_text_config().vocab_size)
    prefix = rng.integers(0, top, 9).astype(np.int32)
    rows = []
    for number, tail in enumerate((7, 4)):
        ids = np.concatenate([prefix, rng.integers(0, top, tail).astype(np.int32)])
        count = tail - 1
        zeros = np.zeros(count, np.float32)
        at = np.arange(len(ids) - count, len(ids), dtype=np.int32)
        rows.append(Row(str(number), "probe", ids, at, zeros, zeros, zeros, (None,) * count))
    return rows
