"""Where code and tests lie in a tree that no recipe describes."""

import re
from pathlib import Path

__all__ = ["detect"]

_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
_NO_PACKAGE = frozenset(
    {"test", "tests", "docs", "doc", "examples", "example", "build", "dist", "scripts", "tools"}
)
_NO_CODE = frozenset({"setup", "conftest", "noxfile", "tasks", "fabfile", "test", "tests", "__init__", "__main__"})


def detect(tree: Path, name: str, package: str = "") -> tuple[str, str, tuple[str, ...]]:
    """(source_root, package, patterns of test files), as in `Package`, of the project called `name`.

    package: where that is known, so that only the tests are looked for. Raises ValueError when there is no package
    of that name and not exactly one other (where there is none, not exactly one module), or no test file.
    """
    root, package = (package.rpartition("/")[0] or ".", package) if package else _package(tree, name)
    return root, package, _tests(tree)


def _package(tree: Path, name: str) -> tuple[str, str]:
    wanted = {_plain(name), _plain(name.removeprefix("python-")), _plain(name.removeprefix("py"))}
    others: list[tuple[str, str]] = []
    modules: list[tuple[str, str]] = []
    for root in ("src", "lib", "."):
        base = tree / root
        for path in sorted(base.iterdir()) if base.is_dir() else ():
            is_package = path.is_dir() and (path / "__init__.py").is_file()
            if not is_package and (path.suffix != ".py" or not path.is_file()):
                continue
            found = root, path.relative_to(tree).as_posix()
            if _plain(path.stem) in wanted:
                return found
            if is_package and path.name not in _NO_PACKAGE and not path.name.startswith("test"):
                others.append(found)
            elif not is_package and path.stem not in _NO_CODE and not _TEST_FILE.fullmatch(path.name):
                modules.append(found)
    others = others or modules
    if len(others) == 1:
        return others[0]
    raise ValueError(
        f"no package called {name!r} in the tree; there are {[package for _, package in others][:5]}. Say which: "
        "--source PATH,package=FOLDER (of a mirror, --git PATH --source FOLDER)"
    )


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


def _tests(tree: Path) -> tuple[str, ...]:
    """One pattern for each folder and form of name."""
    patterns: list[str] = []
    for path in sorted(tree.rglob("*.py")):
        place = path.relative_to(tree)
        if not _TEST_FILE.fullmatch(path.name) or {"build", "dist", "node_modules"} & set(place.parts[:-1]):
            continue
        form = "test_*.py" if path.name.startswith("test_") else "*_test.py"
        pattern = (place.parent / form).as_posix()
        if pattern not in patterns:
            patterns.append(pattern)
    if not patterns:
        raise ValueError(f"no test file (test_*.py, *_test.py) in {tree}")
    return tuple(patterns)
