import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from envgym_environments.code_repair.formats.spelling import suite_of
from envgym_environments.code_repair.patch import counts
from envgym_environments.code_repair.suites import LANGUAGES, READERS
from envgym_environments.code_repair.suites.fetch import archive, unpack
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import Project, missing_programs, projects
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.suites.tree import breakable, project_tree, project_world

from envgym.errors import EnvironmentFailure
from envgym.sandbox import SandboxBackend


def entry(**changes: object) -> Project:
    suite = {"language": "c", "test": "make check", "reader": "exit-code", "source": ["src/*.c"], "tests": ["t/**"]}
    values = {
        "name": "small", "origin": "npm", "source": "small", "version": "1.0", "sha256": "0" * 64, "licence": "MIT",
        "suite": suite,
    }  # fmt: skip
    return Project.model_validate(values | changes)


def packed(cache: Path, members: dict[str, str], **changes: object) -> Project:
    """A project whose archive is in the cache already."""
    store = cache / "archives"
    store.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as opened:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            opened.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    project = entry(sha256=digest, **changes)
    (store / f"{project.name}-{digest[:16]}").write_bytes(buffer.getvalue())
    return project


def test_the_recipe_has_a_project_of_every_language_and_every_reader_it_names() -> None:
    recipe = projects()
    assert {project.language for project in recipe} == set(LANGUAGES)
    assert {project.suite.reader for project in recipe} <= set(READERS)
    assert all(project.licence and project.suite.tests for project in recipe)
    assert [project.name for project in projects(language="go")] == ["go-version"]


def test_a_wrong_recipe_is_named_by_file_entry_and_field(tmp_path: Path) -> None:
    place = tmp_path / "own.toml"
    place.write_text('[[project]]\nname = "x"\norigin = "floppy"\n')
    with pytest.raises(ValueError, match=r"own.toml: project 0 \(x\): origin"):
        projects(place)
    place.write_text("[[project]\n")
    with pytest.raises(ValueError, match=r"own.toml is not TOML"):
        projects(place)
    with pytest.raises(ValueError, match="'cobol'; it must be one of"):
        projects(language="cobol")  # type: ignore[arg-type]


def test_a_missing_program_is_named() -> None:
    assert missing_programs(entry(needs=("sh", "no-such-program", "/etc/no-such-file"))) == (
        "no-such-program",
        "/etc/no-such-file",
    )


def test_another_archive_than_the_recipes_is_refused(tmp_path: Path) -> None:
    project = packed(tmp_path, {"top/src/a.c": "int a;"})
    (kept,) = (tmp_path / "archives").iterdir()
    kept.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"projects\.toml demands"):
        archive(project, cache=tmp_path)


@pytest.mark.parametrize("name", ["../out", "top/../../../out"])
def test_a_member_that_leaves_its_place_is_refused(name: str, tmp_path: Path) -> None:
    project = packed(tmp_path, {name: "x", "top/src/a.c": "int a;"})
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(ValueError, match="refused member"):
        unpack(archive(project, cache=tmp_path), project, place)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "place" / "out").exists()


def test_what_counts_as_a_repair_is_source_and_never_a_test() -> None:
    suite = entry(
        suite={"language": "c", "test": "x", "reader": "tap", "source": ["src/**"], "tests": ["src/t/**"]}
    ).suite
    assert counts("src/a.c", suite)
    assert counts("src/deep/a.c", suite)
    for path in ("src/t/a.c", "a.c", "src/../a.c", "/src/a.c", "Makefile"):
        assert not counts(path, suite)


RUNNERS = (
    "node_modules/mocha/lib/reporters/spec.js", "packages/a/node_modules/jest/build/index.js", "dist/a.js",
    "jest.config.js", "src/jest.config.ts", ".mocharc.js", ".mocharc.cjs", "vitest.config.ts", "vitest.setup.mts",
    "jest.setup.ts", "jest-setup.js", "setupTests.js", "karma.conf.js", ".babelrc.js", "babel.config.js",
    ".pnp.cjs", ".yarn/releases/yarn.cjs",
)  # fmt: skip


@pytest.mark.parametrize("path", RUNNERS)
@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_the_runner_of_javascript_is_no_repair_unless_the_gold_patch_changes_it(path: str, language: str) -> None:
    def suite(*gold: str) -> Suite:
        texts = "".join(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n" for name in gold)
        found = suite_of(language, "npm test", "tap", patches=(texts, ""))
        assert found is not None
        return found

    assert not counts(path, suite("src/a.js"))
    assert counts(path, suite("src/a.js", path))
    for source in ("src/a.js", "lib/config.ts", "src/jest-mock.ts", "src/karma_points.js", "src/distance/a.js"):
        assert counts(source, suite("src/[id].js"))


def test_what_runs_pytest_is_no_repair_unless_the_gold_patch_changes_it() -> None:
    suite = entry(suite={"language": "python", "test": "x", "reader": "tap", "source": ["**/*.py"]}).suite
    named = suite.model_copy(update={"source": ("**/*.py", "setup.py")})
    assert not any(counts(path, suite) for path in ("setup.py", "a/conftest.py", "sitecustomize.py", ".venv/a.py"))
    assert counts("setup.py", named)
    assert counts("a/dist/b.py", suite)


@pytest.mark.namespaces
def test_what_is_prepared_never_saw_the_files_that_bugs_go_into(tmp_path: Path, in_backend) -> None:
    project = packed(
        tmp_path,
        {"top/src/a.c": "int secret;", "top/t/a.c": "int test;"},
        prepare=("cat src/a.c t/a.c > built", "chmod 755 built"),
    )

    async def body(backend: SandboxBackend) -> None:
        tree = await project_tree(project, backend, cache=tmp_path)
        assert (tree / "built").read_text() == "int test;"
        assert (tree / "built").stat().st_mode & 0o111
        assert (tree / "src/a.c").read_text() == "int secret;"
        assert breakable(project, tree) == ["src/a.c"]
        assert await project_tree(project, backend, cache=tmp_path) == tree
        world = project_world(project, tree, {"src/a.c": "int broken;"}, cache=tmp_path)
        async with await backend.create(world) as sandbox:
            assert await sandbox.read("src/a.c") == b"int broken;"

    in_backend(body)


@pytest.mark.namespaces
def test_a_project_that_cannot_be_used_says_why(tmp_path: Path, in_backend) -> None:
    async def made(project: Project, backend: SandboxBackend) -> None:
        from envgym_environments.code_repair.factory import Plan, Yield

        async for _ in make_suite_tasks(project, backend, Plan(per_package=1), counts=Yield(), cache=tmp_path):
            pass

    async def body(backend: SandboxBackend) -> None:
        with pytest.raises(EnvironmentFailure, match=r"needs no-such-program.*setup.sh"):
            await made(entry(needs=("no-such-program",)), backend)
        members = {"top/src/a.c": "int f(int a) { return a < 1; }\n"}
        with pytest.raises(EnvironmentFailure, match="preparing it failed at 'false'"):
            await made(packed(tmp_path, members, prepare=("false",)), backend)
        broken = {"language": "c", "test": "false", "reader": "exit-code", "source": ["src/*.c"]}
        with pytest.raises(EnvironmentFailure, match="does not run before any bug"):
            await made(packed(tmp_path, members, suite=broken), backend)
        with pytest.raises(ValueError, match="matches no file"):
            await made(packed(tmp_path, members, suite=broken | {"source": ["lib/*.c"]}), backend)

    in_backend(body)
