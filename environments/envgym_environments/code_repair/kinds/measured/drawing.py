"""Arguments like those that a function was seen with, only more of them: shapes of values, and values of a shape.

A shape holds types, bounds and letters, no value as it was. Standard library only, and no import of this project:
the text of this module is also part of the workload that an agent can run.
"""

import builtins
from random import Random
from typing import Any

__all__ = ["drawn_calls", "grows", "shape_of"]

_MOST_INSIDE = 4
_MOST_DEPTH = 3
_MOST_LETTERS = 24
_SIZED = ("list", "tuple", "set", "frozenset", "dict", "str")


def shape_of(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """The shape of plain data and of what is built in; None for anything else, and for what is nested too deep."""
    kind = type(value).__name__
    if value is None or type(value) is bool:
        return {"is": kind}
    if type(value) is int and abs(value) < 10**9:
        return {"is": kind, "low": min(value, 0), "high": max(value, 9)}
    if type(value) is float and abs(value) < 1e9:
        return {"is": kind, "low": min(value, 0.0), "high": max(value, 9.0)}
    if type(value) is str:
        letters = "".join(sorted(set(value)))[:_MOST_LETTERS]
        return {"is": kind, "letters": letters, "most": min(len(value), 40)}
    if type(value) is range:
        return {"is": "list", "most": min(len(value), 12), "of": [{"is": "int", "low": 0, "high": 9}]}
    if callable(value) and getattr(builtins, str(getattr(value, "__name__", "")), None) is value:
        return {"is": "builtin", "name": str(getattr(value, "__name__", ""))}
    if depth < _MOST_DEPTH and type(value) in (list, tuple, set, frozenset):
        return _inside({"is": kind, "most": min(len(value), 12)}, "of", value, depth)
    if depth < _MOST_DEPTH and type(value) is dict:
        shape = _inside({"is": kind, "most": min(len(value), 12)}, "keys", value, depth)
        return shape and _inside(shape, "values", value.values(), depth)
    return None


def _inside(shape: dict[str, Any], name: str, values: Any, depth: int) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = []
    for value in values:
        one = shape_of(value, depth + 1)
        if one is None:
            return None
        if one not in found:
            found.append(one)
    return {**shape, name: sorted(found, key=repr)[:_MOST_INSIDE]}


def grows(shape: dict[str, Any]) -> bool:
    """Whether there can be more of it."""
    return shape["is"] in _SIZED and bool(shape.get("letters") or shape.get("of") or shape.get("keys"))


def drawn_calls(
    calls: list[dict[str, Any]], size: int, count: int, seed: str
) -> list[tuple[list[Any], dict[str, Any]]]:
    """`count` pairs of arguments and named arguments; what can grow has about `size` elements or letters.

    calls: {"args": shapes, "kwargs": name -> shape} of calls that were seen.
    """
    chance = Random(seed)
    found = []
    for number in range(count):
        call = calls[number % len(calls)]
        args = [_drawn(one, chance, size) for one in call["args"]]
        found.append((args, {name: _drawn(one, chance, size) for name, one in sorted(call["kwargs"].items())}))
    return found


def _drawn(shape: dict[str, Any], chance: Random, size: int) -> Any:
    """A value; size: how much of it, 0 inside of others, where it is about as large as it was seen."""
    kind = shape["is"]
    if kind == "NoneType":
        return None
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "builtin":
        return getattr(builtins, shape["name"])
    if kind == "int":  # inside of something large there are many different ones
        return chance.randint(shape["low"], shape["high"] if size else shape["high"] + 10**6)
    if kind == "float":
        return round(chance.uniform(shape["low"], shape["high"]), 6)
    many = chance.randint(size - size // 4, size) if size and grows(shape) else chance.randint(0, shape["most"] + 2)
    if kind == "str":
        return "".join(chance.choices(shape["letters"], k=many)) if shape["letters"] else ""
    if kind == "dict":
        if not shape["keys"]:
            return {}
        return {_one(shape["keys"], chance): _one(shape["values"], chance) for _ in range(many)}
    values = [_one(shape["of"], chance) for _ in range(many)] if shape["of"] else []
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](values)


def _one(shapes: list[dict[str, Any]], chance: Random) -> Any:
    return _drawn(chance.choice(shapes), chance, 0)
