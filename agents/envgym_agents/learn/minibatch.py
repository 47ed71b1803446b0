"""All tokens of a minibatch as tensors of one value each, and their credit made ready first.

What is said of whole episodes, groups or steps (prices, scales, outliers, who is imitated) is settled here with
numbers that do not depend on the model in training, so an update may then be computed in parts of any size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.losses import penalties
from envgym_agents.learn.losses.distillation import teaching
from envgym_agents.learn.losses.divergence import k1, to_go
from envgym_agents.learn.losses.imitation import best_of_groups
from envgym_agents.learn.losses.objective import Tokens
from envgym_agents.learn.losses.policy import advantage_filter
from envgym_agents.learn.losses.units import standardised
from envgym_agents.learn.pack import Row

__all__ = ["DEMONSTRATION", "OBSERVATION", "POLICY", "Ready", "gathered", "observed", "priced", "scaled"]

POLICY, OBSERVATION, DEMONSTRATION = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A row with what is known of its tokens before the first update; arrays [K] as in the row.

    stream: 0 what the policy sampled, 1 what the world answered, 2 what the expert did. old, reference:
    log-probabilities of the policy that ratios compare with, and of the model that RL began with; nan where not
    asked.
    """

    row: Row
    group: int
    stream: NDArray[np.int8]
    old: NDArray[np.float32]
    reference: NDArray[np.float32]

    @classmethod
    def of(cls, row: Row, group: int, stream: int = POLICY) -> "Ready":
        """A row as it was sampled."""
        unknown = np.full(len(row.at), np.nan, np.float32)
        return cls(row, group, np.full(len(row.at), stream, np.int8), row.logprobs, unknown)


def observed(ready: Ready) -> Ready:
    """The row with what the world answered as targets too, after its first sampled token; they get no credit.

    What stands before is the task, or another episode's history.
    """
    row = ready.row
    others = np.setdiff1d(np.arange(row.at[0] + 1, len(row.ids), dtype=np.int32), row.at)
    if not len(others):
        return ready
    zeros = np.zeros(len(others), np.float32)
    return Ready(
        replace(
            row, at=np.concatenate([row.at, others]), logprobs=np.concatenate([row.logprobs, zeros]),
            credit=np.concatenate([row.credit, zeros]), weights=np.concatenate([row.weights, zeros]),
            allowed=(*row.allowed, *[None] * len(others)),
            turn=np.concatenate([row.turn, np.full(len(others), -1, np.int32)]) if len(row.turn) else row.turn,
        ),
        ready.group,
        np.concatenate([ready.stream, np.full(len(others), OBSERVATION, np.int8)]),
        np.concatenate([ready.old, zeros]),
        np.concatenate([ready.reference, zeros]),
    )  # fmt: skip


def priced(
    groups: Sequence[Sequence[Row]], config: Reinforce, multipliers: Mapping[str, float]
) -> tuple[list[list[Row]], dict[str, float], dict[str, float]]:
    """Rows whose credit has paid for length and costs; the multipliers of the next step; metrics.

    One price per episode, the same for each of its tokens. Without prices the rows are what they were.
    """
    prices = config.loss.prices
    if not (prices.length or prices.costs or prices.limits):
        return [list(rows) for rows in groups], dict(multipliers), {}
    number: dict[tuple[int, str], int] = {}
    rows = [(index, row) for index, group in enumerate(groups) for row in group]
    for index, row in rows:
        number.setdefault((index, row.episode), len(number))
    group = [index for index, _ in number]
    lengths, earned = np.zeros(len(number)), np.zeros(len(number))
    costs = {name: np.zeros(len(number)) for name in (*prices.costs, *prices.limits)}
    for index, row in rows:
        here = number[index, row.episode]
        lengths[here] += len(row.at)
        earned[here] = row.earned
        for name in costs:
            costs[name][here] = row.costs.get(name, 0.0)
    paid = -prices.length * penalties.relative(_length(lengths, earned, group, config), group)
    for name, price in prices.costs.items():
        paid -= price * penalties.relative(costs[name], group)
    limited = {name: costs[name] for name in prices.limits}
    factor = 1.0 / (1.0 + sum(multipliers.get(name, 0.0) for name in limited))
    paid = paid * factor + penalties.constrained(np.zeros(len(number)), limited, multipliers, group)
    after = [[replace(row, credit=(row.credit * factor + paid[number[index, row.episode]]).astype(np.float32))
              for row in group_rows] for index, group_rows in enumerate(groups)]  # fmt: skip
    means = {name: float(values.mean()) for name, values in costs.items()}
    following = penalties.updated(multipliers, means, prices.limits, lr=prices.limits_lr, most=prices.limits_most)
    shown = {f"price_{name}": multipliers.get(name, 0.0) for name in prices.limits}
    shown |= {f"paid_{name}": value for name, value in means.items()} | {"paid_length": float(lengths.mean())}
    return after, following, shown


