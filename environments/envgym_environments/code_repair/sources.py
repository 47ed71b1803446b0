"""Real packages as source trees: fetched by exact version and hash, unpacked once, kept in a cache.

Fetching is set-up and goes through pip, so the index, certificates and proxies are the ones pip is configured
with. Nothing here runs tests, and no code of a package is ever part of this project.
"""

import email
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from envgym.errors import InfrastructureFailure
from envgym_environments.code_repair.kinds.ml.tree import digest_of_tree, tree_files
from envgym_environments.code_repair.precompile import precompile
from envgym_environments.code_repair.recipe import read_recipe
from envgym_environments.code_repair.runner import WORKDIR, Layout

__all__ = [
    "Package",
    "cache_root",
    "fetch",
    "layout_of",
    "licence_of",
    "packages",
    "place_tree",
    "source_tree",
    "unpack",
]

_MAX_UNPACKED_BYTES = 200 << 20
_TREE_FORMAT = 2


class Package(BaseModel):
    """One entry of ``packages.toml``.

    source_root, package: as in `Layout`. tests: glob patterns of test files, relative to the tree.
    deselect: test file or test id -> why it does not run.
    split: "train" or "heldout"; every task of a package is in the package's split.
    licence: as the distribution's own metadata says it (`licence_of`), checked when it is unpacked; "" is not
    checked. origin: "local" for a tree of this machine (see `local`), which nothing can fetch, "builtin" for one
    that this project writes (see `kinds.ml`); its sha256 is of the tree.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    package: str
    tests: tuple[str, ...] = Field(min_length=1)
    source_root: str = "."
    deselect: dict[str, str] = Field(default_factory=dict)
    split: Literal["train", "heldout"] = "train"
    licence: str = ""
    origin: Literal["pypi", "local", "builtin"] = "pypi"

    @property
    def slug(self) -> str:
        """Name and version, as they appear in task ids."""
        return f"{self.name}-{self.version}"


def cache_root() -> Path:
    """``$ENVGYM_CACHE``, or ``~/.cache/envgym``. Not created here."""
    configured = os.environ.get("ENVGYM_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "envgym"


def packages(path: Path | None = None) -> tuple[Package, ...]:
    """The packages of a recipe file (default: the one of this project), in its order.

    Raises ValueError naming file, entry and field when the file is not a valid recipe.
    """
    return read_recipe(Package, "package", own="envgym_environments.code_repair/packages.toml", path=path)


def fetch(package: Package, *, cache: Path | None = None, pip_arguments: Sequence[str] = ()) -> Path:
    """The package's source distribution, from the cache or else through pip.

    A cached file is checked again. Raises InfrastructureFailure when the index does not give it, ValueError when
    its sha256 is not the recipe's; neither leaves anything behind.
    """
    store = (cache or cache_root()) / "sdists"
    kept = store / f"{package.slug}-{package.sha256[:16]}.tar.gz"
    if kept.exists():
        _check_hash(kept, package)
        return kept
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".fetch-") as place:
        _pip_download(package, Path(place), pip_arguments)
        found = [path for path in Path(place).iterdir() if path.name.endswith(".tar.gz")]
        if len(found) != 1:
            raise InfrastructureFailure(
                f"the index gave {len(found)} .tar.gz files for {package.slug}; expected one source distribution"
            )
        _check_hash(found[0], package)
        os.replace(found[0], kept)
    return kept


def _pip_download(package: Package, place: Path, pip_arguments: Sequence[str]) -> None:
    """Ask pip for one source distribution; build tools may come as wheels.

    pip checks the hash before it looks inside; only then does it run the package's build backend for metadata.
    """
    wanted = place / "requirements.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package.name]
    command += [*pip_arguments, "--require-hashes", "--dest", str(place), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if "DO NOT MATCH THE HASHES" in said:
        got = [line.split()[-1] for line in said.splitlines() if line.strip().startswith("Got")]
        raise _hash_error(package, got[0] if got else "another one", "the index")
    raise InfrastructureFailure(f"pip could not download {package.slug} as a source distribution: {said[-600:]}")


def _hash_error(package: Package, got: str, where: str) -> ValueError:
    return ValueError(
        f"{package.slug} from {where} has sha256 {got}, but packages.toml demands {package.sha256}; "
        "nothing was unpacked. Delete the file if it is damaged, or correct the recipe"
    )


def _check_hash(path: Path, package: Package) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != package.sha256:
        raise _hash_error(package, got, str(path))


def source_tree(package: Package, *, cache: Path | None = None) -> Path:
    """The unpacked tree of the package (fetched if needed), with byte code compiled ahead.

    It is made in a temporary directory and renamed into place, so a tree that exists is whole; it is never
    written to again. The byte code is checked against the source's hash on import, so a changed file never runs
    an old body.
    """
    root = cache or cache_root()
    tree = _tree_place(package, root)
    if tree.is_dir():
        return tree
    if package.origin == "local":
        raise ValueError(
            f"{package.slug} is a tree of a machine, and not in the cache of this one; give it by --source again"
        )
    if package.origin == "builtin":
        return _written(package, root)
    sdist = fetch(package, cache=root)
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".unpack-") as place:
        top = unpack(sdist, Path(place))
        _check_licence(package, top)
        return place_tree(package, top, cache=root)


def _written(package: Package, root: Path) -> Path:
    """The tree of a built-in package. Raises ValueError where this version writes another one."""
    if digest_of_tree(package.name) != package.sha256:
        raise ValueError(f"{package.slug} is not written so by this version: use the one that made its tasks")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".write-") as place:
        for path, text in tree_files(package.name).items():
            file = Path(place, "tree", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return place_tree(package, Path(place, "tree"), cache=root)


def _tree_place(package: Package, root: Path) -> Path:
    return root / "trees" / f"{package.slug}-{package.sha256[:16]}-{_stamp(package)}"


def place_tree(package: Package, top: Path | None, *, cache: Path) -> Path:
    """Compile a tree ahead and move it to where `source_tree` finds it; what is there already stays.

    top: None to ask for what was placed before. Raises FileNotFoundError when that is not there.
    """
    tree = _tree_place(package, cache)
    if tree.is_dir():
        return tree
    if top is None:
        raise FileNotFoundError(f"{package.slug} has no tree in {cache}")
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".place-") as place:
        moved = shutil.move(str(top), str(Path(place) / "tree"))  # renaming is whole only on one file system
        precompile(Path(moved), layout_of(package, Path(moved)).tests, workdir=WORKDIR)
        try:
            os.replace(moved, tree)
        except OSError:
            if not tree.is_dir():  # somebody else may have finished first; theirs is the same
                raise
    return tree


def licence_of(tree: Path) -> str:
    """What a source distribution says its licence is: the expression, else the classifiers, else the field's line.

    "" where its ``PKG-INFO`` says nothing.
    """
    head = email.message_from_bytes((tree / "PKG-INFO").read_bytes()) if (tree / "PKG-INFO").is_file() else None
    if head is None:
        return ""
    named = [one.rpartition(" :: ")[2] for one in head.get_all("Classifier", []) if one.startswith("License :: ")]
    field = str(head.get("License", "")).strip().splitlines()
    return str(head.get("License-Expression", "")) or "; ".join(sorted(named)) or (field[0] if field else "")


def _check_licence(package: Package, top: Path) -> None:
    found = licence_of(top)
    if package.licence and found != package.licence:
        raise ValueError(
            f"{package.slug} says its licence is {found!r}, but packages.toml has {package.licence!r}; "
            "look at it and correct the recipe"
        )


def _stamp(package: Package) -> str:
    """Names what else a tree depends on: this file's format, the interpreter, pytest, and which files are tests."""
    parts = (_TREE_FORMAT, sys.implementation.cache_tag, pytest.__version__, package.tests, list(package.deselect))
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()


