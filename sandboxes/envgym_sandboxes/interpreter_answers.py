"""Reads what an interpreter's server answers, believing nothing: whatever is not of the promised shape is `Down`.

The server runs beside hostile code of the same user, so that any of it may have been written by that. Pure.
"""

import base64
import binascii
from typing import Any, NamedTuple, get_args

from envgym.interpreter import CellError, CellResult, CellState, Variable
from envgym_sandboxes.interpreter_line import Down

__all__ = ["Made", "cell_result", "digest", "made", "variables"]

_PNG = b"\x89PNG\r\n\x1a\n"


class Made(NamedTuple):
    """A new branch or kept state."""

    number: int
    directory: str
    unforked: tuple[str, ...]


def _text(found: object) -> str:
    """A text that any file can hold: a surrogate without its other half becomes a question mark."""
    if not isinstance(found, str):
        raise Down(f"a {type(found).__name__} where a text was promised")
    return found.encode("utf-8", "replace").decode()


def _texts(found: object) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(found, list):
        raise Down(f"a {type(found).__name__} where a list was promised")
    return tuple(_text(item) for item in found)


def _number(found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < 1e12:
        raise Down(f"{str(found)[:100]!r} where a number was promised")
    return float(found)


def _error(found: object) -> CellError | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 3:
        raise Down("an error that is none")
    return CellError(_text(found[0]), _text(found[1]), _texts(found[2]))


def _images(found: object) -> tuple[bytes, ...]:
    try:
        images = tuple(base64.b64decode(image, validate=True) for image in _texts(found))
    except binascii.Error as error:
        raise Down(f"an image that is none: {error}") from None
    if not all(image.startswith(_PNG) for image in images):
        raise Down("an image that is not PNG")
    return images


def cell_result(answer: dict[str, Any]) -> CellResult:
    """What a cell did. Raises Down."""
    timed_out, poor, lost = answer.get("timed_out"), answer.get("out_of_cpu"), answer.get("lost")
    states = [state for state in get_args(CellState) if state == answer.get("state")]
    if not states or not isinstance(timed_out, bool) or not isinstance(poor, bool):
        raise Down("a result without its state")
    if not isinstance(lost, list) or len(lost) != 2:
        raise Down("a result that does not say what is left out")
    value = answer.get("value")
    return CellResult(
        _text(answer.get("out")),
        _text(answer.get("err")),
        value=None if value is None else _text(value),
        error=_error(answer.get("error")),
        images=_images(answer.get("images")),
        timed_out=timed_out,
        out_of_cpu=poor,
        state=states[0],
        wall_s=_number(answer.get("wall_s")),
        cpu_s=_number(answer.get("cpu_s")),
        lost_bytes=(int(_number(lost[0])), int(_number(lost[1]))),
        notes=_texts(answer.get("notes")),
    )


def made(answer: dict[str, Any]) -> Made:
    """A new branch or kept state. Raises Down."""
    number = answer.get("branch")
    if type(number) is not int:
        raise Down(f"a branch numbered {str(number)[:100]!r}")
    return Made(number, _text(answer.get("directory")), _texts(answer.get("unforked")))


def digest(answer: dict[str, Any]) -> str:
    """A digest. Raises Down."""
    return _text(answer.get("found"))


def variables(answer: dict[str, Any]) -> tuple[Variable, ...]:
    """A list of variables. Raises Down."""
    found = answer.get("found")
    if not isinstance(found, list):
        raise Down(f"a {type(found).__name__} where variables were promised")
    rows = [_texts(row) for row in found]
    if not all(len(row) == 3 for row in rows):
        raise Down("a variable that is none")
    return tuple(Variable(*row) for row in rows)
