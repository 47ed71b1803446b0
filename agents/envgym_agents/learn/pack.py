"""Episodes become tensors: one row per context window, sampled positions kept apart from everything else.

A `Row` is one segment of one episode with the places that were sampled in it; a `Batch` is rows as tensors. Two
layouts give the same loss: *padded* (rows side by side, padding on the right, where a causal model cannot see
it) and *shared* (rows as a forest of tokens, nothing padded, every common prefix computed once). No model is run
here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envgym.env import Step
from envgym.episode import Episode, Turn
from envgym_agents.conversation import image_parts
from envgym_agents.learn.forest import Forest, cost, grown, side_by_side

__all__ = ["Batch", "Row", "batches", "padded", "placed", "rows_of", "shared", "weighed_once"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One context window of one episode; K of its L ids were sampled.

    key: rows with equal keys probably share a prefix (the task id).
    ids [L] int32; at [K] where the sampled ids are in it; logprobs [K] as sampled; credit [K]; weights [K], the
    share of each token in the loss (an episode's sum to the same whatever its length and rows).
    allowed: per sampled token the ids it was restricted to, or None.
    turn: of each the number of its turn in the episode's path; empty where nobody asks. earned, costs: of the whole
    episode, its reward and the sums of its steps' costs. images: the bytes of those that the ids show, in order.
    """

    episode: str
    key: str
    ids: NDArray[np.int32]
    at: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    credit: NDArray[np.float32]
    weights: NDArray[np.float32]
    allowed: tuple[tuple[int, ...] | None, ...]
    turn: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    earned: float = 0.0
    costs: Mapping[str, float] = field(default_factory=dict)
    images: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.at) and self.at[0] < 1:
            raise ValueError(
                f"episode {self.episode}: a token was sampled at position 0, with nothing before it to condition on"
            )

    def weighted(self, factor: float) -> "Row":
        """This row with its weights multiplied."""
        return replace(self, weights=self.weights * np.float32(factor))


def rows_of(
    episode: Episode,
    credit: NDArray[np.float32],
    *,
    history: Sequence[Turn] | None = None,
    root: Step | None = None,
    inherited: bool = False,
) -> list[Row]:
    """The rows of one episode, one per segment in which it sampled; its weights sum to 1.

    credit: one value per token that the episode's own turns sampled, in order. history: for a forked episode,
    `Group.path(episode)`, and root: `Group.root(episode)`, which may be left out where no step shows an image; the
    ancestors' tokens are context and do not train again, nor do those that a fork shares
    with the turn that it left in its middle: the parent sampled them. inherited: take the latter in, for who reads
    what models say of them and trains nothing.

    Raises ValueError when the number of credits is not the number of sampled tokens.
    """
    turns = tuple(history) if history is not None else episode.turns
    own_from = len(turns) - len(episode.turns)
    shared = 0 if episode.parent is None or inherited or not episode.turns else episode.parent.token
    shared = min(shared, len(turns[own_from].sampled_ids)) if shared else 0
    if len(credit) != episode.sampled_tokens:
        raise ValueError(
            f"episode {episode.id}: {len(credit)} credits for {episode.sampled_tokens} sampled tokens; "
            "a credit scheme gives one float per sampled token"
        )
    credit = credit[shared:]
    if not len(credit):
        return []
    segments: dict[int, list[_Member]] = {}
    for index, turn in enumerate(turns):
        skipped = len(turn.sampled_ids) if index < own_from else shared if index == own_from else 0
        segments.setdefault(turn.segment, []).append((turn, skipped, index))
    rows, start = [], 0
    for members in segments.values():
        count = sum(len(turn.sampled_ids) - skipped for turn, skipped, _ in members)
        if count:
            row = _row(episode, members, credit[start : start + count], 1.0 / len(credit))
            first = episode.root if root is None and own_from == 0 else root
            rows.append(replace(row, images=_images(episode, turns, members, first)))
        start += count
    return rows


_NO_STEP = Step()
_Member = tuple[Turn, int, int]
"""A turn, how many of its first sampled tokens do not train, and its number in the path."""


