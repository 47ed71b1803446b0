"""What is wrong with a name or an option that somebody gave: said with the nearest known ones."""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

__all__ = ["hint", "wrong_option"]


def hint(name: str, known: Sequence[str]) -> str:
    """What to say of an unknown name: the nearest known ones (two if they are about as near), else all of them."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, name, one).ratio() for one in near]
    near = [one for one, how in zip(near, likeness, strict=True) if how > likeness[0] - 0.2]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known) or 'none'}"


def wrong_option(
    where: str,
    options: Mapping[str, Any],
    function: Callable[..., Any],
    *,
    given: Collection[str] = (),
    skip: int = 0,
) -> str | None:
    """What is wrong with calling a function with these options: one it lacks, one it needs; None when nothing is.

    One of another kind is told, too, where an annotation takes nothing but numbers, true or false, or None: else
    whatever line meets it first would tell it. where: what the options are called. given: names that it is passed
    anyway, besides its first `skip` arguments.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except ValueError:  # a function of C may have none
        return None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in given]
    known = [p.name for p in named]
    for name in options:
        if name in given:
            return f"{where}.{name}: it is no option here, it is set by who calls; {hint(name, known)}"
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name, value in options.items():
            if name not in known:
                return f"{where}.{name} = {value!r}: there is no such option; {hint(name, known)}"
    for p in named:
        if p.name in options and (must := _wrong_kind(p.annotation, options[p.name])):
            return f"{where}.{p.name} = {options[p.name]!r}: it must be {must}"
        if p.default is p.empty and p.name not in options:
            return f"{where}: it needs the option {p.name!r}, which is not given"
    return None


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
_PLAIN = (str, float, int, bool, type(None), list, dict)


def _wrong_kind(annotation: Any, value: object) -> str:
    """What a value must be, in words, where its annotation says so and it is not; "" where nothing is wrong."""
    allowed = set(get_args(annotation)) or {annotation}
    kind = type(value)
    if kind not in _PLAIN or not allowed <= _KINDS.keys() or allowed == {type(None)}:
        return ""
    if kind in allowed or (kind is int and allowed & {float, bool}):
        return ""
    return " or ".join(told for one, told in _KINDS.items() if one in allowed)
