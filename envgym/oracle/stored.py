"""Real episodes held against forks: where nothing is solvable, the truth is measured.

Every turn of some episodes is continued many times. Half of the continuations measure the turns' advantages, with
their errors; the other half may be read by schemes, so that none is judged by its own sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from envgym.credit import Ledger, Term
from envgym.episode import Episode, Group, Turn
from envgym.oracle.bench import Candidate, Data
from envgym.oracle.forking import measured
from envgym.oracle.measure import cosine, ranks, turn_credit

__all__ = ["Held", "halves", "held", "spoken"]

Floats = NDArray[np.float64]
_HELD = ("peers", "forks")
_HALVES = 8
"""cuts of every group in two, from which bias and variance are told apart"""
_FEWEST = 4
"""members of a group that can be cut: with one alone there is nobody to compare with"""

_Row = tuple[int, tuple[int, ...]]
"""One actor's turns of one episode: the identity of the episode, and the numbers of the turns."""


@dataclass(frozen=True, slots=True)
class Held:
    """One scheme against measured advantages of `turns` turns.

    mse: mean squared difference less what the measurement's own errors add to it (may be negative by noise); noise:
    that part. power: the same for a credit of zero. rank: Spearman's, with the measured ones. wrong_sign: the share
    of the advantage missed, of turns that are known to be better or worse by two standard errors; `sure` are these.
    cosine: of the gradient that this credit gives to the one that the measured advantages give, where every turn
        has parameters of its own; a lower bound in size, as the measure's errors count as length.
    bias2, variance: parts of the error of groups half as large, from `_HALVES` random cuts of each group of four or
        more: the mean square of a turn's mean error, without what noise and cuts add, and the variance over cuts.
        nan where no group is large enough.
    mse_95, cosine_95: percentile intervals over groups that are drawn anew; None for fewer than two.
    """

    name: str
    data: Data
    turns: int
    mse: float
    noise: float
    power: float
    rank: float
    wrong_sign: float
    sure: int
    cosine: float = np.nan
    bias2: float = np.nan
    variance: float = np.nan
    mse_95: tuple[float, float] | None = None
    cosine_95: tuple[float, float] | None = None


def spoken(group: Group) -> Group:
    """The group with one token in every turn where none was sampled: credit can be read of scripts' turns, too."""
    return Group(group.task_id, tuple(_spoken(episode) for episode in group))


def _spoken(episode: Episode) -> Episode:
    if all(len(turn.sampled_ids) for turn in episode.turns):
        return episode
    if any(len(turn.sampled_ids) for turn in episode.turns):
        return episode  # some turns were sampled: the others are another actor's, and are not credited
    one, none = np.zeros(1, np.int32), np.zeros(1, np.float32)
    begin = episode.parent.turn if episode.parent is not None else 0
    turns: list[Turn] = [
        replace(turn, prompt_ids=np.zeros(0, np.int32), sampled_ids=one, logprobs=none, position=begin + place)
        for place, turn in enumerate(episode.turns)
    ]
    return replace(episode, turns=tuple(turns))


