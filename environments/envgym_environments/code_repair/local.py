"""Any source tree as a package of the factory: a folder, a local git repository, or an archive; nothing is fetched.

Of a repository the commit HEAD is taken, not what lies uncommitted beside it. Where code and tests lie is detected
(see `mirrors.detect`) unless it is said. Test files that cannot be collected here are left out, with the reason.
"""

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envgym.sandbox import SandboxBackend
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.mirrors.commits import Repository
from envgym_environments.code_repair.mirrors.detect import detect
from envgym_environments.code_repair.mirrors.git import drop_links_out, git_folder
from envgym_environments.code_repair.mirrors.releases import stated_licence
from envgym_environments.code_repair.patch import ignored
from envgym_environments.code_repair.runner import run_tests
from envgym_environments.code_repair.sources import Package, cache_root, layout_of, place_tree, unpack

__all__ = ["Source", "check_names", "copied", "local_package", "source_of", "usable", "without_broken"]

_COLLECT_S = 300.0


@dataclass(frozen=True, slots=True)
class Source:
    """A tree on this machine. package, tests: where code and test patterns lie ("" and () are detected)."""

    path: Path
    name: str = ""
    package: str = ""
    tests: tuple[str, ...] = ()
    split: Literal["train", "heldout"] = "train"

    @property
    def called(self) -> str:
        """Its name, of the path where none is given."""
        plain = re.sub(r"(\.tar)?\.(gz|tgz|xz|bz2|zip)$|\.tgz$|\.git$", "", self.path.resolve().name)
        plain = self.name or re.sub(r"[-_](?=\d)[\w.]+$", "", plain)
        return re.sub(r"[^A-Za-z0-9._-]", "-", plain).strip("-._") or "source"


def source_of(text: str) -> Source:
    """A source as it is written: PATH[,name=NAME][,package=FOLDER][,tests=PATTERN]..., or a path that is there."""
    options: dict[str, list[str]] = {"name": [], "package": [], "tests": []}
    while not Path(text).exists() and (found := re.fullmatch(r"(.+),(name|package|tests)=([^,]+)", text)):
        text = found[1]
        options[found[2]].insert(0, found[3])
    name, package = ((options[one] or [""])[-1] for one in ("name", "package"))
    return Source(Path(text), name=name, package=package.strip("/"), tests=tuple(options["tests"]))


def check_names(sources: Sequence[Source], others: Sequence[str] = ()) -> None:
    """Raise ValueError where two of them, or one and another that is built with it, have one name."""
    seen = set(others)
    for source in sources:
        if source.called in seen:
            raise ValueError(
                f"{source.called!r} is the name of two: give {source.path} another one, "
                f"--source {source.path},name={source.called}-2"
            )
        seen.add(source.called)


def local_package(source: Source, *, cache: Path, deselect: dict[str, str] | None = None) -> Package:
    """The package of a source, its tree in the cache as a fetched one would be.

    Raises ValueError when there is no such path, or its code or tests are not found.
    """
    if not source.path.exists():
        raise ValueError(f"--source {source.path}: there is no such file or folder")
    with tempfile.TemporaryDirectory(prefix="envgym-source-") as place:
        top, version = copied(source, Path(place), cache)
        root, package, tests = source.package.rpartition("/")[0] or ".", source.package, source.tests
        if not (top / package).exists():
            raise ValueError(f"--source {source.path}: there is no {package!r} in its tree")
        if not package or not tests:
            found = detect(top, source.called, package)
            root, package = (root, package) if package else found[:2]
            tests = tests or found[2]
        recipe = Package(
            name=source.called,
            version=version,
            sha256=_digest(top),
            package=package,
            source_root=root,
            tests=tests,
            deselect=deselect or {},
            split=source.split,
            licence=stated_licence(top),
            origin="local",
        )
        place_tree(recipe, top, cache=cache)
    return recipe


def copied(source: Source, place: Path, cache: Path) -> tuple[Path, str]:
    """A private copy of the tree, and its version."""
    path = source.path.resolve()
    if path.is_file():
        top = unpack(path, place)
        return top, _version(top)
    copy = place / "tree"
    if (path / ".git").exists() or git_folder(path) is not None:
        repository = Repository(path=path, name=source.called)
        commit = repository.git("rev-parse", "HEAD").strip()
        shutil.copytree(repository.tree_of(commit, cache), copy, symlinks=True, ignore=_ignored)
        return copy, commit[:12]
    try:
        shutil.copytree(path, copy, symlinks=True, ignore=_ignored)
    except shutil.Error as error:
        name, _, why = error.args[0][0]
        raise ValueError(f"--source {source.path}: {name} cannot be copied: {why}") from error
    drop_links_out(copy)
    return copy, _version(copy)


def _ignored(folder: str, names: list[str]) -> set[str]:
    """What is no source, and what is neither file, folder nor link."""
    return {name for name in names if ignored(name) or not _plain(os.lstat(os.path.join(folder, name)).st_mode)}


def _plain(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _version(top: Path) -> str:
    for name, pattern in (
        ("PKG-INFO", r"^Version: *(\S+)"),
        ("pyproject.toml", r"^version *= *[\"']([^\"']+)"),
        ("setup.cfg", r"^version *= *(\d\S*)"),
    ):
        place = top / name
        if place.is_file() and (found := re.search(pattern, place.read_text(errors="replace"), re.MULTILINE)):
            plain = re.sub(r"[^A-Za-z0-9.!+_-]", "", found[1])
            if re.match(r"[A-Za-z0-9]", plain):
                return plain
    return "0"


def _digest(top: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_file() and not ignored(name):
            total.update(f"{name}\0".encode("utf-8", "surrogateescape"))
            total.update(
                hashlib.sha256(os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()).digest()
            )
    return total.hexdigest()


async def without_broken(
    source: Source, package: Package, backend: SandboxBackend, *, cache: Path
) -> tuple[Package, Sequence[str]]:
    """The package without test files that cannot be collected here, and their names.

    Raises ValueError when none can: what the first one lacks is said.
    """
    tree = place_tree(package, None, cache=cache)
    layout = layout_of(package, tree)
    async with await backend.create(package_world(tree)) as sandbox:
        report = await run_tests(sandbox, layout, timeout_s=_COLLECT_S)
    broken = {name: f"cannot be collected: {line[:120]}" for name, line in report.collection_errors.items()}
    left = [name for name in layout.tests if name not in broken]
    if not left:
        first = next(iter(broken.items()), ("", report.doubt or "no test file"))
        raise ValueError(f"no test of {package.slug} can be collected here; {first[0]}: {first[1]}")
    if not broken:
        return package, ()
    again = await asyncio.to_thread(local_package, source, cache=cache, deselect={**package.deselect, **broken})
    return again, tuple(broken)


async def usable(
    source: Source, backend: SandboxBackend, *, tell: Callable[[str], None], cache: Path | None = None
) -> Package:
    """`local_package` and `without_broken` in one; `tell` gets a line for each file that is left out."""
    root = cache or cache_root()
    found = await asyncio.to_thread(local_package, source, cache=root)
    package, left_out = await without_broken(source, found, backend, cache=root)
    for name in left_out:
        tell(f"{package.slug}: {name} is left out: {package.deselect[name]}")
    return package
