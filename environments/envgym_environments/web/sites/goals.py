"""What a task asks and how it is judged: by the database and by the page that is open, never by what was printed.

A `Goal` is drawn of a site's pristine content. What has to change is written as SQL of its own, not by way of the
application: the grade compares all rows that count, so something done besides is seen as well as something left out.
What has to be shown is an address; it is compared by the entries that it lists. An answer is a typed call.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from werkzeug.test import EnvironBuilder

from envgym.task import Task
from envgym_environments import words
from envgym_environments.played import draws
from envgym_environments.web.database import Database, by_rows, same_answer, wanted_changes
from envgym_environments.web.sites.frame import Site

__all__ = [
    "Do",
    "Goal",
    "build",
    "check",
    "choose",
    "click",
    "drawn",
    "fill",
    "give",
    "grade",
    "listed",
    "pick",
    "press",
    "task_key",
    "tries",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Do:
    """One act of a user: what is done to the element of a role and a name, in a tree. value: text or option."""

    what: str
    role: str
    name: str
    value: str = ""


def click(name: str, role: str = "link") -> Do:
    """Click a link."""
    return Do("click", role, name)


def press(name: str) -> Do:
    """Click a button."""
    return Do("click", "button", name)


def check(name: str) -> Do:
    """Tick a box."""
    return Do("click", "checkbox", name)


def fill(name: str, value: str | int) -> Do:
    """Fill in a field: of text, or of a number."""
    return Do("fill", "textbox|searchbox|spinbutton|Date|DateTime", name, str(value))


def choose(name: str, option: str) -> Do:
    """Choose an option of a selection field."""
    return Do("select", "combobox", name, option)


def give(name: str, file: str) -> Do:
    """Give a file field one of the goal's files."""
    return Do("upload", "button", name, file)


@dataclass(frozen=True, slots=True)
class Goal:
    """One problem.

    changes: statements that make the wanted rows of the pristine ones. shows: path and query of a page that lists
    what the open page must list. answer: what a question's answer is: a number, or a text. path: how a user gets
    there; an answer or the end is added to it. files: what the user has at hand to upload, name -> content.
    """

    prompt: str
    path: tuple[Do, ...]
    changes: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    shows: str = ""
    answer: str | float | int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def tries() -> Iterator[int]:
    """Bounds how often something is drawn until it fits. Raises LookupError after 500."""
    yield from range(500)
    raise LookupError("this content gives no occasion to such a task")


def pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    """One of them, each as likely. Raises LookupError where there is none."""
    if not among:
        raise LookupError("this content gives no occasion to such a task")
    return words.pick(rng, among)


@lru_cache(maxsize=64)
def build(site_key: "Key") -> bytes:
    """The pristine database of a site with the content of a seed; the same bytes every time."""
    site, content = site_key.site, site_key.content
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(f"PRAGMA page_size = 1024; VACUUM; {site.schema}")
        with connection:
            site.fill(connection, draws(content, len(site.name), 0x517E))
        return connection.serialize()
    finally:
        connection.close()


@dataclass(frozen=True, eq=False)
class Key:
    """A site and the seed of its content, hashed by the site's name."""

    site: Site
    content: int

    def __hash__(self) -> int:
        return hash((self.site.name, self.content))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and (self.site.name, self.content) == (other.site.name, other.content)


@lru_cache(maxsize=2048)
def drawn(key: Key, kind: str, seed: int) -> Goal:
    """The goal of a task. Raises LookupError where a site's content gives no occasion to it."""
    database = Database(build(key))
    try:
        rng: np.random.Generator = draws(key.content, seed, sum(kind.encode()), 0x60A1)
        return key.site.kinds[kind](database.connection, rng)
    finally:
        database.close()


def grade(site: Site, goal: Goal, database: Database, *, url: str, answer: str | float | None) -> dict[str, float]:
    """The verdict as channels, each 0 or 1 but `done`.

    reward: all that was asked, and nothing else. state: the rows are what they should be. done: the share of the
    wanted changes that were made. harm: something was changed that should not have been. shown: the open page lists
    what it should. answered: the answer is right. The last two are there where they are asked for.
    """
    pristine = Database(database.pristine)
    try:
        channels = by_rows(database, *wanted_changes(database, goal.changes))
        if goal.shows:
            channels["shown"] = float(listed(site, pristine, goal.shows) == listed(site, pristine, url))
        if goal.answer is not None:
            channels["answered"] = float(answer is not None and same_answer(answer, goal.answer))
    finally:
        pristine.close()
    right = all(channels.get(name, 1.0) for name in ("state", "shown", "answered"))
    return {"reward": float(right), **channels}


def listed(site: Site, database: Database, url: str) -> tuple[str, ...]:
    """The page of an address, reduced to its path and the entries that it lists, in their order."""
    parts = urlsplit(url)
    if parts.netloc and parts.netloc.partition(":")[0] != f"{site.name}.test":
        return ("elsewhere",)
    environ = EnvironBuilder(path=parts.path or "/", query_string=parts.query, base_url=site.origin).get_environ()
    text = site.respond(database.connection, environ).get_data(as_text=True)
    return (parts.path, *re.findall(r'data-entry="([^"]*)"', text))


def task_key(task: Task, sites: Mapping[str, Site]) -> Key:
    """Site and content of a task."""
    return Key(sites[str(task.metadata["site"])], int(str(task.metadata["content"])))