def _length(
    lengths: NDArray[np.float64], earned: NDArray[np.float64], group: Sequence[int], config: Reinforce
) -> NDArray[np.float64]:
    prices = config.loss.prices
    if prices.length_kind == "overlong":
        return penalties.overlong(lengths, free=prices.length_free, most=prices.length_most)
    if prices.length_kind == "group":
        return penalties.kimi_length(lengths, earned, group)
    return penalties.per_token(lengths, price=1.0)


def scaled(rows: Sequence[Ready], config: Reinforce) -> tuple[list[Ready], dict[str, float]]:
    """Rows whose credit is as the loss asks: a teacher's, less the divergence as a cost, scaled, filtered, clipped.

    All over the tokens of the whole step, in that order. An outlier's weight becomes 0, and those of the others
    stay.
    """
    loss, metrics = config.loss, dict[str, float]()
    in_credit = loss.kl > 0 and loss.divergence.place == "credit"
    if not (
        in_credit or loss.teaches_by_credit or loss.credit_scale != "none" or loss.credit_clip or loss.credit_filter
    ):
        return list(rows), metrics
    own = [ready for ready in rows if (ready.stream == POLICY).any()]
    mine = [ready.stream == POLICY for ready in own]
    credit = torch.from_numpy(np.concatenate([r.row.credit[m] for r, m in zip(own, mine, strict=True)])).double()
    weights = torch.from_numpy(np.concatenate([r.row.weights[m] for r, m in zip(own, mine, strict=True)])).double()
    old, reference = (
        torch.from_numpy(np.concatenate([getattr(r, name)[m] for r, m in zip(own, mine, strict=True)])).double()
        for name in ("old", "reference")
    )
    if loss.teaches_by_credit:
        credit = teaching(old, reference) + loss.distill.outcome * credit
    if in_credit:
        cost = to_go(k1(old, reference), torch.from_numpy(_episodes(own, mine)))
        credit = credit - loss.kl * cost
        metrics["kl_cost"] = float((weights * cost).sum() / weights.sum())
    deviations = standardised(credit, weights)
    if loss.credit_filter is not None:
        kept = advantage_filter(deviations, most=loss.credit_filter)
        metrics["outliers"] = float((weights * ~kept).sum() / weights.sum())
        weights = weights * kept
    if loss.credit_scale == "std":
        credit = deviations
    if loss.credit_clip is not None:
        metrics["credit_clipped"] = float((weights * (credit.abs() > loss.credit_clip)).sum() / weights.sum())
        credit = credit.clamp(-loss.credit_clip, loss.credit_clip)
    return _written(rows, credit.float().numpy(), weights.float().numpy()), metrics