def _row(episode: Episode, members: list[_Member], credit: NDArray[np.float32], weight: float) -> Row:
    """members: the turns of one segment."""
    pieces: list[NDArray[np.int32]] = []
    at: list[int] = []
    number: list[int] = []
    logprobs: list[NDArray[np.float32]] = []
    allowed: list[tuple[int, ...] | None] = []
    length = 0
    for turn, skipped, index in members:
        pieces += [turn.prompt_ids, turn.sampled_ids]
        length += len(turn.prompt_ids)
        if len(turn.sampled_ids) > skipped:
            at += range(length + skipped, length + len(turn.sampled_ids))
            logprobs.append(turn.logprobs[skipped:])
            allowed += [turn.allowed, *[None] * (len(turn.sampled_ids) - 1)][skipped:]
            number += [index] * (len(turn.sampled_ids) - skipped)
        length += len(turn.sampled_ids)
    return Row(
        episode=episode.id,
        key=episode.task_id,
        ids=np.concatenate(pieces)[: at[-1] + 1],
        at=np.array(at, np.int32),
        logprobs=np.concatenate(logprobs),
        credit=np.asarray(credit, np.float32),
        weights=np.full(len(at), weight, np.float32),
        allowed=tuple(allowed),
        turn=np.array(number, np.int32),
        earned=episode.reward or 0.0,
        costs=_costs(episode),
    )


def _images(
    episode: Episode, turns: Sequence[Turn], members: list[_Member], root: Step | None
) -> tuple[bytes, ...]:
    """The images that a segment shows: what its turns were asked, and all before where it was laid out anew."""
    asked = [root or _NO_STEP, *(turn.step for turn in turns[:-1])]
    numbers = [index for _turn, _skipped, index in members]
    seen = [*range(numbers[0]), *numbers]
    found = []
    for step in (asked[index] for index in seen):
        for name in (part.sha256 for message in step.observation for part in image_parts(message)):
            if name not in step.images:
                raise ValueError(
                    f"episode {episode.id} shows image {name} and has no bytes of it: read it with "
                    "StoreReader.with_images"
                )
            found.append(step.images[name])
    return tuple(found)


