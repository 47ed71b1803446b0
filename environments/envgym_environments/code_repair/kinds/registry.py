"""The kinds of task there are, by name."""

from envgym_environments.code_repair.kinds.classes import ClassGeneration
from envgym_environments.code_repair.kinds.contract import Kind
from envgym_environments.code_repair.kinds.debugging import Debugging
from envgym_environments.code_repair.kinds.ml.kind import MachineLearning
from envgym_environments.code_repair.kinds.refactoring import Refactoring
from envgym_environments.code_repair.kinds.speed import SpeedUp
from envgym_environments.code_repair.kinds.test_writing import TestWriting

__all__ = ["KINDS", "kind_named"]

_ALL: tuple[Kind, ...] = (
    ClassGeneration(),
    TestWriting(),
    Refactoring(),
    Debugging(),
    SpeedUp(),
    MachineLearning(),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises ValueError for an unknown one."""
    if name not in KINDS:
        raise ValueError(f"kind is {name!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[name]