def unpack(sdist: Path, place: Path) -> Path:
    """Unpack and return the archive's one top directory; a member that leaves `place` is refused."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        size = sum(member.size for member in members)
        if size > _MAX_UNPACKED_BYTES:
            raise ValueError(f"{sdist.name} unpacks to {size} bytes; the bound is {_MAX_UNPACKED_BYTES}")
        try:
            archive.extractall(place, members=members, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{sdist.name}: refused member: {error}") from error
    tops = list(place.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise ValueError(f"{sdist.name} holds {len(tops)} top entries; a source distribution holds one directory")
    for stale in tops[0].rglob("__pycache__"):
        shutil.rmtree(stale)
    return tops[0]


def layout_of(package: Package, tree: Path) -> Layout:
    """Where things lie in the package's tree. Raises ValueError when a pattern or path matches nothing."""
    if not (tree / package.package).exists():
        raise ValueError(f"{package.slug}: no {package.package!r} in its tree; check 'package' in packages.toml")
    found: list[str] = []
    for pattern in package.tests:
        matched = sorted(path.relative_to(tree).as_posix() for path in tree.glob(pattern) if path.is_file())
        if not matched:
            raise ValueError(f"{package.slug}: the pattern {pattern!r} of 'tests' matches no file")
        found += [name for name in matched if name not in found and name not in package.deselect]
    deselect = tuple(name for name in package.deselect if "::" in name)
    return Layout(source_root=package.source_root, package=package.package, tests=tuple(found), deselect=deselect)
