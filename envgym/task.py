"""A problem as frozen data: `Task`, the `World` it is played in, and `TaskSet`, many of them.

A task says everything needed to rebuild, run and grade it; behaviour lives in environments.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Self, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, field_validator, model_validator

from envgym.arguments import checked_text, instance
from envgym.egress import EgressRule
from envgym.limits import Resources
from envgym.world_rules import (
    check_files,
    check_modules,
    check_path,
    check_texts,
    check_variables,
    check_workdir,
)

__all__ = ["Task", "TaskSet", "Tree", "World", "checked_world", "evenly"]

T = TypeVar("T")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tree(_Frozen):
    """A directory of the host that appears copy-on-write at an absolute `target` path of the world.

    The source is never written to; it must not change while worlds made from it live.
    """

    source: str
    target: str


class World(_Frozen):
    """Where a task is played.

    image: "host" (the host's root, read-only below a copy-on-write layer, secrets masked), the name or digest of
        an image of this machine (`envgym images list`), a name that the backend was given (its option ``images``),
        or an absolute path: a root file system's directory or tar, an OCI layout, a ``docker save`` tar.
    trees: host directories laid over the image.
    files: absolute path inside the world -> text content, laid over the trees.
    setup: shell commands run once; their result is part of the task's base snapshot.
    workdir: where commands begin, made if it is not there; none of the places of programs (/usr, /etc, /proc, ...).
    network: whether programs have the host's network, all of it.
    egress: instead, the only places outside that programs may connect to, through a logging proxy that HTTP_PROXY
        and its like name: "pypi.org" (ports 80 and 443), "pypi.org:8443", "*.example.org" (every name below, not
        the suffix itself), "192.0.2.1:80", "[2001:db8::1]:80". A name counts only with public addresses; others
        must be listed themselves. () is none.
    preload: Python modules that a backend may import once into a warm interpreter, used by
        ``exec([WARM_PYTHON, ...])``; they must be ones the agent cannot influence. Worlds on the host have one, for
        which what cannot be imported by this process's interpreter is a ValueError; images have none.
    """

    image: str = "host"
    trees: tuple[Tree, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    setup: tuple[str, ...] = ()
    workdir: str = "/work"
    env: dict[str, str] = Field(default_factory=dict)
    network: StrictBool = False
    egress: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    resources: Resources = Resources()

    @field_validator("egress")
    @classmethod
    def _rules(cls, egress: tuple[str, ...]) -> tuple[str, ...]:
        for rule in egress:
            EgressRule.parse(rule)
        return egress

    @model_validator(mode="after")
    def _possible(self) -> Self:
        checked_text("World.image", self.image)
        if not self.image:
            raise ValueError("World.image is ''; it must be a name, an absolute path, or 'host'")
        check_workdir(self.workdir, host=self.image == "host")
        for tree in self.trees:
            checked_text("World.trees source", tree.source)
            check_path("World.trees target", tree.target)
        check_files(
            self.files, {tree.target: "World.trees" for tree in self.trees} | {self.workdir: "World.workdir"}
        )
        check_texts("World.setup", self.setup)
        check_variables("World.env", self.env)
        check_modules("World.preload", self.preload)
        return self

    @model_validator(mode="after")
    def _one_network(self) -> Self:
        if self.network and self.egress:
            raise ValueError(
                f"World.egress is {self.egress} and World.network is True: rules for a network that is all open; "
                "leave network False for the rules to count, or egress empty"
            )
        return self


def checked_world(world: object) -> World:
    """A world, as it is. `model_copy` checks nothing, so this does. Raises TypeError, ValueError."""
    given = instance("world", world, World)
    World.model_validate(dict(given) | {"resources": dict(given.resources)})
    return given


class Task(_Frozen):
    """One problem. `id` is unique in its set; `metadata` is the environment's, never branched on by the trunk."""

    id: str
    prompt: str
    world: World | None = None
    split: str = "train"
    seed: int = 0
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class TaskSet(Sequence[Task]):
    """Tasks by index: a tuple, or a generator function of the index (lazy, possibly infinite).

    ``TaskSet(tasks)`` holds them; ``TaskSet.lazy(make, length)`` calls ``make(i)`` on demand and with
    ``length=None`` never ends (then `len` raises TypeError and negative indices are refused).
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._make: Callable[[int], Task] = tasks.__getitem__
        self._length: int | None = len(tasks)

    @classmethod
    def lazy(cls, make: Callable[[int], Task], *, length: int | None = None) -> "TaskSet":
        """A set whose i-th task is ``make(i)``."""
        self = cls(())
        self._make, self._length = make, length
        return self

    @property
    def infinite(self) -> bool:
        """Whether the set never ends."""
        return self._length is None

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("this TaskSet is infinite: take a slice with a stop, such as tasks[:100]")
        return self._length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "TaskSet": ...
    def __getitem__(self, index: int | slice) -> "Task | TaskSet":
        if isinstance(index, slice):
            return self._slice(index)
        if self._length is None:
            if index < 0:
                raise IndexError(f"index {index} of an infinite TaskSet; it must be at least 0")
            return self._make(index)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is outside this TaskSet of {self._length} tasks")
        return self._make(index % self._length)

    def _slice(self, index: slice) -> "TaskSet":
        if self._length is None:
            start, step = index.start or 0, index.step or 1
            if start < 0 or step < 1 or (index.stop is not None and index.stop < 0):
                raise IndexError(f"slice {index} of an infinite TaskSet; start, stop and step must not be negative")
            length = None if index.stop is None else len(range(start, index.stop, step))
            return TaskSet.lazy(lambda i: self._make(start + i * step), length=length)
        chosen = range(self._length)[index]
        return TaskSet.lazy(lambda i: self._make(chosen[i]), length=len(chosen))

    def __iter__(self) -> Iterator[Task]:
        index = 0
        while self._length is None or index < self._length:
            yield self._make(index)
            index += 1

    def split(self, name: str) -> "TaskSet":
        """The tasks of one split, held in order. Raises TypeError for an infinite set."""
        len(self)
        return TaskSet([task for task in self if task.split == name])

    def take(self, count: int) -> list[Task]:
        """The first `count` tasks as a list (fewer if the set is shorter)."""
        return list(islice(self, count))


def evenly(items: Sequence[T], most: int | None) -> Sequence[T]:
    """At most `most` items (None: all) in order, evenly spread: of things that stand together, each has its share.

    Raises ValueError for a negative `most`.
    """
    if most is None or len(items) <= most:
        return items
    if most < 0:
        raise ValueError(f"most is {most}; it must be at least 0")
    return [items[place * len(items) // most] for place in range(most)]
