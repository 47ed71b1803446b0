"""The console entry ``envgym tasks mirror``: real human bugs, from releases of packages or from a git history."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from envgym.progress import Bar
from envgym.registry import make_backend
from envgym_environments.code_repair.mirrors.build import Built, Job, Work, build_mirrors
from envgym_environments.code_repair.mirrors.commits import Repository, commit_pairs
from envgym_environments.code_repair.mirrors.groups import Bounds
from envgym_environments.code_repair.mirrors.index import write_mirror_index
from envgym_environments.code_repair.mirrors.mirror import MirrorYield
from envgym_environments.code_repair.mirrors.releases import Releases, pair_of, recipe, resolve
from envgym_environments.code_repair.mirrors.suite_commits import suite_pairs
from envgym_environments.code_repair.sources import Package, cache_root
from envgym_environments.code_repair.suites.projects import Project, projects

__all__ = ["mirror", "recipes_of", "yield_rows"]

_Packages = Annotated[list[str] | None, typer.Option("--package", help="Only these packages; repeatable.")]
_Suite = Annotated[
    Path | None, typer.Option(help="With --git: a projects.toml that says how another language is tested.")
]
_Index = Annotated[
    Path | None, typer.Option(help="Also write what the tasks are made of, without code (.xz: packed).")
]


def mirror(  # noqa: PLR0913  # one parameter per option
    package: _Packages = None,
    pairs: Annotated[int, typer.Option(min=1, help="Latest pairs of releases of each package.")] = 3,
    releases: Annotated[Path | None, typer.Option("--recipe", help="Another mirrors.toml.")] = None,
    look_up: Annotated[
        int, typer.Option("--resolve", min=0, help="Only print so many latest releases with hashes, for a recipe.")
    ] = 0,
    git: Annotated[Path | None, typer.Option(help="A git repository: its commits instead of releases.")] = None,
    commits: Annotated[str, typer.Option(help="With --git: a range of commits, as git log takes it.")] = "HEAD",
    suite: _Suite = None,
    most: Annotated[int, typer.Option(min=1, help="With --git: only so many latest commits of it.")] = 200,
    source: Annotated[str, typer.Option(help="With --git: the package's folder or file, such as src/name.")] = "",
    tests: Annotated[list[str] | None, typer.Option(help="With --git: pattern of test files; repeatable.")] = None,
    most_lines: Annotated[int, typer.Option(min=1, help="Changed lines of one repair.")] = Bounds().most_lines,
    repetitions: Annotated[int, typer.Option(min=2, help="Runs of a state that must agree.")] = 2,
    certify: Annotated[bool, typer.Option("--certify", help="Also run each task under other conditions.")] = False,
    backend: Annotated[str, typer.Option(help="Where tests run.")] = "auto",
    file: Annotated[
        Path | None, typer.Option("--file", help="The task file (default: mirrors.jsonl in the cache).")
    ] = None,
    index: _Index = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Make tasks of real bugs: earlier code under later tests, repaired by the least of the real change."""
    if look_up:
        _print_releases(package or [], look_up)
        return
    if suite is not None and git is None:
        raise typer.BadParameter(
            "it says how the repository of --git is tested", param_hint="--suite without --git"
        )
    if git is not None:
        project = None if suite is None else _project(suite, package)
        repository = Repository(
            path=git,
            name=project.name if project else (package or [_name_of(git)])[0],
            commits=commits,
            most=most,
            package=source,
            source_root=source.rpartition("/")[0] or ".",
            tests=tuple(tests or ()),
        )
        jobs: Sequence[Job] = list(commit_jobs(repository, cache_root(), project))
    else:
        jobs = list(release_jobs(_chosen(recipe(releases), package), pairs))
    path = file or cache_root() / "mirrors.jsonl"
    bounds = Bounds(most_lines=most_lines, repetitions=repetitions, certify=certify)

    async def play() -> Built:
        async with make_backend(backend) as place:
            with Bar(Console(stderr=True), "pairs", len(jobs)) as bar:
                work = Work(progress=bar.say, on_pair=bar.update)
                return await build_mirrors(jobs, place, path, bounds=bounds, work=work)

    built = asyncio.run(play())
    if index is not None:
        write_mirror_index(built.tasks, index, recipes_of(releases))
    _tell(built, as_json)
    if built.failed:
        raise typer.Exit(1)


