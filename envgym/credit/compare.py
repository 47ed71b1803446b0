"""What value is compared with, and how the difference is scaled: parts that make credit of returns.

Peers are places that share a number. A return that is not known (NaN: the world failed, or a bound cut it off and
truncation is "mask") has no credit, and its peers are compared as if it were not there.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from envgym.credit.checks import checked_choice, checked_flag, shown
from envgym.credit.ledger import Floats, Ints, Ledger
from envgym.credit.term import Level, Meaning, Part, Term, checked_term
from envgym.credit.tree import nodes

__all__ = [
    "Scale", "Scaling", "against", "centre", "fork_siblings", "group_mean", "leave_one_out", "peers_apart",
    "ranked", "scaling_of", "state_peers", "whiten",
]  # fmt: skip

Scaling = Callable[[Floats, Ints], Floats]
"""``scaling(centred [K], peers [K])``: the same, scaled among peers."""
Scale = Literal["none", "std", "ranked"] | Scaling

_EQUAL = 1e-12
"""Returns that differ by less, relative to the largest, are equal: their differences are rounding."""


def centre(
    values_K: Floats,
    peers_K: Ints,
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Scale = "none",
) -> Floats:
    """Subtract from each value what its peers achieved; 0 for one without known peers, NaN where it is not known.

    peers_K: numbers from 0; equal ones are peers. "leave_one_out" leaves the value itself out of its baseline;
    "std" divides by the peers' population standard deviation (a known bias towards nearly solved and nearly
    unsolved tasks, Liu et al. 2025: off by default), and equal peers stay 0.
    Sources: mean, GRPO (Shao et al. 2024, section 4.1.2); leave-one-out, RLOO (Ahmadian et al. 2024).
    """
    known = ~np.isnan(values_K)
    if not known.all():
        found = np.full(len(values_K), np.nan)
        found[known] = centre(values_K[known], peers_K[known], baseline=baseline, scale=scale)
        return found
    if not len(values_K):
        return np.zeros(0)
    counts = np.bincount(peers_K)
    # measured from each group's first value, so that equal ones give exactly 0 and not what rounding leaves
    first = np.zeros(len(counts), np.intp)
    first[peers_K[::-1]] = np.arange(len(peers_K) - 1, -1, -1)
    away = values_K - values_K[first[peers_K]]
    centred: Floats = away - (np.bincount(peers_K, away) / np.maximum(counts, 1))[peers_K]
    if scale == "std":
        centred = _by_deviation(centred, peers_K, np.abs(values_K))
    elif scale == "ranked":
        centred = ranked(centred, peers_K)
    elif scale != "none":
        centred = _scaled(scale, _merged(centred, peers_K, np.abs(values_K)), peers_K)
    if baseline == "leave_one_out":
        centred = centred * (counts / np.maximum(counts - 1, 1))[peers_K]
    return centred


def _scaled(scale: Scaling, centred_K: Floats, peers_K: Ints) -> Floats:
    found = np.asarray(scale(centred_K, peers_K))
    if found.shape != centred_K.shape or found.dtype.kind not in "fiu":
        raise ValueError(
            f"scale is {shown(scale)}, which gave {found.dtype}{list(found.shape)}; it must give a number for each "
            f"of the {len(centred_K)} that it is given"
        )
    return found


def _merged(centred_K: Floats, peers_K: Ints, size_K: Floats) -> Floats:
    """The same, with values of peers that differ by rounding alone made equal: no scaling sees an order in them."""
    largest = np.zeros(int(peers_K.max()) + 1)
    np.maximum.at(largest, peers_K, size_K)
    order = np.lexsort((centred_K, peers_K))
    peers, values = peers_K[order], centred_K[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (peers[1:] != peers[:-1]) | (np.diff(values) > _EQUAL * largest[peers[1:]])
    found = np.empty(len(order))
    found[order] = values[np.flatnonzero(new)][np.cumsum(new) - 1]
    return found


def _by_deviation(centred_K: Floats, peers_K: Ints, size_K: Floats) -> Floats:
    counts = np.maximum(np.bincount(peers_K), 1)
    deviation = np.sqrt(np.bincount(peers_K, centred_K**2) / counts)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, peers_K, size_K)
    apart = deviation > _EQUAL * largest
    return centred_K * np.where(apart, 1.0 / np.where(apart, deviation, 1.0), 0.0)[peers_K]


def ranked(centred_K: Floats, peers_K: Ints) -> Floats:
    """A scaling: ranks among peers, spread evenly over [-1, 1]; equal values share the mean of their ranks.

    Invariant to every rising transformation of the returns.
    """
    order = np.lexsort((centred_K, peers_K))
    peers, values = peers_K[order], centred_K[order]
    counts = np.bincount(peers_K)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    new = np.ones(len(order), np.bool_)
    new[1:] = (peers[1:] != peers[:-1]) | (values[1:] != values[:-1])
    tie = np.cumsum(new) - 1
    place = np.bincount(tie, np.arange(len(order)) - begins[peers]) / np.maximum(np.bincount(tie), 1)
    found = np.empty(len(order))
    size = counts[peers]
    found[order] = np.where(size > 1, 2 * place[tie] / np.maximum(size - 1, 1) - 1, 0.0)
    return found


def _compared(baseline: str, scale: Scale) -> Scale:
    checked_choice("baseline", baseline, ("mean", "leave_one_out"))
    return scaling_of(scale)


def scaling_of(scale: Scale) -> Scale:
    """A scale with its name resolved: "none" and "std" as they are, "ranked" as the function. Raises ValueError."""
    if isinstance(scale, str):
        checked_choice("scale", scale, ("none", "std", "ranked"), "a function of (centred, peers)")
        return ranked if scale == "ranked" else scale
    if not callable(scale):
        raise ValueError(
            f"scale is {shown(scale)}; it must be 'none', 'std', 'ranked' or a function of (centred, peers)"
        )
    return scale


def _relative(name: str, baseline: Literal["mean", "leave_one_out"], scale: Scale) -> Part:
    scale = _compared(baseline, scale)

    def run(ledger: Ledger, values: Floats, level: Level) -> Floats:
        return centre(values, ledger.role_G, baseline=baseline, scale=scale)

    return Part(
        f"{name}({'' if scale == 'none' else f'scale={_called(scale)}'})",
        {(Level.EPISODE, Meaning.RETURN): (Level.EPISODE, Meaning.CREDIT)},
        run,
        "turns of a group stand at different depths: compare them by state_peers() or fork_siblings(), or with "
        "values by against(...)",
    )


def _called(scale: Scale) -> str:
    return repr(scale) if isinstance(scale, str) else getattr(scale, "__name__", "scaling")


def peers_apart(peers_K: Ints) -> list[Ints]:
    """The places of each set of peers, in rising order; every set has at least one."""
    order = np.argsort(peers_K, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(peers_K[order])) + 1) if len(order) else []


def group_mean(*, scale: Scale = "none") -> Part:
    """An episode's outcome minus the mean of its group's (per actor)."""
    return _relative("group_mean", "mean", scale)


def leave_one_out(*, scale: Scale = "none") -> Part:
    """An episode's outcome minus the mean of the others' in its group: an unbiased baseline."""
    return _relative("leave_one_out", "leave_one_out", scale)


def state_peers(*, baseline: Literal["mean", "leave_one_out"] = "mean", scale: Scale = "none") -> Part:
    """A turn's return minus that of the group's turns of its actor in the same state; 0 for one that was met once.

    Source: step-level groups, GiGPO (Feng et al. 2025, arXiv 2505.10978); the keys come from the
    environment, so peers are found in linear time and noise in observations does not part them.
    """
    scale = _compared(baseline, scale)

    def run(ledger: Ledger, values: Floats, level: Level) -> Floats:
        states = ledger.state_M[ledger.before_N]
        alone = states < 0
        width = int(ledger.state_M.max(initial=0)) + 1
        peers = ledger.role_G[ledger.row_N] * width + states
        peers[alone] = int(peers.max(initial=0)) + 1 + np.flatnonzero(alone)  # a number of its own
        return centre(values, np.unique(peers, return_inverse=True)[1], baseline=baseline, scale=scale)

    return Part(
        f"state_peers({_options(baseline, scale)})",
        {(Level.TURN, Meaning.RETURN): (Level.TURN, Meaning.CREDIT)},
        run,
        "an outcome belongs to no state: begin with returns()",
    )


def fork_siblings(*, baseline: Literal["mean", "leave_one_out"] = "mean", scale: Scale = "none") -> Part:
    """A turn's return minus that of its siblings: the turns that other forks (or the parent) took from its node.

    0 for turns that nobody forked beside. Siblings share their whole history, so nothing but what followed differs.
    """
    scale = _compared(baseline, scale)

    def run(ledger: Ledger, values: Floats, level: Level) -> Floats:
        return centre(values, nodes(ledger)[ledger.before_N], baseline=baseline, scale=scale)

    return Part(
        f"fork_siblings({_options(baseline, scale)})",
        {(Level.TURN, Meaning.RETURN): (Level.TURN, Meaning.CREDIT)},
        run,
        "an outcome is not compared at a fork: begin with returns()",
    )


def _options(baseline: str, scale: Scale) -> str:
    parts = ([] if baseline == "mean" else [f"baseline={baseline!r}"]) + (
        [] if scale == "none" else [f"scale={_called(scale)}"]
    )
    return ", ".join(parts)


def against(values: Term) -> Part:
    """A return minus what was expected: values of episodes for outcomes, of the states before turns for returns.

    A turn's own value (of the action, Q) minus its state's is an advantage in the same way.
    """
    takes_values = [(Level.EPISODE, Meaning.VALUE), (Level.STATE, Meaning.VALUE)]
    checked_term("against", "values", values, takes_values, "constant(0.5)")
    level = Level.EPISODE if values.level is Level.EPISODE else Level.TURN
    takes = {(level, Meaning.RETURN): (level, Meaning.CREDIT)}
    if level is Level.TURN:
        takes[level, Meaning.VALUE] = (level, Meaning.CREDIT)

    def run(ledger: Ledger, returns: Floats, taken: Level) -> Floats:
        expected = values.of(ledger)
        return returns - (expected if taken is Level.EPISODE else expected[ledger.before_N])

    return Part(
        f"against({values.name})",
        takes,
        run,
        f"its values are of {values.level}s",
    )


def whiten(*, centred: bool = True) -> Part:
    """Credit divided by its standard deviation over all in the ledger of one actor, after subtracting its mean.

    Unlike a group's, this scale is the same for all tasks. What is not known stays out. Equal credit becomes 0
    (with ``centred=False``: stays).
    Source: batch normalisation of advantages, REINFORCE++ (Hu 2025, arXiv 2501.03262).
    """

    def run(ledger: Ledger, values: Floats, level: Level) -> Floats:
        row = level.row(ledger)
        held = ledger.alive_G[row] & ~np.isnan(values)
        actors = np.unique(ledger.actor_G)
        if len(actors) < 2:
            return _whitened(values, held, centred)
        found = np.array(values)
        for actor in actors:  # who plays another role has other rewards: no population of both
            mine = (ledger.actor_G == actor)[row]
            found[mine] = _whitened(values[mine], held[mine], centred)
        return found

    checked_flag("centred", centred)
    same = {(level, Meaning.CREDIT): (level, Meaning.CREDIT) for level in (Level.EPISODE, Level.TURN, Level.TOKEN)}
    return Part(f"whiten({'' if centred else 'centred=False'})", same, run)


def _whitened(values_K: Floats, held_K: NDArray[np.bool_], centred: bool) -> Floats:
    known = values_K[held_K].astype(np.float64)  # so that equal credit is equal to its mean
    if not len(known):
        return values_K
    mean, deviation = float(known.mean()), float(known.std())
    if not deviation > _EQUAL * float(np.abs(known).max()):
        return np.where(np.isnan(values_K), np.nan, 0.0) if centred else values_K
    return (values_K - (mean if centred else 0.0)) / deviation
