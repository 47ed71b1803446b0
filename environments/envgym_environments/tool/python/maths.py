"""Maths problems that are drawn, each with the program that solves it: the program is the one source of the answer.

Numbers grow with the difficulty, so that mental arithmetic does not reach and a naive loop still ends in time.
"""

from collections.abc import Callable
from textwrap import dedent

import numpy as np

from envgym_environments.words import pick, some

__all__ = ["MATHS"]

Problem = tuple[str, str]
"""Question and program; the program prints the answer in its last line."""


def _between(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _divisible(rng: np.random.Generator, level: int) -> Problem:
    n = _between(rng, 10**level, 10 ** (level + 1))
    a, b, c = sorted(some(rng, (3, 4, 5, 6, 7, 8, 9, 11, 13), 3))
    return (
        f"How many integers from 1 to {n} are divisible by {a} or by {b}, but not by {c}?",
        f"print(sum(1 for k in range(1, {n} + 1) if (k % {a} == 0 or k % {b} == 0) and k % {c}))",
    )


def _primes(rng: np.random.Generator, level: int) -> Problem:
    low = _between(rng, 2, 200 * level)
    high = low + _between(rng, 50, 400 * level)
    rest = _between(rng, 1, 3)
    return (
        f"What is the sum of all primes p with {low} <= p <= {high} and p mod 4 = {rest}?",
        dedent(f"""\
            def prime(n):
                return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))
            print(sum(p for p in range({low}, {high} + 1) if prime(p) and p % 4 == {rest}))"""),
    )


def _power(rng: np.random.Generator, level: int) -> Problem:
    a, n, m = _between(rng, 3, 99), _between(rng, 10, 10 ** (level + 1)), _between(rng, 7, 10 ** (level + 1))
    b, k = _between(rng, 3, 99), _between(rng, 10, 10 ** (level + 1))
    return (
        f"What is the remainder of {a}^{n} + {b}^{k} divided by {m}?",
        f"print((pow({a}, {n}, {m}) + pow({b}, {k}, {m})) % {m})",
    )


def _paths(rng: np.random.Generator, level: int) -> Problem:
    size = 3 + 2 * level
    blocked = sorted({(_between(rng, 1, size - 2), _between(rng, 1, size - 2)) for _ in range(level + 2)})
    return (
        f"On a grid of {size} by {size} cells, rows and columns from 0, one moves right or down from (0, 0) "
        f"to ({size - 1}, {size - 1}), never through these (row, column): {blocked}. How many ways are there?",
        dedent(f"""\
            ways = {{(0, 0): 1}}
            for r in range({size}):
                for c in range({size}):
                    if (r, c) != (0, 0):
                        free = (r, c) not in {blocked}
                        ways[r, c] = (ways.get((r - 1, c), 0) + ways.get((r, c - 1), 0)) if free else 0
            print(ways[{size - 1}, {size - 1}])"""),
    )


def _determinant(rng: np.random.Generator, level: int) -> Problem:
    size = min(2 + level, 6)
    rows = rng.integers(-9, 10, size=(size, size)).tolist()
    return (
        f"What is the determinant of the matrix with the rows {rows}?",
        dedent(f"""\
            from fractions import Fraction
            rows, result = [[Fraction(x) for x in row] for row in {rows}], Fraction(1)
            for i in range({size}):
                p = next((r for r in range(i, {size}) if rows[r][i]), None)
                if p is None:
                    result = Fraction(0)
                    break
                if p != i:
                    rows[i], rows[p], result = rows[p], rows[i], -result
                result *= rows[i][i]
                for r in range(i + 1, {size}):
                    f = rows[r][i] / rows[i][i]
                    rows[r] = [x - f * y for x, y in zip(rows[r], rows[i])]
            print(result)"""),
    )


def _dice(rng: np.random.Generator, level: int) -> Problem:
    dice, faces = 1 + level, pick(rng, (4, 6, 8))
    total = _between(rng, dice + 2, dice * faces - 2)
    return (
        f"What is the probability that {dice} fair dice with the faces 1 to {faces} sum up to at least {total}? "
        "Give a fraction in lowest terms.",
        dedent(f"""\
            from fractions import Fraction
            sums = {{0: Fraction(1)}}
            for _ in range({dice}):
                after = {{}}
                for s, p in sums.items():
                    for f in range(1, {faces} + 1):
                        after[s + f] = after.get(s + f, 0) + p / {faces}
                sums = after
            print(sum(p for s, p in sums.items() if s >= {total}))"""),
    )


def _recurrence(rng: np.random.Generator, level: int) -> Problem:
    p, q, first, second = (_between(rng, 1, 6) for _ in range(4))
    n, m = _between(rng, 10, 30 * level), pick(rng, (97, 101, 997, 1009, 10007))
    return (
        f"a(0) = {first}, a(1) = {second}, a(n) = {p} a(n-1) + {q} a(n-2). What is a({n}) mod {m}?",
        dedent(f"""\
            a, b = {first}, {second}
            for _ in range({n}):
                a, b = b, ({p} * b + {q} * a) % {m}
            print(a % {m})"""),
    )


def _coins(rng: np.random.Generator, level: int) -> Problem:
    coins = sorted(some(rng, (2, 3, 5, 7, 10, 12, 15, 20, 25), 2 + min(level, 4)))
    amount = _between(rng, 20, 60 * level)
    return (
        f"In how many ways can {amount} cents be paid with coins of {coins} cents, order not counting?",
        dedent(f"""\
            ways = [1] + [0] * {amount}
            for coin in {coins}:
                for a in range(coin, {amount} + 1):
                    ways[a] += ways[a - coin]
            print(ways[{amount}])"""),
    )


def _congruence(rng: np.random.Generator, level: int) -> Problem:
    moduli = sorted(some(rng, (7, 9, 11, 13, 16, 17, 19, 23), 1 + min(level, 3)))
    rests = [_between(rng, 0, m - 1) for m in moduli]
    says = ", ".join(f"n mod {m} = {r}" for m, r in zip(moduli, rests, strict=True))
    return (
        f"What is the smallest n >= 0 with {says}?",
        f"print(next(n for n in range(10 ** 7) if all(n % m == r for m, r in zip({moduli}, {rests}))))",
    )


def _loan(rng: np.random.Generator, level: int) -> Problem:
    debt, rate = 1000 * _between(rng, 2, 40 * level), _between(rng, 2, 18)
    pay = int(debt * rate / 1200) + _between(rng, 20, 40) * (1 + debt // 4000)
    return (
        f"A debt of {debt} grows by {rate}/12 percent at the end of each month, then {pay} is paid (less, if less "
        "is owed). With exact fractions: after how many months is nothing owed?",
        dedent(f"""\
            from fractions import Fraction
            debt, months = Fraction({debt}), 0
            while debt > 0:
                debt = debt * (1 + Fraction({rate}, 1200)) - {pay}
                months += 1
            print(months)"""),
    )


MATHS: tuple[Callable[[np.random.Generator, int], Problem], ...] = (
    _divisible, _primes, _power, _paths, _determinant, _dice, _recurrence, _coins, _congruence, _loan,
)  # fmt: skip
"""``problem(rng, level)``, level 1 to 5."""
