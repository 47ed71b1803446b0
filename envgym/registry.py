"""Names for things that leaves and third parties provide, found by entry point; nothing is imported until asked.

Twelve groups: ``envgym.environments`` (an `EnvSpec`), ``envgym.sandboxes`` (a backend class),
``envgym.interpreters`` (a coroutine function ``open(sandbox, **options) -> Interpreter``), ``envgym.browsers`` (a
function ``open(**options) -> Browser``), ``envgym.screens`` (one that gives a `Screen`), ``envgym.agents`` (a
function ``make(task, *, seed, **options) -> Agent``), ``envgym.formats`` (a `Format`), ``envgym.task_formats`` (how
another tool spells repair tasks), ``envgym.schemes`` (a `SchemeSpec`), ``envgym.wrappers`` (``make(**options) ->
Twist``), ``envgym.reward_models`` (``open(path, *, device) -> LearnedReward``) and ``envgym.commands`` (a CLI
command).
Our own entries use the same doors as anybody's; `register` adds one at run time.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from envgym.credit import Scheme, SchemeSpec
from envgym.credit.result import checked_scheme
from envgym.env import Env, Playable
from envgym.errors import EnvgymError, SandboxUnavailable
from envgym.gymnasium_plugin import announce, gymnasium_id
from envgym.interpreter import Interpreter
from envgym.isolate import Isolated
from envgym.options import hint, wrong_option
from envgym.replay import Replaying, as_env
from envgym.rewards.rewarded import Rewarded, rewarding
from envgym.sandbox import BackendReport, Sandbox, SandboxBackend
from envgym.task import Task, TaskSet
from envgym.wrappers.named import named_twists
from envgym.wrappers.twist import Twist, Wrapped

__all__ = [
    "AUTO_ORDER", "EnvSpec", "Group", "check_backend", "choose_task", "entry_point", "find", "gymnasium_id", "make",
    "make_backend", "make_scheme", "names", "open_interpreter", "own_options", "package_of", "register", "reports",
    "spec", "unregister",
]  # fmt: skip

Group = Literal[
    "environments", "sandboxes", "interpreters", "browsers", "screens", "agents", "formats", "task_formats",
    "schemes", "wrappers", "reward_models", "commands",
]  # fmt: skip

AUTO_ORDER = ("namespace", "landlock", "docker")
"""Backends that "auto" may take, in this order. Those that do not isolate are never chosen silently.

Namespaces are the strongest wall that needs nothing but the kernel. Landlock is weaker, but plays the same worlds
with the same programs, also where namespaces are forbidden. Docker comes last although its walls are as good: it
plays no world on the host, and who may use an engine is root, which should be somebody's choice.
"""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """How to make one kind of environment.

    name: kebab-case, unique; `gymnasium_id` derives the Gymnasium id from it.
    tasks: ``tasks(**options) -> TaskSet``; options that it does not know must raise TypeError. What is asked of
        it later is looked at: anything else than a TaskSet, or what it raises, is an error with the name.
    make: ``make(task, **options) -> Env or Playable``; receives ``backend=`` when `sandbox` is true.
    sandbox: whether it acts in a sandbox.
    in_process: whether its coroutines never wait, so that the synchronous view needs no event loop.
    seeded: whether a task's own seed draws what else its data does not say, so that tasks which differ in it alone
        are different problems. Where it is not, `check_tasks` finds one problem in two splits by all but the seed,
        or by `content`: ``content(task)`` is what the task asks, as JSON, where its data does not say it.
    cheats: ``cheats() -> Sequence[envgym.testing.Cheat]``, the agents that `envgym check` tries to cheat it with;
        the first of them, named "idle", does nothing. None where there are none.
    """

    name: str
    tasks: Callable[..., TaskSet]
    make: Callable[..., Env | Playable]
    description: str = ""
    sandbox: bool = False
    in_process: bool = False
    seeded: bool = False
    content: Callable[[Task], Any] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    cheats: Callable[[], Sequence[Any]] | None = None

    def __post_init__(self) -> None:
        _check_name("environments", self.name)
        for part, says in (("tasks", "tasks(**options) -> TaskSet"), ("make", "make(task, **options) -> Env")):
            if not callable(value := getattr(self, part)):
                raise TypeError(
                    f"environment {self.name!r}: {part} is {value!r}; it must be a function, ``{says}``"
                )
        # `replace` passes on what is wrapped already
        given = self.tasks.__wrapped__ if isinstance(self.tasks, _Tasks) else self.tasks
        object.__setattr__(self, "tasks", _Tasks(given, self.name))


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The function that gives an environment's tasks, with its mistakes told by the environment's name."""

    __wrapped__: Callable[..., TaskSet]  # so that `inspect.signature` shows the options
    name: str

    def __call__(self, *given: Any, **options: Any) -> TaskSet:
        try:
            found = self.__wrapped__(*given, **options)
        except (EnvgymError, ImportError, OSError):
            raise  # the world's fault, not the set's
        except Exception as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raised = str(error) if type(error) in (TypeError, ValueError) else f"{type(error).__name__}: {error}"
            raise kind(f"the tasks of environment {self.name!r} cannot be had: {raised}") from error
        if not isinstance(found, TaskSet):
            raise TypeError(
                f"the tasks of environment {self.name!r} are {_a(found)}; its `tasks` must give a TaskSet, such as "
                "TaskSet([Task(...)])"
            )
        return found


