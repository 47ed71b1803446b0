"""What may be given to a scorer of reasoning-gym that runs an answer as a program, and what its exceptions mean.

Nine of the library's scorers (0.1.25) hand the answer to ``eval``, four of them plainly, five by sympy's
``parse_expr``: what a model writes would run in this process, as this user. `refused` lets through only what is a
value or an expression of arithmetic of bounded size. It is no sandbox: a scorer may still take long.
"""

import ast
import math
import re
from collections.abc import Callable

from envgym.errors import GraderFailure

__all__ = ["EXPRESSIONS", "LITERALS", "judged", "refused"]

LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators whose scorers evaluate the answer as Python."""

_FUNCTIONS = "sqrt exp log ln sin cos tan sec csc cot asin acos atan sinh cosh tanh asinh acosh atanh Abs pi E"
EXPRESSIONS = {
    "countdown": frozenset[str](),
    "puzzle24": frozenset[str](),
    "polynomial_multiplication": frozenset[str](),
    "simple_integration": frozenset(_FUNCTIONS.split()),
    "intermediate_integration": frozenset(_FUNCTIONS.split()),
}
"""Generators whose scorers have sympy evaluate the answer, and the names that it may use beside single letters.

``Integral`` is none of them: the derivative of an integral that nobody computed is the question, and would be paid.
"""

_MOST_EXPONENT = 100
_MOST_LITERAL, _MOST_EXPRESSION = 20_000, 1_000
_VALUES = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Name, ast.Load)
_SIGNS = (ast.UnaryOp, ast.UAdd, ast.USub)
_WORD = re.compile(r"[^\W\d]\w*")
_NUMERAL = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_FAR = re.compile(r"[eE][+-]?\d{4}")


def refused(generator: str, answer: str) -> str | None:
    """Why this answer must not reach the generator's scorer; None where it may."""
    if _FAR.search(answer.replace("_", "")) and any(character.isdigit() for character in answer):
        return "an exponent has more than three digits"
    if generator in LITERALS:
        return _not_a_value(answer)
    if generator in EXPRESSIONS:
        return _not_arithmetic(answer, EXPRESSIONS[generator])
    return None


def judged(score: Callable[[str], float], answer: str, own: str) -> tuple[float, str]:
    """A scorer's verdict, and what it could not read where it raised.

    A scorer that also raises on `own`, the library's answer, is broken, and so is one whose score is none from 0 to
    1: then nobody knows what the answer is worth. Raises GraderFailure.
    """
    try:
        value = float(score(answer))
    except Exception as error:  # whatever a peer's code raises
        try:
            score(own)
        except Exception as broken:
            raise GraderFailure(
                f"the scorer raised {broken!r} on the library's own answer {own!r:.200}"
            ) from broken
        return 0.0, f"{type(error).__name__}: {error}"
    if not 0.0 <= value <= 1.0 or math.isnan(value):
        raise GraderFailure(f"the scorer gave {value!r} for {answer!r:.200}; a score is a number from 0 to 1")
    return value, ""


def _not_a_value(answer: str) -> str | None:
    if len(answer) > _MOST_LITERAL:
        return f"it has {len(answer)} characters, at most {_MOST_LITERAL} are evaluated"
    for text in {answer.lstrip(" \t"), answer.strip()}:  # as eval reads it, as scorers do before
        try:
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError):
            continue  # eval reads it no better, and runs nothing
        except (RecursionError, MemoryError):
            return "it is nested too deeply"
        for node in ast.walk(tree.body):
            if not isinstance(node, (*_VALUES, *_SIGNS)):
                return f"it is a program ({type(node).__name__}), not a value"
    return None


def _not_arithmetic(answer: str, names: frozenset[str]) -> str | None:
    if len(answer) > _MOST_EXPRESSION:
        return f"it has {len(answer)} characters, at most {_MOST_EXPRESSION} are evaluated"
    if odd := sorted(set(re.sub(r"[\w\s+\-*/(),.^]", "", answer))):
        return f"{odd[0]!r} is no sign of arithmetic"
    rest = _NUMERAL.sub(" ", answer)
    if "." in rest:
        return "a dot stands in no number"
    if unknown := [word for word in _WORD.findall(rest) if len(word) > 1 and word not in names]:
        return f"{unknown[0]!r} is no name of arithmetic"
    try:
        power = _power(ast.parse(answer.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None  # sympy reads it no better
    except (RecursionError, MemoryError):
        return "it is nested too deeply"
    return f"its powers reach {power:g}, at most {_MOST_EXPONENT} are computed" if power > _MOST_EXPONENT else None


def _power(node: ast.AST) -> float:
    """The highest power that is computed below a node; infinite where an exponent has powers of its own."""
    below = max((_power(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return below
    exponent = list(ast.walk(node.right))
    if any(isinstance(part, ast.Pow) for part in exponent):
        return math.inf
    numbers = [part.value for part in exponent if isinstance(part, ast.Constant)]
    size = math.prod(max(1.0, float(abs(n))) for n in numbers if isinstance(n, int | float))
    return size * below
