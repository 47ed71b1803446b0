"""A small package of several files, the tasks that kinds make of it, and what every kind must keep."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.index import rebuild, write_index
from envgym_environments.code_repair.kinds.build import make_kind_tasks
from envgym_environments.code_repair.kinds.expert import gold_agent
from envgym_environments.code_repair.kinds.ml.recipe import ml_packages
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.sources import Package
from envgym_environments.code_repair.taskset import load_tasks, write_tasks

from envgym.limits import Limits
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym.testing.check_task import check_task

TEXT = '''"""Words."""


def joined(words):
    """With a space between them."""
    return " ".join(words)


def tidy(text):
    """Without double spaces, in lower case."""
    words = text.split()
    if not words:
        return ""
    return joined(words).lower()


def shorten(text, most, mark="~"):
    """At most so many letters, a mark at the end of what was cut."""
    if most < len(mark):
        raise ValueError("most is less than the mark")
    clean = tidy(text)
    if len(clean) <= most:
        return clean
    kept = clean[: most - len(mark)]
    return kept.rstrip() + mark


def counted(words):
    """Word -> how often."""
    found = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def distinct(words):
    """Each word once, in order."""
    seen = set()
    kept = []
    for word in words:
        if word not in seen:
            seen.add(word)
            kept.append(word)
    return kept
'''
BOX = '''"""Things that hold things."""

from shelf.text import distinct, joined, shorten, tidy


class Box:
    """Holds named amounts."""

    def __init__(self, limit=10):
        self.limit = limit
        self.items = {}

    def put(self, name, amount=1):
        """Add an amount; more than the limit is refused."""
        if self.total() + amount > self.limit:
            raise OverflowError(name)
        key = tidy(name)
        self.items[key] = self.items.get(key, 0) + amount

    def total(self):
        return sum(self.items.values())


class Crate:
    """A label, and boxes."""

    def __init__(self, label):
        self.label = shorten(label, most=8)
        self.boxes = []

    def add(self, box):
        self.boxes.append(box)
        return self

    def total(self):
        return sum(box.total() for box in self.boxes)

    def names(self):
        return distinct([name for box in self.boxes for name in box.items])

    def line(self):
        return joined(self.names())
'''
SHELF_TESTS = """import pytest
from shelf import box, text
from shelf.box import Box
from shelf.text import counted, distinct, shorten


def test_tidy():
    assert text.tidy("  A  b ") == "a b"
    assert text.tidy(" ") == ""


def test_shorten():
    assert shorten("A long label", 6) == "a lon~"
    assert shorten("short", 6) == "short"
    assert shorten("a bcd", 3) == "a~"


def test_shorten_refuses():
    with pytest.raises(ValueError):
        shorten("abc", 0)


def test_counted():
    assert counted(["a", "b", "a"]) == {"a": 2, "b": 1}


def test_distinct():
    assert distinct(["b", "a", "b"]) == ["b", "a"]
    assert distinct([]) == []


def test_box():
    held = Box(limit=3)
    held.put("Red  Pen", 2)
    held.put("red pen")
    assert held.items == {"red pen": 3}
    with pytest.raises(OverflowError):
        held.put("cup")


def test_crate():
    crate = box.Crate("A very long label")
    assert crate.label == "a very~"
    crate.add(Box()).add(Box())
    crate.boxes[0].put("a", 2)
    crate.boxes[1].put("a", 3)
    assert crate.total() == 5
    assert crate.names() == ["a"]
    assert crate.line() == "a"
"""
LABEL_TESTS = """from shelf.label import label


def test_label():
    assert label("ABCDEFG") == "abcd~"
"""
FILES = {
    "shelf-1.0/shelf/__init__.py": "",
    "shelf-1.0/shelf/text.py": TEXT,
    "shelf-1.0/shelf/box.py": BOX,
    "shelf-1.0/shelf/label.py": "from shelf import text\n\n\ndef label(name):\n    return text.shorten(name, 5)\n",
    "shelf-1.0/tests/test_shelf.py": SHELF_TESTS,
    "shelf-1.0/tests/test_label.py": LABEL_TESTS,
    "shelf-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\nLicense: MIT\n",
}


@pytest.fixture(scope="session")
def shelf(shelf_cache: Path, write_sdist: Callable[[Path, dict[str, str]], str]) -> Package:
    """The recipe entry of `shelf`, whose source distribution lies in `shelf_cache`."""
    place = shelf_cache / "shelf.tar.gz"
    digest = write_sdist(place, FILES)
    kept = shelf_cache / "sdists" / f"shelf-1.0-{digest[:16]}.tar.gz"
    kept.parent.mkdir(parents=True)
    place.rename(kept)
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == digest
    return Package(
        name="shelf", version="1.0", sha256=digest, package="shelf", tests=("tests/test_*.py",), licence="MIT"
    )


@pytest.fixture(scope="session")
def shelf_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `shelf` lies."""
    return tmp_path_factory.mktemp("shelf-cache")


MADE = {"class": 5, "debug": 1, "ml": 4, "refactor": 5, "speed": 2, "tests": 2}
"""How many tasks of a kind are asked for."""


@pytest.fixture(scope="session")
def made_of_shelf(shelf: Package, shelf_cache: Path) -> Callable[..., object]:
    """The tasks of a kind, with the counts; made once for all that look at them."""
    known: dict[str, tuple[list[Task], Yield]] = {}

    async def make(backend: SandboxBackend, kind: str) -> tuple[list[Task], Yield]:
        if kind not in known:
            counts = Yield()
            wanted = Plan(per_package=MADE[kind], kind=kind, seed=2 if kind == "ml" else 0)
            package = ml_packages()[0] if kind == "ml" else shelf
            made = make_kind_tasks(package, backend, wanted, counts=counts, cache=shelf_cache)
            known[kind] = [task async for task in made], counts
        return known[kind]

    return make


@pytest.fixture
def keeps_the_contract(shelf: Package, shelf_cache: Path, tmp_path: Path) -> Callable[..., object]:
    """What tasks of every kind keep: they are stored, made again from their index, and can be solved by play."""

    async def check(backend: SandboxBackend, tasks: Sequence[Task], plays: int = 1) -> None:
        assert tasks, "at least one task was made"
        file, again = tmp_path / "set.jsonl", tmp_path / "again.jsonl"
        digest = write_tasks(tasks, file, cache=shelf_cache)
        assert list(load_tasks(file, cache=shelf_cache)) == list(tasks)
        index = tmp_path / "set.index"
        write_index(tasks, index, recipe=[shelf])
        made = rebuild(index, cache=shelf_cache)
        assert made == list(tasks)
        assert write_tasks(made, again, cache=shelf_cache) == digest
        for task in tasks:
            record = RepairRecord.from_task(task)
            assert RepairRecord.from_task(record.to_task()) == record
            assert task.metadata["difficulty"]
            assert "certificate" in task.metadata
        await check_task(
            TaskSet(tasks[:plays]),
            lambda task: CodeRepair(task, backend),
            gold_agent,
            seeds=(0,),
            limits=Limits(turns=40),
        )

    return check
