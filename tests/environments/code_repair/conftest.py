"""A small real package as a source distribution that needs no network, and the sandbox it is broken in."""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import Package

from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task

CODE = '''"""Small sums."""


def total(values, start=0):
    result = start
    for value in values:
        if value is None:
            continue
        result += value
    return result


def clamp(value, low, high):
    if low > high:
        raise ValueError("low is above high")
    return max(low, min(value, high))


def last(values, count=1):
    return values[-count:]


def never():
    return 1 + 1
'''

TESTS = """import pytest
from small import clamp, last, total


def test_total():
    assert total([1, None, 2]) == 3


def test_total_from_a_start():
    assert total([1], start=4) == 5


@pytest.mark.parametrize("value, expected", [(5, 3), (-5, 0), (2, 2)])
def test_clamp(value, expected):
    assert clamp(value, 0, 3) == expected


def test_clamp_refuses():
    with pytest.raises(ValueError):
        clamp(1, 3, 0)


def test_last():
    assert last([1, 2, 3], 2) == [2, 3]


def test_unrelated():
    assert True
"""

BUILD = """def prepare_metadata_for_build_wheel(directory, settings=None):
    import os
    os.mkdir(os.path.join(directory, "small-1.0.dist-info"))
    with open(os.path.join(directory, "small-1.0.dist-info", "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n")
    return "small-1.0.dist-info"
"""

PROJECT = """[build-system]
requires = []
build-backend = "builder"
backend-path = ["."]
[project]
name = "small"
version = "1.0"
"""


def sdist(path: Path, members: dict[str, str]) -> str:
    """Write a .tar.gz of these members and return its sha256."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A directory that pip can take the package `small` from."""
    place = tmp_path / "index"
    place.mkdir()
    sdist(
        place / "small-1.0.tar.gz",
        {
            "small-1.0/small.py": CODE,
            "small-1.0/tests/test_small.py": TESTS,
            "small-1.0/builder.py": BUILD,
            "small-1.0/pyproject.toml": PROJECT,
            "small-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        },
    )
    return place


@pytest.fixture
def small(index: Path) -> Package:
    """The recipe entry of `small`."""
    digest = hashlib.sha256((index / "small-1.0.tar.gz").read_bytes()).hexdigest()
    return Package(name="small", version="1.0", sha256=digest, package="small.py", tests=("tests/test_*.py",))


@pytest.fixture
def cache(tmp_path: Path, index: Path, small: Package) -> Path:
    """A cache that already holds the source distribution of `small`."""
    place = tmp_path / "cache"
    kept = place / "sdists" / f"{small.slug}-{small.sha256[:16]}.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((index / "small-1.0.tar.gz").read_bytes())
    return place


@pytest.fixture
def in_backend() -> Callable[[Callable[[SandboxBackend], Awaitable[None]]], None]:
    """Run a coroutine function with a backend that is closed afterwards."""

    async def run(body: Callable[[SandboxBackend], Awaitable[None]]) -> None:
        async with make_backend("namespace") as backend:
            await body(backend)

    return lambda body: asyncio.run(run(body))


@pytest.fixture(scope="session")
def write_sdist() -> Callable[[Path, dict[str, str]], str]:
    """`sdist`, for tests that make their own."""
    return sdist


@pytest.fixture
def broken(tmp_path: Path) -> Task:
    """A task made by hand: `total` of the package `small` subtracts, which two tests notice."""
    return make_broken(tmp_path / "broken")


@pytest.fixture(scope="module")
def broken_for_all(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """That task once, for what several tests share."""
    return make_broken(tmp_path_factory.mktemp("for-all") / "broken")


def make_broken(tree: Path) -> Task:
    (tree / "tests").mkdir(parents=True)
    (tree / "small.py").write_text(CODE.replace("result += value", "result -= value"))
    (tree / "tests" / "test_small.py").write_text(TESTS)
    place = "tests/test_small.py"
    return Task(
        id="small/total",
        prompt="2 tests of small fail.",
        world=package_world(tree),
        metadata={
            "layout": Layout(package="small.py", tests=(place,)).model_dump(mode="json"),
            "fail_to_pass": [f"{place}::test_total", f"{place}::test_total_from_a_start"],
            "pass_to_pass": [f"{place}::test_clamp_refuses", f"{place}::test_last", f"{place}::test_unrelated"],
            "errors": {
                f"{place}::test_total": "AssertionError: assert -3 == 3",
                f"{place}::test_total_from_a_start": "AssertionError: assert 3 == 5",
            },
            "tests": 8,
            "suite_s": 0.1,
        },
    )