_ONE: dict[str, str] = {
    "environments": "environment", "sandboxes": "sandbox", "interpreters": "interpreter", "browsers": "browser",
    "screens": "screen", "agents": "agent", "formats": "format", "task_formats": "task format", "schemes": "scheme",
    "wrappers": "wrapper", "reward_models": "kind of reward model", "commands": "command",
}  # fmt: skip

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def _check_name(group: Group, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{_ONE[group]} name {name!r} is not kebab-case: small letters and digits, parts joined by '-'"
        )


def _own(group: Group) -> dict[str, Any]:
    """What was registered in a group at run time. Raises ValueError for an unknown group."""
    if group not in _registered:
        raise ValueError(f"unknown group {group!r}; {hint(str(group), list(_registered))}")
    return _registered[group]


def _a(thing: object) -> str:
    """What a thing is, to say in a sentence: `an int`, `a list`."""
    kind = type(thing).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


_CALLED = ("sandboxes", "interpreters", "browsers", "screens", "agents", "wrappers", "reward_models")
_registered: dict[str, dict[str, Any]] = {group: {} for group in _ONE}


def register(group: Group, name: str, thing: Any) -> None:
    """Add an entry for this process.

    Raises ValueError for an unknown group, a name that is not kebab-case, or one that is taken by another thing;
    TypeError for an environment that is no EnvSpec, and for anything else that cannot be called.
    """
    own = _own(group)
    _check_name(group, name)
    if group == "environments" and not isinstance(thing, EnvSpec):
        raise TypeError(f"environment {name!r} is {_a(thing)}; give an EnvSpec")
    if group == "schemes" and not isinstance(thing, SchemeSpec):
        raise TypeError(f"scheme {name!r} is {_a(thing)}; give a SchemeSpec")
    if group == "schemes" and thing.name != name:
        raise ValueError(f"scheme {thing.name!r} is registered as {name!r}; give it the name that it has")
    if not callable(thing) and group in _CALLED:
        raise TypeError(f"{_ONE[group]} {name!r} is {_a(thing)}; give what makes one: a class or a function")
    if name in names(group) and own.get(name) is not thing:
        raise ValueError(
            f"{_ONE[group]} {name!r} is already registered; choose another name or unregister it first"
        )
    own[name] = thing
    if group == "environments":
        announce(name)


def unregister(group: Group, name: str) -> None:
    """Remove an entry that `register` added."""
    del _own(group)[name]


def _entry_points(group: Group) -> dict[str, EntryPoint]:
    """Read again where a folder of the import path has changed: it takes 12 ms, and each step of learning asks."""
    paths = [path or "." for path in sys.path]
    return _installed(group, tuple((path, os.stat(path).st_mtime_ns) for path in paths if os.path.exists(path)))


