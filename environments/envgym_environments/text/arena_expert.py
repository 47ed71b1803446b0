"""An expert of `textarena`'s games that knows nothing but what is shown: it reads the board and solves it.

It plays all kinds of games (`KNOWN`), each by a function of all that was shown so far; for Crosswords, whose clues
no rule solves, it has the library's list of words beside it. Not every game can be won, and games of chance are won
as often as luck allows: the documentation has the figures.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from typing import overload

from envgym.env import Step
from envgym.task import Task
from envgym_environments.experts import Expert, expert_of
from envgym_environments.text.arena_boards import (
    car_move,
    hanoi_move,
    lake_move,
    lights_move,
    peg_move,
    sudoku_filled,
)
from envgym_environments.text.arena_chance import bandit, blackjack, secretary
from envgym_environments.text.arena_clues import logic
from envgym_environments.text.arena_grids import mines, slitherlink
from envgym_environments.text.arena_merging import merging
from envgym_environments.text.arena_sliding import fifteen, sokoban
from envgym_environments.text.arena_words import crosswords

__all__ = ["KNOWN", "expert"]

Texts = Sequence[str]


def _number(shown: Texts) -> str:
    """Halve what is left of the range."""
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", shown[0])[0])
    for text in shown[1:]:
        guess = int(re.findall(r"\[(\d+)\]", text)[0])
        low, high = (max(low, guess + 1), high) if "higher" in text else (low, min(high, guess - 1))
    return f"[{(low + high) // 2}]"


def _code(shown: Texts) -> str:
    """The first code that all answers so far allow; it comes after the last one, which was the first before."""
    length, most = map(int, re.findall(r"(\d+) digits long, each digit from 1 to (\d+)", shown[0])[0])
    once = "no duplicates" in shown[0]
    told = re.findall(r"Submitted \[([\d ]+)\]\. Feedback: (\d+) black peg\(s\), (\d+) white", "\n".join(shown))
    answers = [(tuple(map(int, code.split())), int(black), int(white)) for code, black, white in told]
    return f"[{' '.join(map(str, next(_codes((), length, range(1, most + 1), once, answers))))}]"


def _codes(
    begun: tuple[int, ...], length: int, digits: range, once: bool, answers: list[tuple[tuple[int, ...], int, int]]
) -> Iterator[tuple[int, ...]]:
    """Codes that begin so, come after the last guess, and are excluded by no answer, in order."""
    left = length - len(begun)
    if answers and begun < answers[-1][0][: len(begun)]:
        return
    for guess, black, white in answers:
        right = sum(a == b for a, b in zip(begun, guess, strict=False))
        shared = sum(min(begun.count(digit), guess.count(digit)) for digit in set(begun))
        if not (right <= black <= right + left and shared <= black + white <= shared + left):
            return
    if not left:
        yield begun
        return
    for digit in digits:
        if not (once and digit in begun):
            yield from _codes((*begun, digit), length, digits, once, answers)


def _hanoi(shown: Texts) -> str | None:
    found = re.findall(r"^([ABC]): \[([\d, ]*)\]", shown[-1], re.M)
    move = hanoi_move(
        {name: [int(disk) for disk in disks.split(",") if disk.strip()] for name, disks in found}, "C"
    )
    return f"[{move[0]} {move[1]}]" if move else None


def _lights(shown: Texts) -> str | None:
    rows = [row.split() for row in re.findall(r"^\d+: ((?:[O.] ?)+)$", shown[-1], re.M)]
    lit = {(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "O"}
    move = lights_move(lit, len(rows))
    return f"[{move[0]} {move[1]}]" if move else None


def _sudoku(shown: Texts) -> str | None:
    """The first empty cell of the filled grid that the game began with."""
    begun, now = (re.findall(r"^R\d (.+)$", text, re.M)[-9:] for text in (shown[0], shown[-1]))
    filled = sudoku_filled(
        tuple(tuple(int(c.replace(".", "0")) for c in re.findall(r"[\d.]", row)) for row in begun)
    )
    empty = [(r, c) for r, row in enumerate(now) for c, cell in enumerate(re.findall(r"[\d.]", row)) if cell == "."]
    return f"[{empty[0][0] + 1} {empty[0][1] + 1} {filled[empty[0][0]][empty[0][1]]}]" if filled and empty else None


def _lake(shown: Texts) -> str | None:
    rows = re.findall(r"^\|(.+)\|$", shown[-1], re.M)
    move = lake_move(["".join(cell.strip() or " " for cell in row.split("|")) for row in rows])
    return f"[{move}]" if move else None


def _countdown(shown: Texts) -> str | None:
    """The first operation of a way to the target; where there is none, to what comes nearest."""
    target = int(re.findall(r"TARGET: (-?\d+)", shown[-1])[-1])
    numbers = tuple(int(number) for number in re.findall(r"^ *\[\d+\] (-?\d+)", shown[-1], re.M))
    move = _reach(numbers, target)[1]
    return f"[{move}]" if move else None


def _reach(numbers: tuple[int, ...], target: int) -> tuple[int, str]:
    """How near one can come, and the first operation; each set of numbers is looked at once."""
    seen: set[tuple[int, ...]] = set()
    best = (min(abs(number - target) for number in numbers), "")

    def look(left: tuple[int, ...], first: str) -> bool:
        nonlocal best
        key = tuple(sorted(left))
        if key in seen:
            return False
        seen.add(key)
        for i, j in permutations(range(len(left)), 2):
            rest = tuple(number for at, number in enumerate(left) if at not in (i, j))
            for sign, made in _results(left[i], left[j]):
                way = first or f"{i} {j} {sign}"
                if abs(made - target) < best[0]:
                    best = (abs(made - target), way)
                if best[0] == 0 or (rest and look((*rest, made), way)):
                    return True
        return False

    look(numbers, "")
    return best


def _results(a: int, b: int) -> Iterator[tuple[str, int]]:
    """What two numbers give, as far as it is of use: no signs, no fractions, each pair one way round."""
    if a >= b:
        yield "+", a + b
        if b > 1 and a * b <= 100_000:
            yield "*", a * b
        if a > b:
            yield "-", a - b
    if b > 1 and a % b == 0:
        yield "/", a // b


def _cards(shown: Texts) -> str | None:
    """Three cards that are alike or all different in each of their four properties."""
    board = shown[-1].rpartition("=== BOARD ===")[2] or shown[-1]
    cards = [(int(at), words.split()) for at, words in re.findall(r"^(\d+): (\w+ \w+ \w+ \w+)$", board, re.M)]
    for three in combinations(cards, 3):
        if all(len(set(values)) != 2 for values in zip(*(words for _, words in three), strict=True)):
            return str([at for at, _ in three])
    return "[1, 2, 3]"  # there is no set: the game then deals three more cards, and this turn is lost


def _pegs(shown: Texts) -> str | None:
    pegs = frozenset(int(hole) for hole in re.findall(r"(\d+)●", shown[-1]))
    move = peg_move(pegs)
    return f"[{move[0]} {move[1]}]" if move else None


def _cups(shown: Texts) -> str:
    """Follow the ball through the swaps."""
    at = re.findall(r"\[(\w)\]", re.findall(r"Ball starts: (.+)", shown[0])[0]).index("X")
    for one, other in re.findall(r"swapped cups (\d+) and (\d+)", shown[0]):
        at = {int(one): int(other), int(other): int(one)}.get(at, at)
    return f"[{at}]"


def _letters(shown: Texts) -> str:
    """The digits of all letters by trying columns from the right; they are told one by one."""
    left, right = re.findall(r"^([A-Z]+(?: \+ [A-Z]+)+) = ([A-Z]+)$", shown[0], re.M)[0]
    words = left.split(" + ")
    letters = list(dict.fromkeys("".join(words) + right))
    leading = {word[0] for word in (*words, right)}
    solved = _digits([word[::-1] for word in words], right[::-1], leading, {}, 0, 0)
    assert solved is not None, "the puzzle has no solution"
    letter = letters[len(shown) - 1]
    return f"[{letter} {solved[letter]}]"


def _digits(
    words: list[str], total: str, leading: set[str], known: dict[str, int], column: int, carry: int
) -> dict[str, int] | None:
    """Digits that make the sum hold from this column on, counted from the right."""
    if column == len(total):
        return known if carry == 0 else None
    here = [word[column] for word in words if column < len(word)]
    unknown = next((letter for letter in here if letter not in known), None)
    if unknown is not None:
        free = [d for d in range(10) if d not in known.values() and not (d == 0 and unknown in leading)]
        tries = (_digits(words, total, leading, known | {unknown: d}, column, carry) for d in free)
        return next((found for found in tries if found is not None), None)
    carry, digit = divmod(sum(known[letter] for letter in here) + carry, 10)
    last = total[column]
    if known.get(last, digit) != digit or (last not in known and digit in known.values()):
        return None
    if digit == 0 and last in leading:
        return None
    return _digits(words, total, leading, known | {last: digit}, column + 1, carry)


def _cars(shown: Texts) -> str | None:
    rows = re.findall(r"^((?:[A-Z.] ){5}[A-Z.])(?: >)?$", shown[-1], re.M)[-6:]
    move = car_move([row.replace(" ", "") for row in rows])
    return f"[{move}]" if move else None


KNOWN: dict[str, Callable[[Texts], str | None]] = {
    "2048": merging,
    "Bandit": bandit,
    "Blackjack": blackjack,
    "Countdown": _countdown,
    "Crosswords": crosswords,
    "Cryptarithm": _letters,
    "FifteenPuzzle": fifteen,
    "FrozenLake": _lake,
    "GuessTheNumber": _number,
    "LightsOut": _lights,
    "LogicPuzzle": logic,
    "Mastermind": _code,
    "Minesweeper": mines,
    "PegJump": _pegs,
    "RushHour": _cars,
    "Secretary": secretary,
    "Set": _cards,
    "Slitherlink": slitherlink,
    "Sokoban": sokoban,
    "Sudoku": _sudoku,
    "ThreeCardMonte": _cups,
    "TowerOfHanoi": _hanoi,
}
"""The kinds of games that the expert plays, without their levels."""

_GIVES_UP = "I see no move that helps."


class _Shown(Sequence[str]):
    """The texts of steps, read where they are asked for: most games look at the last one only."""

    def __init__(self, seen: Sequence[Step]) -> None:
        self._seen = seen

    def __len__(self) -> int:
        return len(self._seen)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._seen[at].text if isinstance(at, int) else [step.text for step in self._seen[at]]


def _decide(task: Task, seen: Sequence[Step]) -> str:
    kind = str(task.metadata.get("game")).partition("-v0")[0]
    return KNOWN[kind](_Shown(seen)) or _GIVES_UP


_expert = expert_of(_decide)


def expert(task: Task, *, seed: int = 0) -> Expert:
    """The agent `textarena-expert`. Raises ValueError for a game that it cannot play."""
    kind = str(task.metadata.get("game")).partition("-v0")[0]
    if kind not in KNOWN:
        raise ValueError(
            f"task {task.id!r} is no game that textarena-expert can play; it plays {', '.join(KNOWN)}: "
            "choose one by --task-option game=NAME"
        )
    return _expert(task, seed=seed)