def _episodes(rows: Sequence[Ready], mine: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    names: dict[tuple[int, str], int] = {}
    return np.concatenate([
        np.full(int(chosen.sum()), names.setdefault((ready.group, ready.row.episode), len(names)), np.int64)
        for ready, chosen in zip(rows, mine, strict=True)
    ])  # fmt: skip


def _written(rows: Sequence[Ready], credit: NDArray[np.float32], weights: NDArray[np.float32]) -> list[Ready]:
    found, start = [], 0
    for ready in rows:
        mine = ready.stream == POLICY
        count = int(mine.sum())
        new_credit, new_weights = ready.row.credit.copy(), ready.row.weights.copy()
        new_credit[mine], new_weights[mine] = credit[start : start + count], weights[start : start + count]
        start += count
        found.append(replace(ready, row=replace(ready.row, credit=new_credit, weights=new_weights)))
    return found


def gathered(rows: Sequence[Ready], config: Reinforce, total: float, device: str) -> Tokens:
    """One value per token of a minibatch; what the model says of them is still missing (zeros).

    total: the sum of the policy's weights before any was left out, so that leaving out does not weigh up the rest.
    """

    def joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(pieces)

    stream = joined([ready.stream for ready in rows])
    episode = _episodes(rows, [np.ones(len(ready.stream), np.bool_) for ready in rows])
    credit = joined([ready.row.credit for ready in rows])
    mine = stream == POLICY
    weights = joined([ready.row.weights for ready in rows]) / total * mine
    turn, context = _turns(rows)
    group = joined([np.full(len(ready.stream), ready.group) for ready in rows])
    means = np.bincount(episode, credit * mine) / np.maximum(np.bincount(episode, mine), 1)
    if config.loss.kind in ("raft", "expert-iteration"):
        weights = _chosen(weights, means, episode, group, mine, config)
    empty = np.zeros(len(stream), np.float32)
    values = {
        "sampled": joined([ready.row.logprobs for ready in rows]), "old": joined([ready.old for ready in rows]),
        "reference": joined([ready.reference for ready in rows]), "credit": credit, "weights": weights,
        "imitation": _per_episode(mine & (means > 0)[episode], episode),
        "observation": _per_episode(stream == OBSERVATION, episode),
        "demonstration": _per_episode(stream == DEMONSTRATION, episode),
        "logprobs": empty, "entropy": empty, "divergence": empty,
    }  # fmt: skip
    numbers = {"episode": episode, "turn": turn, "group": group, "context": context}
    tensors = {name: torch.from_numpy(np.asarray(value, np.float32)).to(device) for name, value in values.items()}
    tensors |= {name: torch.from_numpy(np.asarray(value, np.int64)).to(device) for name, value in numbers.items()}
    inside = torch.ones(len(stream), dtype=torch.bool, device=device)
    return Tokens(**tensors, policy=torch.from_numpy(mine).to(device), inside=inside)


def _per_episode(chosen: NDArray[np.bool_], episode: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights of the chosen tokens: every episode that has some the same, all together 1 (or 0)."""
    count = np.bincount(episode, chosen)
    found: NDArray[np.float64] = np.where(chosen, 1.0 / np.maximum(count, 1)[episode], 0.0) / max(
        (count > 0).sum(), 1
    )
    return found


def _chosen(
    weights: NDArray[np.float32], means: NDArray[np.float64], episode: NDArray[np.int64],
    group: NDArray[np.int64], mine: NDArray[np.bool_], config: Reinforce,
) -> NDArray[np.float64]:  # fmt: skip
    """The weights of the episodes that are imitated, so that they sum to 1."""
    which = np.unique(episode[mine])
    groups = np.zeros(len(means), np.int64)
    groups[episode] = group
    least = config.loss.least if config.loss.kind == "expert-iteration" else None
    good = np.zeros(len(means), np.bool_)
    good[which] = best_of_groups(means[which].tolist(), groups[which].tolist(), least=least)
    kept: NDArray[np.float64] = np.asarray(weights * good[episode], np.float64)
    return kept / kept.sum() if kept.sum() > 0 else kept


def _turns(rows: Sequence[Ready]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each token's turn, and of the context that it began in: equal where all ids before are."""
    turns: dict[tuple[int, str, int], int] = {}
    contexts: dict[bytes, int] = {}
    found: list[tuple[int, int]] = []
    for ready in rows:
        row, begins = ready.row, dict[int, int]()
        numbers = row.turn if len(row.turn) else np.zeros(len(row.at), np.int32)
        for place, number in zip(row.at.tolist(), numbers.tolist(), strict=True):
            begins.setdefault(number, place)
        known = {
            number: contexts.setdefault(row.ids[:place].tobytes(), len(contexts))
            for number, place in begins.items()
        }
        for number in numbers.tolist():
            turn = turns.setdefault((ready.group, row.episode, number), len(turns))
            found.append((turn, known[number]))
    numbered = np.array(found, np.int64).reshape(-1, 2)
    return numbered[:, 0], numbered[:, 1]