@lru_cache(maxsize=32)
def _installed(group: Group, folders: tuple[tuple[str, int], ...]) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"envgym.{group}")}


def names(group: Group) -> list[str]:
    """Every name of a group, sorted; imports nothing."""
    return sorted({*_own(group), *_entry_points(group)})


def find(group: Group, name: str) -> Any:
    """The thing behind a name.

    Raises ValueError for an unknown name, with the nearest ones, and ImportError (naming the entry point)
    when it is known but its package cannot be imported here.
    """
    if name in _own(group):
        return _own(group)[name]
    entry = _entry_points(group).get(name)
    if entry is None:
        raise ValueError(f"unknown {_ONE[group]} {name!r}; {hint(name, names(group))}")
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{_ONE[group]} {name!r} ({entry.value}) cannot be imported: {error}; {_remedy(entry, error)}"
        ) from error


def make_scheme(name: str, **options: Any) -> Scheme:
    """A registered credit scheme.

    Raises ValueError, ImportError as `find`; TypeError when it is no SchemeSpec; ValueError for an option that it
    does not know, or for something it needs that is not given. Raises, when it runs, where what it gave is not
    credit (`envgym.credit.result`).
    """
    found = find("schemes", name)
    if not isinstance(found, SchemeSpec):
        raise TypeError(f"scheme {name!r} is {_a(found)}; its entry point must name a SchemeSpec")
    if lacks := [need for need in found.needs if need not in options]:
        what = ", ".join(f"{need} of {found.needs[need]}s" if found.needs[need] else need for need in lacks)
        how = (
            "as a function in Python, or in training a critic" if any(found.needs[need] for need in lacks) else "it"
        )
        raise ValueError(f"scheme {name!r} needs {what}: give {how}; {found.summary}")
    if (wrong := wrong_option(f"scheme {name!r}: option", options, found.make)) is not None:
        raise ValueError(wrong)
    return checked_scheme(found.make(**options), name=f"scheme {name!r}")


def package_of(group: Group, name: str) -> str | None:
    """Name and version of the installed package that a name comes from; None for what this process registered."""
    entry = entry_point(group, name)
    return f"{entry.dist.name} {entry.dist.version}" if entry is not None and entry.dist is not None else None


def entry_point(group: Group, name: str) -> EntryPoint | None:
    """Where a name is installed; None for what this process registered, and for an unknown name."""
    return None if name in _own(group) else _entry_points(group).get(name)


def _remedy(entry: EntryPoint, error: Exception) -> str:
    """What helps when an entry point cannot be imported: another package that is missing, or its own mistake."""
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and missing != entry.module.partition(".")[0]:
        return "install the extra it needs"
    return f"see the entry point {entry.name!r} of {entry.dist.name if entry.dist else 'its package'}"


def spec(name: str) -> EnvSpec:
    """The spec of an environment. Raises ValueError, ImportError as `find`, TypeError when it is no EnvSpec."""
    found = find("environments", name)
    if not isinstance(found, EnvSpec):
        raise TypeError(f"environment {name!r} is {_a(found)}; its entry point must name an EnvSpec")
    return found


def make(
    name: str | EnvSpec,
    task: Task | int = 0,
    *,
    backend: SandboxBackend | None = None,
    isolate: Literal["process"] | None = None,
    wrap: Any = (),
    rewards: Any = None,
    **options: Any,
) -> Env:
    """An environment by name or spec: ``make("guess")``, ``make("code-repair", 3, backend=backend, tools="full")``.

    `task` is a Task or an index into the spec's task set (then `options` it names for tasks are refused: pass
    a Task for anything else than the default set). A `Playable` is wrapped by `Replaying`. With
    ``isolate="process"`` it runs in a process of its own (`envgym.isolate.Isolated`), there with a backend of its
    own of the same name as `backend`. wrap: see `twists`; they go around it. rewards: a plan, a table or a TOML
    file of it (`envgym.rewards.plan`); its reward takes the place of all others, around everything. Raises
    ValueError when the environment needs a sandbox and none is given.
    """
    found = spec(name) if isinstance(name, str) else name
    task = choose_task(found, task)
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
    around, plan = twists(wrap), rewarding(rewards, find)
    again = partial(found.make, task, **chosen)
    env = as_env(again(), again) if isolate is None else _isolated(name, task, backend, options)
    for twist in around:
        env = Wrapped(env, twist)
    return env if plan is None else Rewarded(env, *plan)


