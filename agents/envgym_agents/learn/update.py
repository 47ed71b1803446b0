"""One RL step's learning: a few epochs of updates over groups of rows, each descending the configured objective.

Gradients are accumulated over batches of bounded size, and the update is that of the whole minibatch however it is
cut: a loss of separate tokens is summed up, one that couples them (ratios of episodes, preferences, shares of all
tokens) sees all their values first and sends its gradient back through the same batches. Whole groups stay in one
minibatch: their credits sum to zero there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envgym_agents.learn.adapters import adapted, merged_weights
from envgym_agents.learn.checkpoint import State, load_checkpoint, save_checkpoint
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.head import Asked, Scored
from envgym_agents.learn.learns import Imitated
from envgym_agents.learn.losses.correction import diagnose
from envgym_agents.learn.losses.imitation import negative_likelihood
from envgym_agents.learn.losses.objective import Objective, Tokens
from envgym_agents.learn.minibatch import DEMONSTRATION, Ready, gathered, observed, priced, scaled
from envgym_agents.learn.pack import Batch, Row, batches, placed, weighed_once
from envgym_agents.learn.ranks import Ranks
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.shard import Divided, whole
from envgym_agents.learn.teacher import Teacher, told

__all__ = ["Learner", "adamw"]

_Parts = list[tuple[Batch, Tensor]]


def adamw(model: torch.nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over everything that trains; only matrices decay."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in trained if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in trained if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


@dataclass(slots=True)
class Learner:
    """A model in training: how it is scored, its optimiser, and the bounds of one forward pass.

    reference: the model that `Loss.kl` holds the policy near, the teacher of "distill", or None. teacher: in the
    place of it, one that is asked for the log-probabilities of ids. demonstrations:
    rows of the expert's episodes, for the stream of that name. ranks: which of the processes that share the work
    this one is; with more than one, each calls the same methods with the same values, and the scorers are
    `Divided`. tokenizer: is laid beside the weights in checkpoints. masking: the policy as it was some updates ago,
    where the loss's mask is renewed; else the reference masks.
    """

    scorer: Any  # Scorer, or Divided among `ranks`
    optimizer: torch.optim.Optimizer
    max_tokens: int = 8192
    device: str = "cpu"
    reference: Scorer | Divided | None = None
    teacher: Teacher | None = None
    demonstrations: Sequence[Row] = field(default_factory=tuple)
    ranks: Ranks = field(default_factory=Ranks)
    tokenizer: Any = None
    masking: Scorer | None = None

    @property
    def masks(self) -> Mapping[str, Tensor] | None:
        """The masking policy's weights, where it is renewed; a sampler with such a mask takes them."""
        return None if self.masking is None else self.masking.model.state_dict()

    def update(
        self, groups: Sequence[Sequence[Row]], config: Reinforce, rng: np.random.Generator, *, lr: float
    ) -> dict[str, float]:
        """Update the model in place; returns metrics.

        A minibatch is some whole groups. Loss, entropy and KL are weighted means over its sampled tokens, the
        weights divided by their total in this minibatch: with a weight of 1 an episode (``token_share="episode"``),
        the mean over its episodes of the mean over their tokens. Every minibatch is one step of the optimiser, so
        an episode in a smaller one weighs more. What is returned is the plain mean over the minibatches of all
        epochs.

        `sampler_gap` is the largest difference between a log-probability as sampled and as computed here, before
        the first update: what the exactness of the token path amounts to. `mismatch_*` and `ess_*` say the same of
        that moment, see `correction.diagnose`.

        Raises ValueError where the configuration asks for a reference or demonstrations that the learner has not.
        """
        self._check(config)
        for part in self.optimizer.param_groups:
            part["lr"] = lr
        totals = [float(sum(row.weights.sum() for row in rows)) for rows in groups]
        ready, prepared = self._prepared(groups, config)
        found: list[dict[str, float]] = []
        for _ in range(config.epochs):
            order = rng.permutation(len(groups))
            for chosen in np.array_split(order, min(config.minibatches, len(groups))):
                rows = [row for index in sorted(chosen.tolist()) for row in ready[index]]
                total = sum(totals[index] for index in chosen.tolist())
                found.append(self._minibatch(rows + self._demonstrated(config, rng), config, total))
        first = {name for name in found[0] if name.startswith(("sampler_gap", "mismatch_", "ess_"))}
        names = {name for metrics in found for name in metrics} - first
        means = {name: float(np.mean([one[name] for one in found if name in one])) for name in sorted(names)}
        return {
            **means, **prepared, **{name: found[0][name] for name in sorted(first)}, "updates": float(len(found)),
            **self._renewed(config),
        }  # fmt: skip

    def imitate(self, rows: Sequence[Row], *, lr: float) -> Imitated:
        """Descend once the negative log-likelihood of the rows' tokens, by their weights; returns it.

        Of the tokens whose credit is 1, which are what was chosen; those of credit 0 are learned, not told of.
        """
        for part in self.optimizer.param_groups:
            part["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        said = torch.zeros((), dtype=torch.float64)
        for batch, counts in self.ranks.own(self._together(rows)):
            losses = batch.weights * negative_likelihood(self.scorer.score(batch).logprobs) / len(rows)
            (losses.sum() * counts).backward()  # type: ignore[no-untyped-call]
            said += counts * float((losses.detach() * batch.credit).sum())
        norm = self._descend(1.0)
        return Imitated(float(self.ranks.total(said)), not np.isfinite(norm))

    @torch.no_grad()
    def validate(self, rows: Sequence[Row]) -> tuple[float, float]:
        """Mean over episodes of the negative log-likelihood of their tokens, and of hitting them greedily."""
        found = torch.zeros(2, dtype=torch.float64)
        for batch, counts in self.ranks.own(self._together(rows)):
            scored = self.scorer.score(batch)
            for place, value in enumerate((-scored.logprobs, scored.best)):
                found[place] += counts * float((batch.weights * value).sum())
        loss, hits = (self.ranks.total(found) / sum(float(row.weights.sum()) for row in rows)).tolist()
        return loss, hits

    def save(
        self, folder: Path, step: int, progress: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint of the model, the optimiser and what else is given; see `checkpoint`."""
        with self._at_rest() as model:
            state = State.of(model, self.optimizer, keep=self.ranks.rank == 0)
        if self.ranks.rank == 0:
            save_checkpoint(
                folder, step, state, progress=progress, beside=beside, tokenizer=self.tokenizer, masks=self.masks
            )

    def load(
        self, path: Path, *, state: bool = True, beside: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Go back to a checkpoint and return its progress. state: the optimiser's too, not the weights alone."""
        with self._at_rest() as model:
            masks = None if self.masking is None else self.masking.model.load_state_dict
            optimizer = self.optimizer if state else None
            return load_checkpoint(path, model=model, optimizer=optimizer, beside=beside, masks=masks)

    def _renewed(self, config: Reinforce) -> dict[str, float]:
        """Let the policy as it is now mask from here on, if it is time, and tell it. {}: no mask is renewed."""
        if self.masking is None:
            return {}
        state = self.optimizer.param_groups[0]  # where checkpoints keep it
        since = state.get("since_mask", 0) + 1
        due = since >= config.loss.mask.renew_every
        if due:
            model = self.scorer.model
            self.masking.model.load_state_dict(merged_weights(model) if adapted(model) else model.state_dict())
        state["since_mask"] = 0 if due else since
        return {"mask_renewed": float(due)}

    @property
    def other(self) -> Scorer | Divided | None:
        """The model whose whole distributions are asked beside the policy's: who masks, or the reference."""
        return self.reference if self.masking is None else self.masking

    def _at_rest(self) -> AbstractContextManager[Any]:
        return self.scorer.apart()  # type: ignore[no-any-return]

    def _together(self, rows: Sequence[Row]) -> list[Batch]:
        """The rows of any tasks, what they begin with alike computed and learned once (the tools' descriptions).

        Of several processes: side by side, in about as many batches as there are processes, or more.
        """
        if self.ranks.size > 1 or not self.scorer.shares_prefixes:
            most = self.ranks.bound([len(row.ids) for row in rows], self.max_tokens)
            return batches(rows, max_tokens=most, share_prefixes=False, device=self.device)
        alike = [replace(row, key="") for row in rows]
        found = batches(
            alike, max_tokens=self.max_tokens, share_prefixes=True, device=self.device, blocks=self.scorer.blocks
        )
        return [weighed_once(batch) for batch in found]

    def _descend(self, longest: float) -> float:
        """One step of the optimiser, if its gradient is finite; returns how long that was before it was cut.

        longest: 0 cuts none.
        """
        weights = [weight for part in self.optimizer.param_groups for weight in part["params"]]
        norm = float(whole(torch.nn.utils.clip_grad_norm_(weights, longest or torch.inf)))
        if np.isfinite(norm):
            self.optimizer.step()
        return norm

    def _check(self, config: Reinforce) -> None:
        if config.loss.wants_reference and self.reference is None and self.teacher is None:
            raise ValueError(
                "the configured loss asks a reference model, and the learner has none: give `reference`"
            )
        if config.loss.streams.demonstrations and not self.demonstrations:
            raise ValueError(
                "loss.streams.demonstrations is above 0, and there are no demonstrations: the expert must have "
                "episodes to imitate (warm_start.episodes_per_task)"
            )

    def _prepared(
        self, groups: Sequence[Sequence[Row]], config: Reinforce
    ) -> tuple[list[list[Ready]], dict[str, float]]:
        """The rows of each group with everything that is settled before the first update."""
        state = self.optimizer.param_groups[0]  # where checkpoints keep it
        paid, following, metrics = priced(groups, config, state.get("multipliers", {}))
        if following:
            state["multipliers"] = following
        rows = [Ready.of(row, index) for index, group in enumerate(paid) for row in group]
        if config.loss.streams.observation:
            rows = [observed(ready) for ready in rows]
        asked, reference = self._asked(config), self.reference
        if config.loss.old == "recomputed":
            rows = self._said(rows, self.scorer, "old", asked if asked.top_p < 1 else None)
        if config.loss.wants_reference and self.teacher is not None:
            answers = told(self.teacher, [ready.row for ready in rows])
            rows = [replace(ready, reference=said) for ready, said in zip(rows, answers, strict=True)]
        elif config.loss.wants_reference and reference is not None:
            rows = self._said(rows, reference, "reference", None)
        rows, scales = scaled(rows, config)
        found: list[list[Ready]] = [[] for _ in groups]
        for ready in rows:
            found[ready.group].append(ready)
        return found, metrics | scales

    @torch.no_grad()
    def _said(self, rows: Sequence[Ready], scorer: Any, name: str, asked: Asked | None) -> list[Ready]:
        """The rows with what a model says of their tokens now."""
        values = torch.zeros(sum(len(ready.row.at) for ready in rows))
        for (batch, number), counts in self.ranks.own(self._parts([ready.row for ready in rows])):
            scored = scorer.score(batch, other=self.other if asked else None, asked=asked)
            if counts:
                values[number] = scored.logprobs.float().cpu()
        values = self.ranks.total(values)
        pieces = torch.split(values, [len(ready.row.at) for ready in rows])
        fields: list[dict[str, Any]] = [{name: piece.numpy()} for piece in pieces]
        return [replace(ready, **one) for ready, one in zip(rows, fields, strict=True)]

    def _demonstrated(self, config: Reinforce, rng: np.random.Generator) -> list[Ready]:
        streams = config.loss.streams
        if not streams.demonstrations:
            return []
        count = min(streams.demonstrations_rows, len(self.demonstrations))
        chosen = np.sort(rng.choice(len(self.demonstrations), count, replace=False))
        return [Ready.of(self.demonstrations[number], -1, DEMONSTRATION) for number in chosen]

    def _asked(self, config: Reinforce) -> Asked:
        loss = config.loss
        if loss.teaches_whole:
            return Asked(divergence=loss.distill.kind)
        return Asked(divergence=loss.divergence.kind if loss.asks_whole else None, top_p=loss.mask.top_p)

    def _parts(self, rows: Sequence[Row]) -> _Parts:
        def cut(most: int) -> _Parts:
            return placed(
                rows, max_tokens=most, share_prefixes=self.scorer.shares_prefixes, device=self.device,
                blocks=self.scorer.blocks,
            )  # fmt: skip

        parts = cut(self.max_tokens)
        if len(parts) >= self.ranks.size:
            return parts
        return cut(
            max(max(len(row.ids) for row in rows), sum(batch.tokens for batch, _ in parts) // self.ranks.size)
        )

    def _minibatch(self, rows: Sequence[Ready], config: Reinforce, total: float) -> dict[str, float]:
        objective, tokens = Objective(config), gathered(rows, config, total, self.device)
        parts = self._parts([ready.row for ready in rows])
        self.optimizer.zero_grad(set_to_none=True)
        if len(parts) == 1 or objective.separable:
            sums, now = self._summed(parts, tokens, objective)
        else:
            sums, now = self._coupled(parts, tokens, objective)
        norm = self._descend(config.max_grad_norm)
        own = tokens.policy
        gap = float((now[own] - tokens.sampled[own]).abs().max())
        found = diagnose(now[own], tokens.sampled[own], weights=tokens.weights[own], episode=tokens.episode[own])
        return {
            **{name: float(value) for name, value in sums.items()}, **found,
            "grad_norm": norm, "skipped": float(not np.isfinite(norm)), "sampler_gap": gap,
            "positions": float(sum(batch.tokens for batch, _ in parts)),
        }  # fmt: skip

    def _scored(self, batch: Batch, objective: Objective) -> Scored:
        asked = self._asked(objective.config)  # type: ignore[arg-type]
        if asked == Asked():
            return self.scorer.score(batch)  # type: ignore[no-any-return]
        return self.scorer.score(batch, other=self.other, asked=asked)  # type: ignore[no-any-return]

    def _summed(self, parts: _Parts, tokens: Tokens, objective: Objective) -> tuple[dict[str, Tensor], Tensor]:
        """Backward through each part by itself; sums of metrics, and log-probabilities [K] before the update.

        Of what a mask shuts out, as they were sampled: of that nothing can be said.
        """
        sums: dict[str, Tensor] = {}
        now = torch.zeros_like(tokens.logprobs)
        for (batch, number), counts in self.ranks.own(parts):
            scored, number = self._scored(batch, objective), number.to(self.device)
            loss, metrics = objective(_with(tokens.only(number), scored))
            (loss * counts).backward()  # type: ignore[no-untyped-call]
            said = torch.where(scored.inside, scored.logprobs.detach().to(now), tokens.sampled[number])
            now[number] += counts * said
            for name, value in metrics.items():
                sums[name] = sums.get(name, torch.zeros(())) + counts * value.cpu()
        return {name: self.ranks.total(value) for name, value in sums.items()}, self.ranks.total(now)

    def _coupled(self, parts: _Parts, tokens: Tokens, objective: Objective) -> tuple[dict[str, Tensor], Tensor]:
        """All values first, without gradient; the loss of them; then its gradient at each value through each part.

        The chain rule, nothing else: the gradient is that of one pass over everything, at the price of a second
        one.
        Source: gradient caching, Gao et al. 2021 (arXiv 2101.06983).
        """
        size = len(tokens.logprobs)
        values = [torch.zeros(size, device=self.device) for _ in range(3)]
        outside = torch.zeros(size, device=self.device)
        with torch.no_grad():
            for (batch, number), counts in self.ranks.own(parts):
                scored, number = self._scored(batch, objective), number.to(self.device)
                found = (scored.logprobs, scored.entropy, scored.divergence, ~scored.inside)
                for value, part in zip((*values, outside), found, strict=True):
                    value[number] += counts * part.to(value)
        leaves = [self.ranks.total(value).requires_grad_() for value in values]
        inside = self.ranks.total(outside) == 0
        seen = replace(tokens, logprobs=leaves[0], entropy=leaves[1], divergence=leaves[2], inside=inside)
        loss, metrics = objective(seen)
        loss.backward()  # type: ignore[no-untyped-call]
        for (batch, number), counts in self.ranks.own(parts):
            scored, number = self._scored(batch, objective), number.to(self.device)
            through = torch.zeros((), device=self.device)
            for leaf, part in zip(leaves, (scored.logprobs, scored.entropy, scored.divergence), strict=True):
                if leaf.grad is not None and part.requires_grad:
                    through = through + (counts * leaf.grad[number].to(part) * part).sum()
            if through.requires_grad:
                through.backward()  # type: ignore[no-untyped-call]
        now = torch.where(inside, leaves[0].detach(), tokens.sampled)
        return {name: value.cpu() for name, value in metrics.items()}, now


def _with(tokens: Tokens, scored: Scored) -> Tokens:
    return replace(
        tokens, logprobs=scored.logprobs, entropy=scored.entropy, divergence=scored.divergence, inside=scored.inside
    )