def _costs(episode: Episode) -> dict[str, float]:
    found: dict[str, float] = {}
    for turn in episode.turns:
        for name, value in turn.step.cost.items():
            found[name] = found.get(name, 0.0) + value
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows as tensors.

    ids [B, L] int64. positions [B, L] int64 and forest (who sees whom) exist in the shared layout only, where B =
    1; without them, attention is plain causal.
    where [K]: index into the flattened [B*L] of the position that predicts each sampled token; targets [K];
    logprobs, credit, weights [K] float32. The first `restricted` of the K tokens were drawn from subsets of
    `vocabulary` [U] ids: open_RU [R, U] says which, `slots` [R] where the target is in it.
    order [K] int64: the place of each token among those of the rows, one row after the other.
    images [B]: of each row those that it shows; () where none shows any.
    """

    ids: Tensor
    positions: Tensor | None
    forest: Forest | None
    where: Tensor
    targets: Tensor
    logprobs: Tensor
    credit: Tensor
    weights: Tensor
    restricted: int
    vocabulary: Tensor
    open_RU: Tensor
    slots: Tensor
    order: Tensor
    images: tuple[tuple[bytes, ...], ...] = ()

    @property
    def tokens(self) -> int:
        """How many positions the model computes, padding included."""
        return int(self.ids.numel())


def padded(rows: Sequence[Row], device: str = "cpu") -> Batch:
    """Rows side by side, filled up on the right. The last id of a row predicts nothing and is left out."""
    inputs = [row.ids[:-1] for row in rows]
    length = max(map(len, inputs))
    ids = np.zeros((len(rows), length), np.int64)
    for number, piece in enumerate(inputs):
        ids[number, : len(piece)] = piece
    where = [number * length + row.at.astype(np.int64) - 1 for number, row in enumerate(rows)]
    made = _batch(rows, torch.from_numpy(ids), None, None, where, device)
    return replace(made, images=tuple(row.images for row in rows)) if any(row.images for row in rows) else made


def shared(rows: Sequence[Row], device: str = "cpu") -> Batch:
    """Rows as one forest of tokens (B = 1): a common prefix appears once, each token sees only its ancestors."""
    forest = grown([row.ids[:-1] for row in rows])
    where = [path[row.at - 1].astype(np.int64) for row, path in zip(rows, forest.paths, strict=True)]
    ids, depth = torch.from_numpy(forest.ids)[None], torch.from_numpy(forest.depth)[None]
    return _batch(rows, ids, depth, forest, where, device)


def _batch(
    rows: Sequence[Row],
    ids: Tensor,
    positions: Tensor | None,
    forest: Forest | None,
    where: Sequence[NDArray[np.int64]],
    device: str,
) -> Batch:
    allowed = [choice for row in rows for choice in row.allowed]
    order = np.argsort([choice is None for choice in allowed], kind="stable")  # restricted ones first
    restricted = sum(choice is not None for choice in allowed)
    targets = np.concatenate([row.ids[row.at] for row in rows]).astype(np.int64)[order]

    def gather(pieces: Iterable[NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(pieces))[order]).to(device)

    vocabulary, open_RU, slots = _choices([allowed[i] or () for i in order[:restricted]], targets[:restricted])
    return Batch(
        ids=ids.to(device),
        positions=None if positions is None else positions.to(device),
        forest=forest,
        where=gather(where),
        targets=torch.from_numpy(targets).to(device),
        logprobs=gather(row.logprobs for row in rows),
        credit=gather(row.credit for row in rows),
        weights=gather(row.weights for row in rows),
        restricted=restricted,
        vocabulary=torch.from_numpy(vocabulary).to(device),
        open_RU=torch.from_numpy(open_RU).to(device),
        slots=torch.from_numpy(slots).to(device),
        order=torch.from_numpy(order.astype(np.int64)),
    )


def weighed_once(batch: Batch) -> Batch:
    """The batch for a weighted sum of log-probabilities: equal targets at one place are one, of their joint weight.

    Its credit is the mean by weight, so that a sum of weight times credit stays, too. Tokens that were drawn from
    subsets stay as they are; `order` and `logprobs` are those of the first of each.
    """
    keys = torch.stack([batch.where, batch.targets])[:, batch.restricted :]
    number = torch.unique(keys, dim=1, return_inverse=True)[1] + batch.restricted
    number = torch.cat([torch.arange(batch.restricted, device=number.device), number])
    count = int(number.max()) + 1 if len(number) else 0
    if count == len(number):
        return batch
    places = torch.arange(len(number), device=number.device)
    first = places.new_full((count,), len(number)).scatter_reduce(0, number, places, "amin")
    weights, earned = (
        values.new_zeros(count).index_add(0, number, values)
        for values in (batch.weights, batch.weights * batch.credit)
    )
    return replace(
        batch, where=batch.where[first], targets=batch.targets[first], logprobs=batch.logprobs[first],
        order=batch.order[first.cpu()], weights=weights, credit=torch.where(weights > 0, earned / weights, 0.0),
    )  # fmt: skip


def _choices(
    allowed: Sequence[tuple[int, ...]], targets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """The union of the allowed sets, which of it each token could be, and where each target is in it."""
    flat = np.array([token for choice in allowed for token in choice], np.int64)
    owner = np.repeat(np.arange(len(allowed)), [len(choice) for choice in allowed])
    vocabulary, column = np.unique(flat, return_inverse=True)
    open_RU = np.zeros((len(allowed), len(vocabulary)), np.bool_)
    open_RU[owner, column] = True
    slots = np.searchsorted(vocabulary, targets)
    for index, (slot, target) in enumerate(zip(slots, targets, strict=True)):
        if slot >= len(vocabulary) or vocabulary[slot] != target or not open_RU[index, slot]:
            raise ValueError(f"token {target} was sampled although only {allowed[index][:8]}... were allowed")
    return vocabulary, open_RU, slots.astype(np.int64)


def batches(
    rows: Sequence[Row], *, max_tokens: int, share_prefixes: bool, device: str = "cpu", blocks: bool = True
) -> list[Batch]:
    """Cut rows into batches of at most `max_tokens` computed positions (a single longer row goes alone).

    With `share_prefixes`, rows become forests where that is less work than rows side by side; those of uneven
    length with nothing in common, too: one behind the other, without padding. blocks: whether the
    model's attention computes only what is seen there; else a forest costs the square of its size.
    The order is a function of the rows alone.
    """
    return [
        (shared if tree else padded)([rows[k] for k in part], device)
        for part, tree in _planned(rows, max_tokens, share_prefixes, blocks)
    ]


def placed(
    rows: Sequence[Row], *, max_tokens: int, share_prefixes: bool, device: str = "cpu", blocks: bool = True
) -> list[tuple[Batch, Tensor]]:
    """The same batches, each with the number [K] of its tokens among all sampled places of `rows` in order."""
    starts = np.cumsum([0, *(len(row.at) for row in rows)])
    found = []
    for part, tree in _planned(rows, max_tokens, share_prefixes, blocks):
        batch = (shared if tree else padded)([rows[k] for k in part], device)
        number = np.concatenate([np.arange(starts[k], starts[k + 1]) for k in part])
        found.append((batch, torch.from_numpy(number)[batch.order]))
    return found


def _planned(
    rows: Sequence[Row], max_tokens: int, share_prefixes: bool, blocks: bool
) -> list[tuple[list[int], bool]]:
    """The numbers of the rows of each batch, and whether they become a forest."""
    alone: list[int] = []
    trees: list[tuple[list[int], int]] = []
    share_prefixes = share_prefixes and not any(row.images for row in rows)  # places in space make no forest
    for members in _by_key(rows) if share_prefixes else ():
        for part in _alike(rows, members, max_tokens):
            forest = grown([rows[k].ids[:-1] for k in part])
            apart = sum(side_by_side([len(rows[k].ids)]) for k in part)
            if len(part) > 1 and cost(forest, blocks=blocks) < apart:
                trees.append((part, len(forest.ids)))
            else:
                alone += part
    if not share_prefixes:
        alone = list(range(len(rows)))
    alone.sort(key=lambda k: (len(rows[k].ids), rows[k].episode))
    planned = [
        (part, share_prefixes and blocks and _better_packed([rows[k].ids[:-1] for k in part]))
        for part in _parts(rows, alone, max_tokens)
    ]
    return planned + [(part, True) for part in (_joined(trees, max_tokens) if blocks else [p for p, _ in trees])]


def _better_packed(inputs: Sequence[NDArray[np.int32]]) -> bool:
    """Whether rows of which no two are of one task cost less one behind the other than filled up side by side."""
    return len(inputs) > 1 and cost(grown(inputs), blocks=True) < side_by_side([len(ids) for ids in inputs])


def _by_key(rows: Sequence[Row]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.key, []).append(number)
    return list(found.values())


def _alike(rows: Sequence[Row], members: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Members in the order of their ids, so that alike ones stay together, cut where a tree would be too large."""
    parts: list[list[int]] = []
    size, before = 0, np.zeros(0, np.int32)
    for number in sorted(members, key=lambda k: rows[k].ids[:-1].tobytes()):
        ids = rows[number].ids[:-1]
        shortest = min(len(ids), len(before))
        different = np.flatnonzero(ids[:shortest] != before[:shortest])
        new = len(ids) - (int(different[0]) if len(different) else shortest)
        if not parts or size + new > max_tokens:
            parts.append([])
            size, new = 0, len(ids)
        parts[-1].append(number)
        size, before = size + new, ids
    return parts


def _joined(trees: Sequence[tuple[list[int], int]], max_tokens: int) -> list[list[int]]:
    """Trees side by side in one pass, as many as fit: where only what is seen is computed, it costs no more."""
    joined: list[list[int]] = []
    size = 0
    for part, nodes in trees:
        if not joined or size + nodes > max_tokens:
            joined.append([])
            size = 0
        joined[-1] += part
        size += nodes
    return joined


def _parts(rows: Sequence[Row], chosen: Sequence[int], max_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = []
    longest = 0
    for number in chosen:
        size = len(rows[number].ids)
        longest = max(longest, size)
        if not parts or longest * (len(parts[-1]) + 1) > max_tokens:
            parts.append([])
            longest = size
        parts[-1].append(number)
    return parts
