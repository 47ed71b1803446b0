"""Tasks on disk: built package by package, stored as one checked file, loaded as a `TaskSet`.

The file is a header line (format, count, digest of the rest) and one `Task` as JSON a line. It is written beside
its place and renamed, so a reader sees the old set or the new one. Which tasks come out depends on the recipe,
the seed and the counts only; the source trees they stand on are found again in the cache of the machine that
loads them.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envgym.errors import EnvgymError
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym.task_file import check_promises, header_of, read_header
from envgym.whole import replaced
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.describe import is_local
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.kinds.build import make_kind_tasks
from envgym_environments.code_repair.sources import Package, cache_root
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import Project

__all__ = ["Built", "build_tasks", "default_path", "is_task_file", "load_tasks", "load_yields", "write_tasks"]

_FORMAT = "envgym code-repair tasks 1"
_CACHE_MARK = "$ENVGYM_CACHE"


@dataclass(slots=True)
class Built:
    """What a build gave: the file, the tasks, and the yield of each package; `failed` says why one gave none."""

    path: Path
    tasks: list[Task] = field(default_factory=list)
    yields: dict[str, Yield] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def default_path(cache: Path | None = None, kind: str = "") -> Path:
    """Where the task file of a kind ("": repairs) lies unless it is named."""
    return (cache or cache_root()) / (f"tasks-{kind}.jsonl" if kind else "tasks.jsonl")


def is_task_file(path: Path) -> bool:
    """Whether a path is, or would be, a built task file: one with its header, or one that is not there."""
    if not path.is_file():
        return not path.exists()
    with path.open("rb") as file:
        header = read_header(file.readline(4096))
    return header is not None and str(header["format"]).startswith("envgym ")


def _relocated(line: str, old: str, new: str) -> str:
    """A task's JSON with the front of its trees' sources exchanged."""
    data: dict[str, Any] = json.loads(line)
    for tree in (data.get("world") or {}).get("trees", ()):
        if tree["source"].startswith(old + "/"):
            tree["source"] = new + tree["source"].removeprefix(old)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def write_tasks(tasks: Iterable[Task], path: Path, *, cache: Path | None = None) -> str:
    """Write a task file and return its digest.

    Raises ValueError for an id that occurs twice, and for a task that UTF-8 cannot hold (half of a surrogate pair).
    """
    root = str(cache or cache_root())
    lines: list[str] = []
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(f"task id {task.id!r} occurs twice; ids must be unique in a task file")
        seen.add(task.id)
        lines.append(_relocated(_json_of(task), root, _CACHE_MARK))
    body = "".join(line + "\n" for line in lines).encode()
    header = header_of(_FORMAT, body)
    replaced(path, lambda file: file.write(json.dumps(header).encode() + b"\n" + body))
    return str(header["digest"])


def _json_of(task: Task) -> str:
    try:
        return task.model_dump_json()
    except ValueError as error:
        raise ValueError(f"task {task.id!r} cannot be written: {error}") from None


def load_tasks(path: Path | None = None, *, cache: Path | None = None) -> TaskSet:
    """The tasks of a file, every one checked.

    Raises FileNotFoundError when there is no file or a task's source tree is gone, and ValueError naming file,
    line and field when the file is damaged or a package is in two splits.
    """
    path = path or default_path(cache)
    if not path.exists():
        raise FileNotFoundError(f"no task file at {path}: build one with `envgym tasks build`, or name another")
    head, _, body = path.read_bytes().partition(b"\n")
    _check_header(path, head, body)
    root = str(cache or cache_root())
    lines = body.decode().split("\n")[:-1]  # not splitlines: a task's text may hold other line ends
    tasks = [_read_task(path, number, line, root) for number, line in enumerate(lines, start=2)]
    _check_splits(path, tasks)
    _check_trees(path, tasks)
    return TaskSet(tasks)


def _check_header(path: Path, head: bytes, body: bytes) -> None:
    header = read_header(head)
    if header is None or not {"count", "digest"} <= header.keys():
        raise ValueError(f"{path}, line 1: not the header of a task file, but {head[:60]!r}")
    if header["format"] != _FORMAT:
        raise ValueError(
            f"{path}, line 1: format is {header['format']!r}; this version reads {_FORMAT!r}: build it again"
        )
    _, unreached = check_promises(path, header, body)
    if unreached:
        raise ValueError(f"{path}, line 1: {unreached[0]} cannot be checked; build it again")


def _read_task(path: Path, number: int, line: str, root: str) -> Task:
    try:
        task = Task.model_validate_json(_relocated(line, _CACHE_MARK, root))
        certificate_of(task)
        return task
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"{path}, line {number}: field {where!r}: {first['msg']}, got {first['input']!r}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}, line {number}: not a task ({type(error).__name__}: {error})") from error


def _check_splits(path: Path, tasks: Sequence[Task]) -> None:
    splits: dict[str, str] = {}
    for number, task in enumerate(tasks, start=2):
        if "imported_from" in task.metadata:
            continue  # how a data set is split is its own matter
        package = str(task.metadata.get("package"))
        if splits.setdefault(package, task.split) != task.split:
            raise ValueError(
                f"{path}, line {number}: package {package!r} is in split {task.split!r} here and in "
                f"{splits[package]!r} before; a package belongs to one split"
            )


def _check_trees(path: Path, tasks: Sequence[Task]) -> None:
    sources = {tree.source: task for task in tasks if task.world for tree in task.world.trees}
    for source, task in sources.items():
        if not Path(source).is_dir():
            raise FileNotFoundError(
                f"{path}: task {task.id!r} stands on the source tree {source}, which is not there: "
                + (
                    "it is of a tree of a machine; give it by --source again (or the recipe that names it)"
                    if is_local(task)
                    else "run `envgym tasks build` here (it fetches the sources again)"
                )
            )


def _part_path(package: Package | Project, plan: Plan, path: Path) -> Path:
    """Where one package's finished share of a build is kept, so that a stopped build goes on where it was."""
    key = repr((_FORMAT, package, plan)).encode()
    name = f"{package.slug}-{hashlib.blake2b(key, digest_size=6).hexdigest()}.jsonl"
    return path.with_name(path.name + ".parts") / name


