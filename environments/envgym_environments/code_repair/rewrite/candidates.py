"""Candidates that a writer makes of a package's functions; the factory judges them as it judges an operator's.

Two kinds, as in SWE-smith (Yang et al., arXiv 2504.21798: "LM modify", "LM rewrite"): `lm-modify` asks for a subtle
bug in a function, `lm-rewrite` for the function anew from its head and docstring, whose honest mistakes are the
bugs. Which functions are asked for depends on the seed alone; what is answered is the writer's affair.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from envgym.task import Task
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.operators import Mutation
from envgym_environments.code_repair.rewrite.functions import Target, replaced, targets
from envgym_environments.code_repair.rewrite.writer import Writer

__all__ = ["REWRITES", "Rewrite", "Written", "functions_of", "questions", "written"]

REWRITES = ("lm-modify", "lm-rewrite")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a writer is asked for. kinds: of `REWRITES`, in turns. asked: questions at a time.

    Raises ValueError for an unknown kind.
    """

    writer: Writer
    kinds: tuple[str, ...] = REWRITES
    asked: int = 4

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in REWRITES]
        if unknown or not self.kinds:
            raise ValueError(f"Rewrite.kinds is {self.kinds}; it must name some of {', '.join(REWRITES)}")
        if self.asked < 1:
            raise ValueError(f"Rewrite.asked is {self.asked}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class Written:
    """One answer: the function and the file's text, and the mutation, or the reason why there is none."""

    target: Target
    source: str
    kind: str
    made: Mutation | str = field(repr=False)


def functions_of(sources: Sequence[tuple[str, str]], baseline: Baseline, most_covering: int) -> list[Target]:
    """Functions whose body some tests execute, and not too many."""
    found = []
    for path, text in sources:
        for target in targets(path, text):
            covering = baseline.covering(path, target.body, target.last)
            if 0 < len(covering) <= most_covering:
                found.append(target)
    return found


async def written(
    rewrite: Rewrite,
    sources: Sequence[tuple[str, str]],
    found: Sequence[Target],
    *,
    about: Task,
    seed: int,
    reads: Callable[..., Mutation | str] = replaced,
) -> AsyncGenerator[Written, None]:
    """Answers in an order of the seed, `rewrite.asked` questions at a time; every function once for each kind.

    reads: makes a mutation of an answer, or says why it is none; as `replaced` does for Python.
    """
    texts, rng = dict(sources), np.random.default_rng([seed, 0x1A])
    order = [
        (found[int(place)], kind)
        for turn in range(len(rewrite.kinds))
        for number, place in enumerate(rng.permutation(len(found)))
        for kind in (rewrite.kinds[(number + turn) % len(rewrite.kinds)],)
    ]
    asked = list(dict.fromkeys(order))
    waiting, running = iter(enumerate(asked)), deque[asyncio.Task[Written]]()

    async def one(number: int, target: Target, kind: str) -> Written:
        question = questions(kind, target, texts[target.path])
        answer = await rewrite.writer.ask(question, about=about, seed=seed * 1_000_003 + number)
        made = reads(target, texts[target.path], answer, operator=kind)
        return Written(target, texts[target.path], kind, made)

    try:
        while True:
            while len(running) < rewrite.asked and (more := next(waiting, None)) is not None:
                number, (target, kind) = more
                running.append(asyncio.create_task(one(number, target, kind)))
            if not running:
                return
            yield await running.popleft()
    finally:
        for left in running:
            left.cancel()
        await asyncio.gather(*running, return_exceptions=True)


_CONTEXT_LINES = 150


_MODIFY = """Rewrite this function with one bug in it, of the kind that passes a review: a wrong boundary, a case
that is forgotten, a value that is mixed up with another, a state that is not updated. It must still run, and tests
that look closely must fail. Do not mark the bug by a comment."""

_REWRITE = """Write this function: its body was lost. Keep its name and parameters, and do what its name, docstring
and file say, as well as you can."""

_CALLED = {
    "python": "Python", "javascript": "JavaScript", "typescript": "TypeScript", "go": "Go", "rust": "Rust",
    "java": "Java", "c": "C", "c++": "C++",
}  # fmt: skip


def questions(kind: str, target: Target, source: str) -> str:
    """What the writer is asked for one function."""
    ask, shown = (_MODIFY, target.text) if kind == "lm-modify" else (_REWRITE, target.head)
    before = "\n".join(source.split("\n")[: target.first - 1][:_CONTEXT_LINES])
    return f"""{ask}

The function {target.name.rpartition(".")[2]} of the file {target.path}:

```{target.language}
{shown}
```

The file begins with:

```{target.language}
{before}
```

Answer with the whole function in one fenced block of {_CALLED[target.language]}, nothing else."""
