"""A problem as frozen data: `Task`, the `World` it is played in, and `TaskSet`, many of them.

A task says everything needed to rebuild, run and grade it; behaviour lives in environments.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
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
        self._split_of: Callable[[int], str] | None = None

    @classmethod
    def lazy(
        cls, make: Callable[[int], Task], *, length: int | None = None, split_of: Callable[[int], str] | None = None
    ) -> "TaskSet":
        """A set whose i-th task is ``make(i)``.

        split_of: the split of the i-th task, where that is known before the task is made; `split` then makes none.
        `check_tasks` looks whether it tells the truth. Raises ValueError for a length that is no number of tasks.
        """
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 0):
            raise ValueError(f"a set cannot have {length!r} tasks: the count must be a whole number of at least 0")
        self = cls(())
        self._make, self._length, self._split_of = make, length, split_of
        return self

    def split_at(self, index: int) -> str:
        """The split of a task (index from 0), which is made only where its split is not known otherwise."""
        return self[index].split if self._split_of is None else self._split_of(index)

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
            return self._at(lambda i: start + i * step, length)
        chosen = range(self._length)[index]
        return self._at(chosen.__getitem__, len(chosen))

    def _at(self, place: Callable[[int], int], length: int | None) -> "TaskSet":
        """The tasks of these places."""
        make, split_of = self._make, self._split_of
        known = None if split_of is None else lambda i: split_of(place(i))
        return TaskSet.lazy(lambda i: make(place(i)), length=length, split_of=known)

    def __iter__(self) -> Iterator[Task]:
        index = 0
        while self._length is None or index < self._length:
            yield self._make(index)
            index += 1

    def split(self, name: str) -> "TaskSet":
        """The tasks of one split in order, each made once at most. Raises TypeError for an infinite set."""
        count = len(self)
        if self._split_of is None:
            return TaskSet([task for task in self if task.split == name])
        places = [index for index in range(count) if self._split_of(index) == name]
        return TaskSet.lazy(cache(lambda i: self._make(places[i])), length=len(places), split_of=lambda i: name)

    def splits(self) -> list[str]:
        """The names of all splits, sorted. Raises TypeError for an infinite set."""
        return sorted({self.split_at(index) for index in range(len(self))})

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
