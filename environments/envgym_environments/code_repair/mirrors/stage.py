"""The base that tasks of a pair stand on: the earlier code under the later tests, and what leads on from it.

What a test file needs to be collected at all is laid into the base. Nothing here runs anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgym_environments.code_repair.mirrors.hunks import Hunk, apply_hunks, split_hunks
from envgym_environments.code_repair.mirrors.trees import Pair, code_of, compose, drop
from envgym_environments.code_repair.runner import Layout

__all__ = ["Stage", "laid", "plain"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A base that is ready: its tree, the code in it, and what leads to the later state.

    bridged: what of the later code was laid into it, since the tests could not be collected without.
    """

    tree: Path
    layout: Layout
    code: Mapping[str, str]
    hunks: tuple[Hunk, ...]
    bridged: tuple[Hunk, ...] = ()


def plain(pair: Pair, cache: Path) -> Stage:
    """The base with nothing laid in. Raises ValueError as `compose` does."""
    tree, layout = compose(pair, cache)
    code = code_of(tree, layout)
    return Stage(tree, layout, code, split_hunks(code, code_of(pair.new, layout)))


def laid(pair: Pair, stage: Stage, bridged: Sequence[Hunk], cache: Path) -> Stage:
    """The base with these of its changes laid in; of none the same. The plain one's tree is gone then."""
    if not bridged:
        return stage
    changes = apply_hunks(stage.code, bridged)
    drop(stage.tree)
    tree, layout = compose(pair, cache, changes)
    code = {path: text for path, text in {**stage.code, **changes}.items() if text is not None}
    return Stage(tree, layout, code, split_hunks(code, code_of(pair.new, layout)), tuple(bridged))