def twists(wrap: Any) -> list[Twist]:
    """What goes around an environment, from the inside out; see `envgym.wrappers.named.named_twists`."""
    return named_twists(wrap, find)


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that go to the environment itself: without `isolate`, `wrap` and `rewards`, which are `make`'s.

    Raises ValueError, TypeError for a wrong one of these.
    """
    twists(options.get("wrap", ()))
    rewarding(options.get("rewards"), find)
    return {name: value for name, value in options.items() if name not in ("isolate", "wrap", "rewards")}


def choose_task(found: EnvSpec, task: object) -> Task:
    """A Task as it is, or the one with that index. Raises TypeError for anything else, IndexError out of range."""
    if isinstance(task, int):
        task = found.tasks()[task]
    if not isinstance(task, Task):
        raise TypeError(f"task of environment {found.name!r} is {task!r}; it must be a Task or its index (an int)")
    return task


def _isolated(name: str | EnvSpec, task: Task, backend: SandboxBackend | None, options: dict[str, Any]) -> Env:
    # the name where it is an entry point: what it names need then not be picklable
    known = name
    if isinstance(name, str) and entry_point("environments", name) is None:
        known = spec(name)
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

    Raises SandboxUnavailable with every candidate's missing pieces and fixes when none does; TypeError for what is
    no name, and for an option that the backend lacks.
    """
    if not isinstance(name, str):
        known = ", ".join(("auto", *names("sandboxes")))
        raise TypeError(f"the name of a backend is {name!r}; it must be a str, one of {known}")
    if name != "auto":
        check_backend(name, options)
        named: SandboxBackend = find("sandboxes", name)(**options)
        return named
    said = []
    wrong = [_wrong_options(candidate, options) for candidate in AUTO_ORDER]
    if all(wrong):
        raise TypeError(wrong[0])
    for candidate, lacking in zip(AUTO_ORDER, wrong, strict=True):
        if lacking:
            said.append(lacking)
            continue
        try:
            backend: SandboxBackend = find("sandboxes", candidate)(**options)
        except ImportError as error:  # an extra that is not installed is one more thing that is missing
            said.append(f"{candidate}: {error}")
            continue
        report = backend.report()
        if report.works:
            return backend
        fixes = "; ".join(report.fix) or "none known"
        said.append(f"{candidate}: missing {'; '.join(report.missing)}; fix: {fixes}")
    raise SandboxUnavailable(
        "no isolating sandbox backend works here. "
        + " | ".join(said)
        + ". For code you trust, name 'local' yourself."
    )


def check_backend(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError or TypeError for a name or an option that `make_backend` would refuse; makes nothing."""
    if name not in names("sandboxes"):
        find("sandboxes", name)
    if wrong := _wrong_options(name, options):
        raise TypeError(wrong)


def _wrong_options(name: str, options: Mapping[str, Any]) -> str | None:
    try:
        return wrong_option(f"backend {name!r}: options", options, find("sandboxes", name))
    except ImportError:  # said when it is made
        return None


async def open_interpreter(sandbox: Sandbox, *, kind: str = "python", **options: Any) -> Interpreter:
    """A stateful interpreter in a sandbox; `options` are those of its kind, see ``envgym list``.

    It lives in processes of the sandbox, and ends with it. Raises ValueError for an unknown kind or option.
    """
    opened = find("interpreters", kind)
    if wrong := wrong_option(f"interpreter {kind!r}: options", options, opened, skip=1):
        raise ValueError(wrong)
    interpreter: Interpreter = await opened(sandbox, **options)
    return interpreter
