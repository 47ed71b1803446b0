"""Names for things that leaves and third parties provide, found by entry point; nothing is imported until asked.

Four groups: ``envgym.environments`` (an `EnvSpec`), ``envgym.sandboxes`` (a backend class),
``envgym.agents`` (a function ``make(task, *, seed, **options) -> Agent``) and ``envgym.commands`` (a
CLI command). Our own entries use the same doors as anybody's; `register` adds one at run time.
"""

import difflib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from envgym.env import Env, Playable, Replaying, as_env
from envgym.errors import SandboxUnavailable
from envgym.gymnasium_plugin import announce, gymnasium_id
from envgym.isolate import Isolated
from envgym.sandbox import BackendReport, SandboxBackend
from envgym.task import Task, TaskSet

__all__ = [
    "AUTO_ORDER", "EnvSpec", "Group", "find", "gymnasium_id", "hint", "make", "make_backend", "names", "register",
    "reports", "spec", "unregister",
]  # fmt: skip

Group = Literal["environments", "sandboxes", "agents", "commands"]

AUTO_ORDER = ("namespace",)
"""Backends that "auto" may take, best first. Those that do not isolate are never chosen silently."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """How to make one kind of environment.

    name: kebab-case, unique; `gymnasium_id` derives the Gymnasium id from it.
    tasks: ``tasks(**options) -> TaskSet``; options that it does not know must raise TypeError.
    make: ``make(task, **options) -> Env or Playable``; receives ``backend=`` when `sandbox` is true.
    sandbox: whether it acts in a sandbox.
    in_process: whether its coroutines never wait, so that the synchronous view needs no event loop.
    """

    name: str
    tasks: Callable[..., TaskSet]
    make: Callable[..., Env | Playable]
    description: str = ""
    sandbox: bool = False
    in_process: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)


_registered: dict[str, dict[str, Any]] = {"environments": {}, "sandboxes": {}, "agents": {}, "commands": {}}


def register(group: Group, name: str, thing: Any) -> None:
    """Add an entry for this process. Raises ValueError when the name is taken by another thing."""
    if name in names(group) and _registered[group].get(name) is not thing:
        raise ValueError(f"{group[:-1]} {name!r} is already registered; choose another name or unregister it first")
    _registered[group][name] = thing
    if group == "environments":
        announce(name)


def unregister(group: Group, name: str) -> None:
    """Remove an entry that `register` added."""
    del _registered[group][name]


def _entry_points(group: Group) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"envgym.{group}")}


def names(group: Group) -> list[str]:
    """Every name of a group, sorted; imports nothing."""
    return sorted({*_registered[group], *_entry_points(group)})


def hint(name: str, known: Sequence[str]) -> str:
    """What to say of an unknown name: the nearest known ones (two if they are about as near), else all of them."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, name, one).ratio() for one in near]
    near = [one for one, how in zip(near, likeness, strict=True) if how > likeness[0] - 0.2]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known) or 'none'}"


def find(group: Group, name: str) -> Any:
    """The thing behind a name.

    Raises ValueError for an unknown name, with the nearest ones, and ImportError (naming the entry point)
    when it is known but its package cannot be imported here.
    """
    if name in _registered[group]:
        return _registered[group][name]
    entry = _entry_points(group).get(name)
    if entry is None:
        raise ValueError(f"unknown {group[:-1]} {name!r}; {hint(name, names(group))}")
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{group[:-1]} {name!r} ({entry.value}) cannot be imported: {error}; install the extra it needs"
        ) from error


def spec(name: str) -> EnvSpec:
    """The spec of an environment. Raises ValueError, ImportError as `find`, TypeError when it is no EnvSpec."""
    found = find("environments", name)
    if not isinstance(found, EnvSpec):
        raise TypeError(f"environment {name!r} is a {type(found).__name__}; its entry point must name an EnvSpec")
    return found


def make(
    name: str | EnvSpec,
    task: Task | int = 0,
    *,
    backend: SandboxBackend | None = None,
    isolate: Literal["process"] | None = None,
    **options: Any,
) -> Env:
    """An environment by name or spec: ``make("guess")``, ``make("code-repair", 3, backend=backend, tools="full")``.

    `task` is a Task or an index into the spec's task set (then `options` it names for tasks are refused: pass
    a Task for anything else than the default set). A `Playable` is wrapped by `Replaying`. With
    ``isolate="process"`` it runs in a process of its own (`envgym.isolate.Isolated`), there with a backend of its
    own of the same name as `backend`. Raises ValueError when the environment needs a sandbox and none is given.
    """
    found = spec(name) if isinstance(name, str) else name
    if isinstance(task, int):
        task = found.tasks()[task]
    chosen = {**found.defaults, **options}
    if found.sandbox:
        if backend is None:
            raise ValueError(
                f"environment {found.name!r} acts in a sandbox: pass backend=, such as "
                "`async with make_backend('auto') as backend`"
            )
        chosen["backend"] = backend
    if isolate not in (None, "process"):
        raise ValueError(
            f"isolate is {isolate!r}; it must be 'process', or None for an environment in this process"
        )
    if isolate is not None:
        return _isolated(name, task, backend, options)
    again = partial(found.make, task, **chosen)
    return as_env(again(), again)


def _isolated(name: str | EnvSpec, task: Task, backend: SandboxBackend | None, options: dict[str, Any]) -> Env:
    # the name where it is an entry point: what it names need then not be picklable
    known = (
        name
        if isinstance(name, str) and name in _entry_points("environments")
        else (spec(name) if isinstance(name, str) else name)
    )
    make_there = partial(_make_there, known, task, None if backend is None else backend.name, options)
    made = partial(Isolated, make_there, task)
    # a snapshot of a sandbox belongs to the backend of its own process: no other could restore it
    return made() if backend is None else Replaying(made)


async def _make_there(
    name: str | EnvSpec, task: Task, backend: str | None, options: dict[str, Any], *, stack: AsyncExitStack
) -> Env:
    """Make an environment in the process that it is isolated in; the backend lives as long as that."""
    if backend is None:
        return make(name, task, **options)
    return make(name, task, backend=await stack.enter_async_context(make_backend(backend)), **options)


def reports() -> list[BackendReport]:
    """What every backend says of this host."""
    return [make_backend(name).report() for name in names("sandboxes")]


def make_backend(name: str = "auto", **options: Any) -> SandboxBackend:
    """A sandbox backend by name; "auto" takes the first isolating one that works here.

    Raises SandboxUnavailable with every candidate's missing pieces and fixes when none does.
    """
    if name != "auto":
        backend: SandboxBackend = find("sandboxes", name)(**options)
        return backend
    said = []
    for candidate in AUTO_ORDER:
        backend = find("sandboxes", candidate)(**options)
        report = backend.report()
        if report.works:
            return backend
        said.append(
            f"{candidate}: missing {'; '.join(report.missing)}; fix: {'; '.join(report.fix) or 'none known'}"
        )
    raise SandboxUnavailable(
        "no isolating sandbox backend works here. "
        + " | ".join(said)
        + ". For code you trust, name 'local' yourself."
    )