async def build_tasks(
    packages: Sequence[Package | Project],
    backend: SandboxBackend,
    *,
    plan: Plan | None = None,
    path: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    on_task: Callable[[int], None] = lambda count: None,
    cache: Path | None = None,
) -> Built:
    """Make the tasks of `packages` (Python packages, or projects of any language) and write them to one file.

    progress: gets a line per package. on_task: gets the number of tasks there are, after each.
    A package whose source or suite cannot be used is named in `Built.failed`; the others are built. Finished
    packages of a stopped build with the same recipe are taken over (with their yield), and so is everything that
    was found of a project of another language before the stop.
    """
    plan = plan or Plan()
    path = path or default_path(cache, plan.kind)
    built = Built(path)
    for package in packages:
        part = _part_path(package, plan, path)
        if part.exists():
            tasks = list(load_tasks(part, cache=cache))
            counts = _counts_of(part, package.name, tasks, progress)
        else:
            tasks, counts, began = [], Yield(), time.perf_counter()
            try:
                if plan.kind and isinstance(package, Package):
                    made = make_kind_tasks(package, backend, plan, counts=counts, cache=cache)
                elif isinstance(package, Project):
                    journal = part.with_suffix(".journal")
                    made = make_suite_tasks(package, backend, plan, counts=counts, cache=cache, journal=journal)
                else:
                    made = make_tasks(package, backend, plan, counts=counts, cache=cache)
                async for task in made:
                    tasks.append(task)
                    on_task(len(built.tasks) + len(tasks))
            except (ValueError, EnvgymError) as error:
                built.failed[package.name] = f"{type(error).__name__}: {error}"
                progress(f"{package.slug}: {built.failed[package.name]}")
                continue
            counts.seconds += time.perf_counter() - began
            _keep_part(tasks, package.name, counts, part, cache=cache)
            part.with_suffix(".journal").unlink(missing_ok=True)
        built.tasks += tasks
        on_task(len(built.tasks))
        built.yields[package.name] = counts
        rate = counts.tasks / counts.seconds * 3600 if counts.seconds else 0.0
        odd = f"; {counts.foreign} modules left out: other line ends than \\n, form feeds, or no UTF-8"
        left = odd * bool(counts.foreign)
        progress(f"{package.slug}: {counts.tasks} tasks of {counts.tried} tried, {rate:.0f} tasks/h{left}")
    write_tasks(built.tasks, path, cache=cache)
    _write_yields(built.yields, path)
    return built


def _keep_part(tasks: Sequence[Task], name: str, counts: Yield, part: Path, *, cache: Path | None) -> None:
    """Keep one package's share. Its tasks come last: where they are, the counts are."""
    _write_yields({name: counts}, part)
    write_tasks(tasks, part, cache=cache)


def _counts_of(part: Path, name: str, tasks: Sequence[Task], progress: Callable[[str], None]) -> Yield:
    """The counts of a share that is taken over; where they are gone, of its tasks alone, and it is told."""
    found = load_yields(part).get(name)
    if found is None:
        progress(f"{_yield_path(part)}: not there, so what was tried for the tasks of {name} is not counted")
        return Yield(tasks=len(tasks))
    return found


def _yield_path(path: Path) -> Path:
    return path.with_suffix(".yield.json")


def _write_yields(yields: Mapping[str, Yield], path: Path) -> None:
    rows = {
        name: {
            "verdicts": {operator: dict(found) for operator, found in counts.verdicts.items()},
            "uncovered": counts.uncovered,
            "crowded": counts.crowded,
            "foreign": counts.foreign,
            "tasks": counts.tasks,
            "seconds": counts.seconds,
        }
        for name, counts in yields.items()
    }
    replaced(_yield_path(path), lambda file: file.write(json.dumps(rows).encode()))


def load_yields(path: Path) -> dict[str, Yield]:
    """Package -> the counts of the build behind a task file; empty when they are gone: the tasks are the result.

    Raises ValueError, with the file, where they are damaged.
    """
    place = _yield_path(path)
    if not place.exists():
        return {}
    try:
        yields: dict[str, Yield] = {}
        for name, row in json.loads(place.read_bytes()).items():
            verdicts = {operator: Counter(found) for operator, found in row.pop("verdicts").items()}
            yields[name] = Yield(verdicts, **row)
        return yields
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{place}: not the counts of a build ({type(error).__name__}: {error}); remove it: the tasks are whole "
            "without them"
        ) from error