def halves(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """The same episodes with every second continuation of each fork point, and with the others."""
    found: tuple[list[Group], list[Group]] = ([], [])
    for group in groups:
        parts: tuple[list[Episode], list[Episode]] = ([], [])
        seen: dict[tuple[str, int], int] = {}
        for episode in group:
            if episode.parent is None:
                parts[0].append(episode)
                parts[1].append(episode)
                continue
            at = episode.parent.episode, episode.parent.turn
            parts[seen.get(at, 0) % 2].append(episode)
            seen[at] = seen.get(at, 0) + 1
        for part, to in zip(parts, found, strict=True):
            to.append(Group(group.task_id, tuple(part)))
    return found


def held(groups: Sequence[Group], candidates: Sequence[Candidate]) -> list[Held]:
    """Schemes against what the continuations in these groups measure.

    A candidate whose data are forks is given one half of them, one of peers none; the other half is the measure.
    Raises ValueError for a candidate that reads something else: stored episodes have nothing else.
    """
    if deaf := [one.name for one in candidates if not isinstance(one.term, Term) or one.data not in _HELD]:
        raise ValueError(f"scheme {deaf[0]!r} reads what only a solvable world tells")
    groups = [spoken(group) for group in groups]
    judge, given = halves(groups)
    alone = [Group(group.task_id, tuple(one for one in group if one.parent is None)) for group in groups]
    truth = Ledger.of(judge)
    found = measured(truth)
    root = truth.fork_G[truth.row_N] < 0
    true, error = found.advantage_N[root], found.advantage_error_N[root]
    known = ~np.isnan(error)
    group = truth.group_G[truth.row_N][root][known]
    rows = []
    for one in candidates:
        assert isinstance(one.term, Term)
        data = given if one.data == "forks" else alone
        credit = _credits(one.term, data)
        found_here = _against(one, np.concatenate([*credit.values()])[known], true[known], error[known], group)
        spread = _spread(one.term, data, _split(true, credit), _split(error, credit))
        rows.append(replace(found_here, bias2=spread[0], variance=spread[1]))
    return rows


def _credits(term: Term, groups: Sequence[Group]) -> dict[_Row, Floats]:
    """The credit of every turn of the episodes that are no forks, in their order."""
    ledger = Ledger.of(groups)
    credit = turn_credit(ledger, term.credit(ledger))
    return {
        (id(episode), numbers): credit[ledger.turns[row] : ledger.turns[row + 1]]
        for row, (episode, numbers) in enumerate(ledger.parts)
        if ledger.fork_G[row] < 0
    }


def _split(values: Floats, like: dict[_Row, Floats]) -> dict[_Row, Floats]:
    ends = np.cumsum([len(credit) for credit in like.values()])[:-1]
    return dict(zip(like, np.split(values, ends), strict=True))


def _spread(
    term: Term, groups: Sequence[Group], true: dict[_Row, Floats], error: dict[_Row, Floats]
) -> tuple[float, float]:
    """Squared bias and variance of a turn's credit over random halves of its group; nan, nan for small groups."""
    rng = np.random.default_rng(0)
    large = [group for group in groups if sum(one.parent is None for one in group) >= _FEWEST]
    if not large:
        return np.nan, np.nan
    drawn = [_credits(term, [half for group in large for half in _cut(group, rng)]) for _ in range(_HALVES)]
    rows = list(drawn[0])
    credit = np.stack([np.concatenate([one[row] for row in rows]) for one in drawn])
    right, off = (np.concatenate([of[row] for row in rows]) for of in (true, error))
    known = ~np.isnan(off)
    if not known.any():
        return np.nan, np.nan
    variance = credit.var(axis=0, ddof=1)[known]
    wrong = (credit.mean(axis=0) - right)[known] ** 2 - off[known] ** 2 - variance / _HALVES
    return float(wrong.mean()), float(variance.mean())


def _cut(group: Group, rng: np.random.Generator) -> tuple[Group, Group]:
    """The group in two halves of its paths; forks go with the path that they left."""
    parent = {one.id: None if one.parent is None else one.parent.episode for one in group}
    paths = [name for name, above in parent.items() if above is None]
    first = {paths[place] for place in rng.permutation(len(paths))[: len(paths) // 2].tolist()}

    def path(name: str) -> str:
        while (above := parent.get(name)) is not None:
            name = above
        return name

    sides: tuple[list[Episode], list[Episode]] = ([], [])
    for one in group:
        sides[path(one.id) not in first].append(one)
    return Group(group.task_id, tuple(sides[0])), Group(group.task_id, tuple(sides[1]))


def _against(of: Candidate, credit: Floats, true: Floats, error: Floats, group: NDArray[np.intp]) -> Held:
    if not len(true):
        return Held(of.name, of.data, 0, np.nan, np.nan, np.nan, 0.0, np.nan, 0)
    noise = float(np.mean(error**2))
    sure = np.abs(true) > 2 * error
    size = np.abs(true[sure])
    wrong = np.where(credit[sure] == 0, 0.5, np.sign(credit[sure]) != np.sign(true[sure]))
    one, other = ranks(credit) - (len(true) - 1) / 2, ranks(true) - (len(true) - 1) / 2
    length = float(np.sqrt((one @ one) * (other @ other)))
    mse, excess, ways = _by_group(credit, true, error, group)
    return Held(
        of.name,
        of.data,
        len(true),
        mse=mse,
        noise=noise,
        power=float(np.mean(true**2)) - noise,
        rank=float(one @ other) / length if length else 0.0,
        wrong_sign=float((size * wrong).sum() / size.sum()) if size.any() else np.nan,
        sure=int(sure.sum()),
        cosine=cosine(credit, true),
        mse_95=excess,
        cosine_95=ways,
    )


def _by_group(
    credit: Floats, true: Floats, error: Floats, group: NDArray[np.intp], *, draws: int = 2000
) -> tuple[float, tuple[float, float] | None, tuple[float, float] | None]:
    """The error, 95 % of it and of the cosine, from sums by group; as many groups as there are are drawn anew.

    Source: Efron & Tibshirani (1993), chapter 13. No intervals for fewer than two groups. The error and its
    interval add up the same numbers in the same way, so that rounding does not set them apart where both are zero.
    """
    names, at = np.unique(group, return_inverse=True)
    of = (np.ones(len(true)), (credit - true) ** 2 - error**2, credit * true, credit**2, true**2)
    sums = [np.bincount(at, values) for values in of]
    mse = float(sums[1].sum() / sums[0].sum())
    if len(names) < 2:
        return mse, None, None
    drawn = np.random.default_rng(0).integers(len(names), size=(draws, len(names)))
    count, excess, product, one, other = (values[drawn].sum(axis=1) for values in sums)
    length = np.sqrt(one * other)
    ways = np.divide(product, length, out=np.zeros(draws), where=length > 0)
    return mse, _middle(excess / count), _middle(np.clip(ways, -1, 1))


def _middle(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
