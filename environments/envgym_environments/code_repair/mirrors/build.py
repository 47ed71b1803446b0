"""Mirror tasks on disk: pair by pair, each pair's share kept beside the file, so that a stopped build goes on.

The file is that of `taskset`, and is loaded as every other; beside it lies the yield as JSON. A share holds all
tasks of its pair; those that repeat another's repair are left out of the file.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from envgym.errors import EnvgymError
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.mirrors.distinct import distinct
from envgym_environments.code_repair.mirrors.groups import Bounds
from envgym_environments.code_repair.mirrors.mirror import MirrorYield, mirror_tasks
from envgym_environments.code_repair.mirrors.suite_commits import SuitePair, mirror_suite_tasks
from envgym_environments.code_repair.mirrors.trees import Pair
from envgym_environments.code_repair.recheck import certified_again
from envgym_environments.code_repair.sources import cache_root
from envgym_environments.code_repair.taskset import load_tasks, write_tasks

__all__ = ["Built", "Job", "Work", "build_mirrors"]

_RULES = 1
"""Of how tasks are made of a pair: another number makes the shares of a stopped build anew."""

_Made = tuple[Sequence[Task], MirrorYield]


@dataclass(frozen=True, slots=True)
class Job:
    """One pair that is made when its turn comes. name: of the package. key: what the pair is, exactly.

    make: gives the pair, or the reason why there is none; may fetch.
    """

    name: str
    label: str
    key: str
    make: Callable[[], Pair | SuitePair | str]


@dataclass(slots=True)
class Built:
    """The file, its tasks, the yield of each package, and the pairs that could not be made at all."""

    path: Path
    tasks: list[Task] = field(default_factory=list)
    yields: dict[str, MirrorYield] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def total(self) -> MirrorYield:
        """The yield of all packages."""
        total = MirrorYield()
        for counts in self.yields.values():
            total.add(counts)
        return total


@dataclass(frozen=True, slots=True)
class Work:
    """How a build is done; none of it changes what comes out.

    in_flight: pairs at work at once. progress: gets a line per pair. on_pair: gets the number of pairs done.
    """

    in_flight: int = 2
    cache: Path | None = None
    progress: Callable[[str], None] = lambda line: None
    on_pair: Callable[[int], None] = lambda count: None


async def build_mirrors(
    jobs: Iterable[Job],
    backend: SandboxBackend,
    path: Path,
    *,
    bounds: Bounds | None = None,
    work: Work | None = None,
) -> Built:
    """Make the tasks of every pair and write them to one file; what cannot be made is named, the others go on.

    The pairs of a stopped build with the same bounds are taken over.
    """
    built, bounds, work = Built(path), bounds or Bounds(), work or Work()
    cache, free = work.cache or cache_root(), asyncio.Semaphore(work.in_flight)

    async def share(job: Job) -> _Made:
        async with free:
            return await _share(job, backend, _part(path, job, bounds), bounds, cache)

    running = [(job, asyncio.create_task(share(job))) for job in jobs]
    try:
        for done, (job, made) in enumerate(running, start=1):
            work.progress(await _take(built, job, made))
            work.on_pair(done)
    finally:
        for _, left in running:
            left.cancel()
        await asyncio.gather(*(left for _, left in running), return_exceptions=True)
    write_tasks(built.tasks, path, cache=cache)
    rows = {name: counts.row() for name, counts in built.yields.items()}
    path.with_suffix(".mirrors.json").write_text(json.dumps(rows))
    return built


def _part(path: Path, job: Job, bounds: Bounds) -> Path:
    """Where a pair's share is kept."""
    digest = hashlib.blake2b(repr((_RULES, job.key, bounds)).encode(), digest_size=8).hexdigest()
    return path.with_name(path.name + ".parts") / f"{digest}.jsonl"


async def _take(built: Built, job: Job, made: asyncio.Task[_Made]) -> str:
    """Add a share to what is built, or its failure; a line about it."""
    try:
        tasks, counts = await made
    except (ValueError, EnvgymError) as error:
        built.failed[job.label] = f"{type(error).__name__}: {error}"
        return f"{job.label}: {built.failed[job.label]}"
    found = distinct(tasks)
    counts.groups["valid"] -= len(tasks) - len(found)
    counts.groups["repeats"] += len(tasks) - len(found)
    built.tasks += found
    built.yields.setdefault(job.name, MirrorYield()).add(counts)
    why = ", ".join(counts.pairs) or "?"
    return f"{job.label}: {len(found)} tasks ({why}), {counts.seconds:.0f} s; {len(built.tasks)} in all"


async def _share(job: Job, backend: SandboxBackend, part: Path, bounds: Bounds, cache: Path) -> _Made:
    """The tasks of one pair and what became of it, taken over or made."""
    kept = part.with_suffix(".mirrors.json")
    found = await asyncio.to_thread(_kept, part, kept, cache)
    if found is not None:
        return found
    counts, began = MirrorYield(), perf_counter()
    pair = await asyncio.to_thread(job.make)
    tasks: list[Task] = []
    if isinstance(pair, str):
        counts.pairs[pair] += 1
    else:
        made: AsyncIterator[Task]
        if isinstance(pair, SuitePair):
            made = mirror_suite_tasks(pair, backend, cache, bounds=bounds, counts=counts)
        else:
            made = mirror_tasks(pair, backend, cache, bounds=bounds, counts=counts)
        tasks = [task async for task in made]
        if bounds.certify:
            tasks = await _certified(tasks, backend, bounds, counts)
    counts.seconds = perf_counter() - began
    write_tasks(tasks, part, cache=cache)
    kept.write_text(json.dumps(counts.row()))
    return tasks, counts


async def _certified(
    tasks: Sequence[Task], backend: SandboxBackend, bounds: Bounds, counts: MirrorYield
) -> list[Task]:
    """Those that do the same under other conditions, each with its certificate; those of suites have theirs."""
    kept: list[Task] = []
    for task in tasks:
        has = task.metadata.get("certificate") is not None
        found = task if has else await certified_again(task, backend, runs=bounds.repetitions)
        if isinstance(found, str):
            counts.groups["valid"] -= 1
            counts.groups["not_certified"] += 1
            counts.said.append(f"{task.id}: {found}")
        else:
            kept.append(found)
    return kept


def _kept(part: Path, kept: Path, cache: Path) -> _Made | None:
    """A share that is there already."""
    if not kept.exists():
        return None
    return list(load_tasks(part, cache=cache)), MirrorYield.of(json.loads(kept.read_text()))
