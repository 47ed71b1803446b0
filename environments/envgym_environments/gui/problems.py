"""What is asked on a desktop, drawn by a generator: on the calculator, in editor and terminal; and all kinds."""

from collections.abc import Callable

import numpy as np

from envgym_environments.gui.folders import discard, move, tidy
from envgym_environments.gui.problem import NAMES, TASK, Problem, Way, named
from envgym_environments.gui.sheets import enter, fill, total
from envgym_environments.words import pick

__all__ = ["KINDS"]

_CALCULATOR = ("galculator",)


def _clicks(keys: str) -> Way:
    return tuple(("click", f"@toggle button:{key}") for key in keys)


def arithmetic(rng: np.random.Generator, level: int) -> Problem:
    """A sum with at most one product, which comes first, on the calculator."""
    top = 10 ** (2 + level // 2)
    terms = [int(rng.integers(2, top)) for _ in range(2 + level // 2)]
    signs = [str(pick(rng, ("+", "-"))) for _ in terms[1:]]
    if rng.integers(2):
        signs[int(rng.integers(len(signs)))] = "*"
    text = str(terms[0]) + "".join(f"{sign}{term}" for sign, term in zip(signs, terms[1:], strict=True))
    result = _value(text)
    if result in (0, terms[0]):
        text, result = f"{text}+{terms[0] + 1}", result + terms[0] + 1
    prompt = f"{TASK}Compute {text} with the calculator, so that its display shows the result."
    return Problem(prompt, _CALCULATOR, _clicks(text + "="), shows=("text", str(result)))


def _value(text: str) -> int:
    """What a text of whole numbers, plus, minus and times comes to."""
    total = 0
    for term in text.replace("-", "+-").split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total


def root(rng: np.random.Generator, level: int) -> Problem:
    """The square root of a square on the calculator, and something added."""
    number, more = int(rng.integers(11, 40 * level + 20)), int(rng.integers(2, 100))
    prompt = (
        f"{TASK}On the calculator, take the square root of {number * number} and add {more}: its display must "
        "show the result."
    )
    way = (*_clicks(str(number * number)), ("click", "@toggle button:sqrt"), *_clicks(f"+{more}="))
    return Problem(prompt, _CALCULATOR, way, shows=("text", str(number + more)))


_SAVE = ("press", "ctrl+s")


def _list(rng: np.random.Generator, level: int) -> tuple[str, list[str]]:
    """A file's name and its lines, no two of them alike."""
    things = named(rng, 3 + level)
    return f"{pick(rng, NAMES)}.txt", [f"{int(rng.integers(2, 500))} {thing}" for thing in things]


def _edited(name: str, lines: list[str], after: list[str], prompt: str, way: Way) -> Problem:
    before, wanted = ("\n".join(text) + "\n" for text in (lines, after))
    prompt = f"{TASK}In the editor, {prompt} Save {name}, and change nothing else."
    return Problem(prompt, ("mousepad", name), way, {name: before}, {name: wanted})


def append(rng: np.random.Generator, level: int) -> Problem:
    """A new last line in the editor."""
    name, lines = _list(rng, level)
    new, lines = lines[-1], lines[:-1]
    way = (("press", "ctrl+End"), ("type_text", f"{new}\n"), _SAVE)
    return _edited(name, lines, [*lines, new], f"add the line {new!r} at the end.", way)


def delete(rng: np.random.Generator, level: int) -> Problem:
    """A line less in the editor."""
    name, lines = _list(rng, level)
    at = int(rng.integers(len(lines)))
    down = (("press", "Down"),) * at
    way = (("press", "ctrl+Home"), *down, ("press", "shift+Down"), ("press", "Delete"), _SAVE)
    return _edited(name, lines, lines[:at] + lines[at + 1 :], f"delete the line {lines[at]!r}.", way)


def change(rng: np.random.Generator, level: int) -> Problem:
    """Another number in one line, by the text as a whole."""
    name, lines = _list(rng, level)
    at = int(rng.integers(len(lines)))
    number, thing = lines[at].split()
    new = str(int(number) + int(rng.integers(1, 50)))
    after = [*lines[:at], f"{new} {thing}", *lines[at + 1 :]]
    way = (("set_text", "@text:", "\n".join(after) + "\n"), _SAVE)
    return _edited(name, lines, after, f"make the number of {thing} {new}.", way)


def sort(rng: np.random.Generator, level: int) -> Problem:
    """All lines in order, by the keyboard."""
    name, lines = _list(rng, level)
    after = sorted(lines, key=lambda line: line.split()[1])
    if after == lines:
        after = after[::-1]
    order = "backwards by the words" if after != sorted(after, key=lambda line: line.split()[1]) else "by the words"
    way = (("press", "ctrl+a"), ("type_text", "\n".join(after) + "\n"), _SAVE)
    return _edited(name, lines, after, f"put the lines in alphabetical order, {order}.", way)


def rename(rng: np.random.Generator, level: int) -> Problem:
    """Files renamed in a terminal."""
    names = named(rng, 2 + level)
    files = {f"{name}.txt": f"{name}\n" for name in names}
    old, new = names[0], f"{names[0]}-{int(rng.integers(2, 1000))}"
    wanted = {f"{new}.txt" if name == f"{old}.txt" else name: text for name, text in files.items()}
    prompt = f"{TASK}In the terminal, rename {old}.txt to {new}.txt. Leave all other files as they are."
    return Problem(prompt, _TERMINAL, (("type_text", f"mv {old}.txt {new}.txt\n"),), files, wanted)


_TERMINAL = ("xterm", "-e", "/bin/sh")


def collect(rng: np.random.Generator, level: int) -> Problem:
    """Several files joined in a terminal."""
    names = [f"{one}.txt" for one in named(rng, 2 + level)]
    files = {name: f"{int(rng.integers(2, 1000))} {name.removesuffix('.txt')}\n" for name in names}
    into = f"{pick(rng, NAMES)}.txt"
    listed = " ".join(names)
    wanted = files | {into: "".join(files[name] for name in names)}
    prompt = (
        f"{TASK}In the terminal, write the contents of {listed}, in this order, one after the other into {into}."
    )
    return Problem(prompt, _TERMINAL, (("type_text", f"cat {listed} > {into}\n"),), files, wanted)


_ALL = (
    arithmetic, append, rename, enter, move, root, delete, collect, total, discard, change, sort, fill, tidy,
)  # fmt: skip
KINDS: dict[str, Callable[[np.random.Generator, int], Problem]] = {function.__name__: function for function in _ALL}
"""Problems by their names."""