def recipes_of(path: Path | None) -> dict[str, Package]:
    """Every release of a recipe file (None: of this project), by its hash."""
    return {release.sha256: one.package_at(release) for one in recipe(path) for release in one.releases}


def _chosen(found: Sequence[Releases], wanted: Sequence[str] | None) -> list[Releases]:
    known = [one.name for one in found]
    for name in wanted or ():
        if name not in known:
            raise typer.BadParameter(
                f"{name!r} is not in mirrors.toml; known: {', '.join(known)}", param_hint="--package"
            )
    return [one for one in found if not wanted or one.name in wanted]


def release_jobs(found: Sequence[Releases], pairs: int) -> Iterator[Job]:
    """The latest pair of each entry, then the one before it of each, up to `pairs`."""
    for number in range(pairs):
        for one in found:
            both = list(one.pairs())
            if number >= len(both):
                continue
            old, new = both[number]
            label = f"{one.name} {old.version}..{new.version}"
            yield Job(one.name, label, repr((old, new)), partial(pair_of, old, new))


def commit_jobs(repository: Repository, cache: Path, project: Project | None = None) -> Iterator[Job]:
    """One for each commit of the range; project: how it is built and tested, where it is no Python package.

    Raises ValueError when git refuses.
    """
    key = (repository,) if project is None else (repository, project)
    pairs = commit_pairs(repository, cache) if project is None else suite_pairs(repository, project, cache)
    for commit, make in pairs:
        yield Job(repository.name, f"{repository.name} {commit[:10]}", repr((*key, commit)), make)


def _project(recipe_file: Path, names: Sequence[str] | None) -> Project:
    """The only project of a recipe, or the named one."""
    found = [one for one in projects(recipe_file) if not names or one.name in names]
    if len(found) != 1:
        raise typer.BadParameter(
            f"{recipe_file} has {len(found)} projects{' of that name' * bool(names)}; --package names the one that "
            "is meant",
            param_hint="--suite",
        )
    return found[0]


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.resolve().name.removesuffix(".git")).strip("-._") or "repository"


def _print_releases(names: Sequence[str], count: int) -> None:
    if not names:
        raise typer.BadParameter("name the packages whose releases are wanted", param_hint="--package")
    for name in names:
        typer.echo(f'[[mirror]]\nname = "{name}"\nreleases = [')
        for one in resolve(name, count):
            typer.echo(f'  {{ version = "{one.version}", sha256 = "{one.sha256}" }},')
        typer.echo("]\n")


def yield_rows(yields: dict[str, MirrorYield]) -> list[dict[str, int | str]]:
    """One row per package: its pairs, tasks, and every reason why pairs, tests and groups gave none."""
    return [
        {
            "package": name,
            "pairs": counts.pairs.total(),
            "tasks": counts.groups["valid"],
            "runs": counts.runs,
            "seconds": round(counts.seconds),
            "reasons": ", ".join(
                f"{part} {reason} {count}"
                for part, found in (("pairs", counts.pairs), ("tests", counts.tests), ("groups", counts.groups))
                for reason, count in sorted(found.items())
                if count and reason not in ("used", "grouped", "valid")
            ),
        }
        for name, counts in yields.items()
    ]


def _tell(built: Built, as_json: bool) -> None:
    if as_json:
        yields = {name: counts.row() for name, counts in built.yields.items()}
        counts = {"file": str(built.path), "tasks": len(built.tasks), "failed": built.failed}
        typer.echo(json.dumps({**counts, "total": built.total().row(), "packages": yields}, indent=1))
        return
    for row in yield_rows(built.yields):
        typer.echo(f"{row['package']}: {row['tasks']} tasks of {row['pairs']} pairs ({row['reasons']})")
    for label, why in built.failed.items():
        typer.echo(f"{label}: {why}", err=True)
    typer.echo(f"{len(built.tasks)} tasks in {built.path}")
