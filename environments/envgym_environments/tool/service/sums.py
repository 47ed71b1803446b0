"""Sums of numbers, worked out as they are written: what a desk's pocket calculator does, and nothing else."""

import ast
import math
import operator
from collections.abc import Callable

from envgym_environments.tool.service.desk import Refused

__all__ = ["calculated"]

_MOST = 200
_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculated(expression: str) -> str:
    """The value of a sum, to two decimals. Raises Refused for anything that is none, or is too long."""
    if len(expression) > _MOST:
        raise Refused(f"the expression has {len(expression)} characters; at most {_MOST}")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError) as error:
        raise Refused("the expression must be numbers with + - * / and brackets") from error
    return str(round(value, 2))


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = float(number)
        case ast.BinOp(left, symbol, right) if type(symbol) in _BINARY:
            value = _BINARY[type(symbol)](_value(left), _value(right))
        case ast.UnaryOp(symbol, operand) if type(symbol) in _UNARY:
            value = _UNARY[type(symbol)](_value(operand))
        case _:
            raise ValueError("no sum")
    if not math.isfinite(value):
        raise ValueError("no number")
    return value
