"""Tasks of `propose-solve`: the kind of a proposal, and what was proposed before; and its registration."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from envgym.episode import Episode
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.lines import read_lines
from envgym_environments.played import draws, lazy_tasks
from envgym_environments.splits import belongs
from envgym_environments.tool.propose_solve.env import PROPOSER, ProposeSolve
from envgym_environments.tool.propose_solve.library import KINDS, LIBRARY, Triple
from envgym_environments.words import pick, some

__all__ = ["SPEC", "harvested", "propose_solve_tasks", "write_triples"]

_DRAWS = 64


def propose_solve_tasks(
    count: int | None = 1000,
    *,
    kind: str | None = None,
    references: int = 3,
    seed: int = 0,
    path: str | None = None,
) -> TaskSet:
    """`count` tasks (None: without end); every fifth is held out.

    kind: deduction, abduction or induction; None takes all in turn. references: earlier proposals that are shown.
    path: a file of `write_triples`, to go on from what earlier episodes proposed; without one the small library.
    Raises ValueError for another kind, less than one reference, a count below one, and a file without triples.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}, or None for all in turn")
    if references < 1:
        raise ValueError(f"references is {references}; it must be at least 1")
    known = _known(path)

    def make(index: int, split: str) -> Task:
        rng = draws(seed, index, 0xA2)
        one = kind or KINDS[index % len(KINDS)]
        for _ in range(_DRAWS):
            shown, program = some(rng, known, min(references, len(known))), pick(rng, known)["program"]
            if belongs([list[JsonValue](shown), program], split):
                break  # what is asked for belongs to one split; of a few triples there may be no other
        return Task(
            id=f"propose-solve/{seed}/{one}/{index}",
            prompt=f"Propose a task of {one} about a program, or solve one.",
            split=split,
            seed=index,
            metadata={"kind": one, "references": list[JsonValue](shown), "program": program},
        )

    return lazy_tasks(make, count)


def _known(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return [{"program": one.program, "inputs": list(one.inputs)} for one in LIBRARY]
    found = read_lines(path, Triple.model_validate_json, what="triple as JSON")
    if not found:
        raise ValueError(f"{path} holds no triples; write some with write_triples, or leave path out")
    return [{"program": one.program, "inputs": list(one.inputs)} for one in found]


def harvested(episodes: Iterable[Episode]) -> list[Triple]:
    """What valid proposals of stored episodes were, each program with its inputs once: the paper's buffers."""
    found: dict[tuple[str, tuple[str, ...]], Triple] = {}
    for episode in episodes:
        if not episode.turns or episode.turns[-1].actor != PROPOSER or not episode.turns[-1].step.submission:
            continue
        kept = json.loads(episode.turns[-1].step.submission)
        triple = Triple.model_validate({name: kept[name] for name in Triple.model_fields})
        found[triple.program, triple.inputs] = triple
    return list(found.values())


def write_triples(path: Path, triples: Iterable[Triple]) -> None:
    """One JSON object per line, for `propose_solve_tasks`."""
    path.write_text("".join(triple.model_dump_json() + "\n" for triple in triples))


def _make(task: Task, **options: Any) -> ProposeSolve:
    return ProposeSolve(task, **options)


SPEC = EnvSpec(
    name="propose-solve",
    tasks=propose_solve_tasks,
    make=_make,
    description="A proposer makes tasks about programs, solvers answer, both earn by that (Absolute Zero).",
    sandbox=True,
)
