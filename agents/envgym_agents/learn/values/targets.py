"""What values are trained towards: returns that mix rewards and later values, corrected for who acted.

The same recursion as credit (`envgym.credit.gae`), on ragged rows. Nothing here knows networks.
"""

from dataclasses import dataclass

import numpy as np

from envgym.arguments import checked_between, checked_count
from envgym.credit import gae, scan
from envgym.credit.ledger import Floats, Ints

__all__ = ["Horizon", "bootstrapped"]


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far targets look: discount per step, mix of horizons (see `bootstrapped`), bound of importance ratios.

    most: 0 leaves ratios out: episodes count as they were played. warmup: updates before values are given.
    """

    gamma: float = 1.0
    lam: float = 0.9
    most: float = 1.0
    warmup: int = 0

    def __post_init__(self) -> None:
        checked_between("gamma", self.gamma, 0, 1)
        checked_between("lam", self.lam, 0, 1)
        checked_between("most", self.most, 0, np.inf)
        checked_count("warmup", self.warmup, least=0)


def bootstrapped(
    reward_K: Floats,
    value_K: Floats,
    rows: Ints,
    horizon: Horizon,
    *,
    tail_R: Floats,
    ratio_K: Floats | None = None,
) -> Floats:
    """Targets [K] for the values before each step; a new array of float64.

    reward_K: what each step earned; value_K: the present value before it; rows [R + 1]: offsets; tail_R: the value
    after each row's last step, 0 where it ended. lam=0: reward plus next value; lam=1: the discounted return.

    ratio_K: how much likelier each action is under the policy whose values are wanted than under the one that took
    it. A difference counts min(ratio, most) times, and what follows an action min(ratio, 1) times: V-trace. The
    fixed point is the value of the wanted policy where no ratio is cut off, else of one between the two.
    Sources: TD(lambda), Sutton & Barto, 2nd ed., section 12.2; V-trace, Espeholt et al. 2018 (IMPALA, arXiv
    1802.01561).
    """
    gamma, lam = horizon.gamma, horizon.lam
    values = np.asarray(value_K, np.float64)
    differences = gae(np.asarray(reward_K, np.float64), values, rows, gamma=gamma, lam=0.0, tail_R=tail_R)
    if ratio_K is None:
        return values + scan(differences, rows, gamma * lam)
    # the difference k steps on counts the product of min(ratio, 1) of the actions before it
    return values + scan(
        np.minimum(ratio_K, horizon.most) * differences, rows, gamma * lam * np.minimum(ratio_K, 1.0)
    )
