"""Archives of projects by exact version and hash, from the registries, through the registries' own clients.

Fetching is set-up: it uses whatever index, mirror and proxy the clients of this machine are configured with. An
archive is checked before it is unpacked, and unpacked by rules that let no member leave its place.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from envgym.errors import InfrastructureFailure
from envgym_environments.code_repair.sources import Package, cache_root
from envgym_environments.code_repair.sources import fetch as fetch_sdist
from envgym_environments.code_repair.suites.projects import Project

__all__ = ["archive", "archive_place", "node_modules", "unpack"]

_MOST_UNPACKED_BYTES = 300 << 20
_FETCH_S = 600


def archive(project: Project, *, cache: Path | None = None) -> Path:
    """The project's archive, from the cache or else from its registry.

    A cached file is checked again. Raises InfrastructureFailure when the registry does not give it, ValueError when
    its sha256 is not the recipe's; neither leaves anything behind.
    """
    root = cache or cache_root()
    if project.origin == "pypi":
        wanted = Package(
            name=project.source, version=project.version, sha256=project.sha256, package=".", tests=("*",)
        )
        return fetch_sdist(wanted, cache=root)
    kept = archive_place(project, root)
    if kept.exists():
        _check_hash(kept, project)
        return kept
    if project.origin == "local":
        raise InfrastructureFailure(
            f"{project.slug} is of a folder that no registry has, and its archive {kept} is gone; build from its "
            "recipe again"
        )
    store = kept.parent
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".fetch-") as place:
        got = _CLIENTS[project.origin](project, Path(place), root)
        _check_hash(got, project)
        os.replace(got, kept)
    return kept


def archive_place(project: Project, cache: Path) -> Path:
    """Where the archive of a project lies, whoever puts it there."""
    return cache / "archives" / f"{project.name}-{project.sha256[:16]}"


def _check_hash(path: Path, project: Project) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != project.sha256:
        raise ValueError(
            f"{project.slug} ({path}) has sha256 {got}, but projects.toml demands {project.sha256}; nothing was "
            "unpacked. Delete the file if it is damaged, or correct the recipe"
        )


def _run(command: Sequence[str], place: Path, project: Project, env: Mapping[str, str] | None = None) -> str:
    """Run a registry's client. Raises InfrastructureFailure with what it said."""
    if shutil.which(command[0]) is None:
        raise InfrastructureFailure(
            f"{project.slug} comes from {project.origin}, which needs the program {command[0]}"
        )
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureFailure(f"{command[0]} did not give {project.slug} in {_FETCH_S} s") from error
    if done.returncode:
        raise InfrastructureFailure(f"{command[0]} did not give {project.slug}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _one(place: Path, project: Project, *patterns: str) -> Path:
    found = [path for pattern in patterns for path in sorted(place.glob(pattern))]
    if len(found) != 1:
        raise InfrastructureFailure(f"{project.origin} gave {len(found)} archives for {project.slug}; expected one")
    return found[0]


def _npm(project: Project, place: Path, root: Path) -> Path:
    _run(["npm", "pack", "--silent", "--ignore-scripts", f"{project.source}@{project.version}"], place, project)
    return _one(place, project, "*.tgz")


def _debian(project: Project, place: Path, root: Path) -> Path:
    wanted = f"{project.source}={project.version}"
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", wanted]
    try:
        _run(command, place, project)
    except InfrastructureFailure:
        if os.geteuid():  # the lists of packages may be missing or old; only root may fetch them
            raise
        _run(["apt-get", "-qq", "update"], place, project)
        _run(command, place, project)
    return _one(place, project, "*.deb")


def _debian_source(project: Project, place: Path, root: Path) -> Path:
    options = _source_lists(project, root / "apt")
    wanted = f"{project.source}={project.version}"
    command = ["apt-get", "-qq", *options, "source", "--download-only", "--tar-only", wanted]
    _run(command, place, project)
    return _one(place, project, "*.orig.tar.*")


def _source_lists(project: Project, place: Path) -> list[str]:
    """Options that let apt-get know the source packages of the archives it is configured with, in lists of ours.

    The machine's own lists are left as they are; root is not needed.
    """
    (place / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (place / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::Etc::SourceList={place}/sources.list", "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={place}/lists", f"Dir::Cache={place}/cache", "APT::Sandbox::User=root",
    ]  # fmt: skip
    flags = [part for option in options for part in ("-o", option)]
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)|$(ORIGIN)"
    told = _run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], place, project)
    rows = {tuple(line.split("|")) for line in told.splitlines() if line.count("|") == 4}
    lines = sorted(
        f"deb-src {f'[signed-by={key}] ' if key[:1] == '/' else ''}{site} {release} {component}\n"
        for site, release, component, key, origin in rows
        if origin == "Debian" and "/" not in component
    )
    if not lines:
        raise InfrastructureFailure(f"{project.slug} is a Debian source package; apt knows no Debian archive here")
    text = "".join(lines)
    known = place / "sources.list"
    if not known.exists() or known.read_text() != text or not list((place / "lists").glob("*Sources*")):
        known.write_text(text)
        _run(["apt-get", "-qq", *flags, "update"], place, project)
    return flags


_CLIENTS: dict[str, Callable[[Project, Path, Path], Path]] = {
    "npm": _npm,
    "debian": _debian,
    "debian-source": _debian_source,
}


def unpack(path: Path, project: Project, place: Path) -> Path:
    """Unpack an archive below `place` and return the directory that is the project's tree.

    Raises ValueError for a member that would leave its place, and for more than 300 MiB.
    """
    if project.origin == "debian":
        plain = place / "data.tar"
        with plain.open("wb") as out:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=out, timeout=120, check=True)
        path = plain
    target = place / "tree"
    target.mkdir()
    with tarfile.open(path) as opened:
        members = opened.getmembers()
        size = sum(member.size for member in members)
        if size > _MOST_UNPACKED_BYTES:
            raise ValueError(f"{project.slug} unpacks to {size} bytes; the bound is {_MOST_UNPACKED_BYTES}")
        try:
            opened.extractall(target, members=members, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{project.slug}: refused member: {error}") from error
    if project.inside:
        top = target / project.inside
    else:
        tops = list(target.iterdir())
        top = tops[0] if len(tops) == 1 else target
    if not top.is_dir():
        raise ValueError(f"{project.slug}: no directory {project.inside!r} in its archive")
    for name, text in project.files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def node_modules(project: Project, *, cache: Path | None = None) -> Path | None:
    """The directory of the project's node modules, each checked by npm against its lock; None without a lock."""
    if not project.modules:
        return None
    lock = files("envgym_environments.code_repair.suites") / "locks" / project.modules
    texts = {name: (lock / name).read_text() for name in ("package.json", "package-lock.json")}
    digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()
    kept = (cache or cache_root()) / "modules" / f"{project.modules}-{digest}"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".install-") as place:
        for name, text in texts.items():
            (Path(place) / name).write_text(text)
        _run(["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], Path(place), project)
        try:
            os.replace(Path(place) / "node_modules", kept)
        except OSError:
            if not kept.is_dir():  # somebody else may have finished first; theirs is the same
                raise
    return kept
