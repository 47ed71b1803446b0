"""A few programs to begin with: what proposers are shown, and what the scripted player knows how to answer.

Absolute Zero begins with the identity alone; a buffer of earlier proposals (`harvest`) takes this library's place.
"""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

__all__ = ["KINDS", "LIBRARY", "Sample", "Triple"]

KINDS = ("deduction", "abduction", "induction")
"""The output of a program and its input; an input that gives an output; a program from inputs and outputs."""


class Triple(BaseModel):
    """A program with inputs and their outputs, and what it does in words (of induction)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A program of the library: inputs are texts of tuples."""

    program: str
    inputs: tuple[str, ...]
    message: str


LIBRARY = (
    Sample("def f(x):\n    return x\n", ("('Hello World',)", "(3,)", "([1],)", "('',)"), "gives what it is given"),
    Sample(
        "def f(a, b):\n    return a * b + a\n", ("(2, 3)", "(5, 0)", "(-1, 4)", "(7, 7)"), "multiplies and adds"
    ),
    Sample(
        "def f(words):\n    return sorted(words, key=len)[-1]\n",
        ("(['a', 'bcd', 'ef'],)", "(['x'],)", "(['to', 'be', 'not'],)", "(['q', 'rst'],)"),
        "the longest word",
    ),
    Sample(
        "def f(n):\n    total = 0\n    while n:\n        total, n = total + n % 10, n // 10\n    return total\n",
        ("(1234,)", "(7,)", "(905,)", "(11111,)"),
        "the sum of the digits",
    ),
    Sample(
        "def f(text):\n    return {letter: text.count(letter) for letter in sorted(set(text))}\n",
        ("('banana',)", "('',)", "('aab',)", "('zyx',)"),
        "counts letters",
    ),
    Sample(
        "def f(rows):\n    return [list(column) for column in zip(*rows)]\n",
        ("([[1, 2], [3, 4]],)", "([[5]],)", "([[1, 2, 3]],)", "([],)"),
        "swaps rows and columns",
    ),
)
