"""TextArena's games of chance, played as well as what is shown allows: Bandit, Blackjack, Secretary.

None of them is won for certain. What each assumes is said at its function.
"""

import re
from collections.abc import Sequence
from functools import cache
from math import comb, sqrt

__all__ = ["bandit", "blackjack", "dares", "least_value", "secretary"]

_RANKS = {"A": 11, "J": 10, "Q": 10, "K": 10} | {str(value): value for value in range(2, 11)}
_DRAWN = (*((value, 1 / 13) for value in (*range(2, 10), 11)), (10, 4 / 13))
"""What a card counts, and how likely it is; the game deals from an endless deck."""


def bandit(shown: Sequence[str]) -> str:
    """Press where most may still be hoped for; in the end, say what did best.

    Each button's mean has a Beta(1, 1) prior; hope is the posterior's mean and one of its deviations.
    """
    listed, turns = re.findall(r"\d+ buttons: ([\w, ]+)\. .*?You have (\d+) time steps", shown[0], re.S)[0]
    hits = {name: [1, 1] for name in listed.split(", ")}
    pressed = re.findall(r"pressed the (\w+) button and received a reward of ([01])", "\n".join(shown))
    for name, paid in pressed:
        hits[name][paid == "0"] += 1
    wide = 1.0 if len(pressed) < int(turns) else 0.0
    return f"[{max(hits, key=lambda name: _hope(hits[name], wide))}]"


def _hope(hits: Sequence[int], wide: float) -> float:
    paid, not_paid = hits
    count = paid + not_paid
    return paid / count + wide * sqrt(paid * not_paid / (count * count * (count + 1)))


def blackjack(shown: Sequence[str]) -> str:
    """Hit or stand, whichever wins more often against the card that the dealer shows."""
    hand, dealer = re.findall(r"Your hand: (.+) \(Score: \d+\)\nDealer shows: (\w+)", shown[-1])[-1]
    total = soft = 0
    for rank in re.findall(r"\w+", hand):
        total, soft = _with(total, soft, _RANKS[rank])
    return "[Hit]" if dares(total, soft, _RANKS[dealer]) else "[Stand]"


def dares(total: int, soft: int, shows: int) -> bool:
    """Whether one more card wins more often. soft: aces that count 11 so far; shows: the dealer's card."""
    return _drawing(total, soft, shows) > _standing(total, shows)


def _with(total: int, soft: int, card: int) -> tuple[int, int]:
    """A hand and one more card: its score, and how many aces count 11 in it."""
    total, soft = total + card, soft + (card == 11)
    while total > 21 and soft:
        total, soft = total - 10, soft - 1
    return total, soft


@cache
def _dealt(total: int, soft: int) -> tuple[float, ...]:
    """How likely the dealer, who stands on 17 and more, ends with 17, 18, 19, 20, 21, or with too much."""
    if total >= 17:
        return (*(float(total == end) for end in range(17, 22)), float(total > 21))
    ends = [[chance * part for part in _dealt(*_with(total, soft, card))] for card, chance in _DRAWN]
    return tuple(map(sum, zip(*ends, strict=True)))


def _standing(total: int, shows: int) -> float:
    """The chance to win with this score: a draw is no win."""
    ends = _dealt(*_with(0, 0, shows))
    return ends[-1] + sum(chance for end, chance in zip(range(17, 22), ends, strict=False) if end < total)


@cache
def _drawing(total: int, soft: int, shows: int) -> float:
    """The chance to win by one more card, and by the better choice from then on."""
    chance = 0.0
    for card, likely in _DRAWN:
        now, aces = _with(total, soft, card)
        if now <= 21:
            chance += likely * max(_standing(now, shows), _drawing(now, aces, shows))
    return chance


def secretary(shown: Sequence[str]) -> str:
    """Accept a value that is the best so far, and is likely enough to stay the best of those to come.

    Assumes that values are drawn evenly from 0 to 1, which is not said: four digits behind "0." suggest it.
    """
    count = int(re.findall(r"observe (\d+) hidden values", shown[0])[0])
    values = [float(value) for value in re.findall(r"current value is ([\d.]+\d)\.", "\n".join(shown))]
    best = values[-1] == max(values)
    return "[accept]" if best and values[-1] >= least_value(count - len(values)) else "[continue]"


@cache
def least_value(left: int) -> float:
    """The value from which on the best so far is accepted with `left` values to come (0 of none).

    The z at which ``sum over j of comb(left, j) * (1 / z - 1)**j / j`` is 1: the game of full information in
    Gilbert and Mosteller, "Recognizing the Maximum of a Sequence" (1966).
    """
    low, high = 0.0, 1.0
    for _ in range(50 if left else 0):
        middle = (low + high) / 2
        odds = sum(comb(left, j) * (1 / middle - 1) ** j / j for j in range(1, left + 1))
        low, high = (middle, high) if odds > 1 else (low, middle)
    return low
