"""Repositories of strangers: no program that one names is run here, and what is odd in one ends nothing."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from envgym_environments.code_repair.local import Source, local_package
from envgym_environments.code_repair.mirrors.commits import Repository, commit_pairs
from envgym_environments.code_repair.mirrors.trees import Pair
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.self_play.history import reverts_of
from envgym_environments.code_repair.sources import source_tree

pytestmark = pytest.mark.timeout(120)

CODE = "def total(values):\n    return sum(values)\n"
TEST = "from calc.ops import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
LAYOUT = Layout(package="calc", tests=("tests/test_ops.py",))


def git(top: Path, *arguments: str) -> str:
    """As the repository's owner, whose settings are only those of the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**kept, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def commit(top: Path, files: dict[str, str], message: str) -> str:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    git(top, "add", "-A")
    git(top, "commit", "-qm", message)
    return git(top, "rev-parse", "HEAD").strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two commits of a small package."""
    top = tmp_path / "calc-repository"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    begun = {"calc/__init__.py": "", "calc/ops.py": CODE.replace("sum", "max"), "tests/test_ops.py": TEST}
    commit(top, begun | {".gitattributes": "*.py filter=evil diff=evil merge=evil ident eol=crlf\n"}, "Begin")
    commit(top, {"calc/ops.py": CODE, "tests/test_ops.py": TEST + "\n"}, "Add")
    return top


def read_all(top: Path, cache: Path, name: str = "calc") -> list[Pair | str]:
    """Everything that is ever asked of a repository."""
    source_tree(local_package(Source(top, name=name), cache=cache), cache=cache)
    repository = Repository(path=top, name=name)
    reverts_of(repository, LAYOUT, cache)
    return [make() for _, make in commit_pairs(repository, cache)]


def arm(top: Path, program: str) -> None:
    """Name a program in every place where git would run one."""
    hooks = top / ".git" / "evil-hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc"):
        (hooks / hook).write_text(f"#!/bin/sh\n{program}\n")
        (hooks / hook).chmod(0o755)
    settings = {
        "filter.evil.smudge": f"{program}; cat",
        "filter.evil.clean": f"{program}; cat",
        "filter.evil.required": "false",
        "core.fsmonitor": program,
        "core.hooksPath": str(hooks),
        "core.pager": program,
        "core.editor": program,
        "core.sshCommand": program,
        "core.alternateRefsCommand": program,
        "core.askPass": program,
        "credential.helper": f"!{program}",
        "diff.evil.command": program,
        "diff.evil.textconv": program,
        "diff.external": program,
        "merge.evil.driver": program,
        "gpg.program": program,
        "log.showSignature": "true",
        "log.showRoot": "false",
        "pager.log": "true",
        "pager.diff": "true",
        "alias.log": f"!{program}",
        "apply.whitespace": "error",
        "protocol.allow": "always",
    }
    for name, value in settings.items():
        git(top, "config", name, value)


def test_no_program_that_a_repository_or_its_reader_configured_is_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, home = tmp_path / "ran", tmp_path / "home"
    arm(place, f"sh -c 'echo of the repository >> {mark}'")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "attributes").write_text("* filter=mine\n")
    (home / ".gitconfig").write_text(
        f'[filter "mine"]\n\tsmudge = "echo of the reader >> {mark}; cat"\n[core]\n\tfsmonitor = "touch {mark}"\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {mark}")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (place / ".git").rglob("*"))
    pair, first = read_all(place, tmp_path / "cache")
    assert not mark.exists(), mark.read_text()
    assert isinstance(pair, Pair)
    assert first == "first_commit"
    assert (pair.new / "calc" / "ops.py").read_bytes() == CODE.encode(), "what is stored, whatever attributes say"
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (place / ".git").rglob("*")) == before


def test_what_a_repository_lacks_is_fetched_by_no_program_of_its_own(place: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    blob = git(place, "rev-parse", "HEAD:calc/ops.py").strip()
    (place / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": str(tmp_path),
        "remote.origin.promisor": "true",
        "remote.origin.uploadpack": f"touch {mark}; false",
    }.items():
        git(place, "config", name, value)
    with pytest.raises(ValueError, match=f"lacks {blob}.*nothing is fetched"):
        local_package(Source(place, name="calc"), cache=tmp_path / "cache")
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["bare", "worktree", "shallow", "packed", "sha256", "tag"])
def test_every_form_of_a_local_repository_is_read(place: Path, tmp_path: Path, kind: str) -> None:
    other = tmp_path / ("other.git" if kind == "bare" else "other")
    options = {"bare": ["--bare"], "shallow": ["--depth=1"]}.get(kind, [])
    if kind == "worktree":
        git(place, "worktree", "add", "-q", "--detach", str(other))
    elif kind == "sha256":
        other.mkdir()
        git(other, "init", "-q", "--object-format=sha256")
        commit(other, {"calc/__init__.py": "", "calc/ops.py": CODE, "tests/test_ops.py": TEST}, "Begin")
        commit(other, {"calc/ops.py": CODE + "\n", "tests/test_ops.py": TEST + "\n"}, "Add")
    else:
        subprocess.run(["git", "clone", "-q", *options, f"file://{place}", str(other)], check=True)
    if kind == "packed":
        git(other, "gc", "-q")
    if kind == "tag":
        git(other, "tag", "-am", "first", "v1", "HEAD~1")
        found = Repository(path=other, name="calc", commits="v1..HEAD")
        assert [name for name, _ in commit_pairs(found, tmp_path)] == [git(other, "rev-parse", "HEAD").strip()]
    pairs = read_all(other, tmp_path / "cache")
    assert [isinstance(pair, Pair) for pair in pairs] == ([False] if kind == "shallow" else [True, False])
    assert Source(other).called == "other"


def test_a_link_that_leads_round_is_left_out(place: Path, tmp_path: Path) -> None:
    (place / "calc" / "loop").symlink_to("loop")
    (place / "calc" / "inner.py").symlink_to("ops.py")
    (place / "calc" / "out").symlink_to("/etc/hostname")
    commit(place, {"calc/ops.py": CODE + "\n", "tests/test_ops.py": TEST}, "Loop")
    pair, *_ = read_all(place, tmp_path / "cache")
    assert isinstance(pair, Pair)
    links = sorted(path.name for path in pair.new.rglob("*") if path.is_symlink())
    assert links == ["inner.py"]
    package = local_package(Source(folder_of(place, tmp_path), name="calc"), cache=tmp_path / "cache")
    tree = source_tree(package, cache=tmp_path / "cache")
    assert sorted(path.name for path in tree.rglob("*") if path.is_symlink()) == ["inner.py"]


def test_links_inside_stay_where_the_folder_for_temporary_files_is_a_link(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "calc" / "inner.py").symlink_to("ops.py")
    (tmp_path / "real").mkdir()
    (tmp_path / "temporary").symlink_to("real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    package = local_package(Source(folder_of(place, tmp_path), name="calc"), cache=tmp_path / "cache")
    assert (source_tree(package, cache=tmp_path / "cache") / "calc" / "inner.py").read_text() == CODE


def folder_of(place: Path, tmp_path: Path) -> Path:
    """The same files without version control."""
    plain = tmp_path / "plain"
    subprocess.run(["cp", "-a", str(place), str(plain)], check=True)
    subprocess.run(["rm", "-r", str(plain / ".git")], check=True)
    return plain


def raw_tree(top: Path, *entries: tuple[str, bytes, str]) -> str:
    """A commit of a tree that no git would make: (mode, name, object)."""
    body = b"".join(f"{mode} ".encode() + name + b"\0" + bytes.fromhex(one) for mode, name, one in entries)
    command = ["git", "-C", str(top), "hash-object", "-t", "tree", "--literally", "-w", "--stdin"]
    tree = subprocess.run(command, input=body, check=True, capture_output=True).stdout.decode().strip()
    return git(top, "commit-tree", "-m", "odd", tree).strip()


@pytest.mark.parametrize("kind", ["up", "absolute", "git", "through", "twice"])
def test_a_tree_that_would_write_elsewhere_is_refused(place: Path, tmp_path: Path, kind: str) -> None:
    blob = git(place, "rev-parse", "HEAD:calc/ops.py").strip()
    inner = git(place, "rev-parse", "HEAD:calc").strip()
    (tmp_path / "out").mkdir()
    target = (
        subprocess.run(
            ["git", "-C", str(place), "hash-object", "-w", "--stdin"],
            input=str(tmp_path / "out").encode(),
            capture_output=True,
            check=True,
        )
        .stdout.decode()
        .strip()
    )
    entries = {
        "up": [("40000", b"..", inner)],
        "absolute": [("100644", str(tmp_path / "out" / "x").encode(), blob)],
        "git": [("40000", b".GIT", inner)],
        "through": [("120000", b"a", target), ("40000", b"a", inner)],
        "twice": [("100644", b"a", blob), ("100644", b"a", blob)],
    }[kind]
    odd = raw_tree(place, *entries)
    with pytest.raises(ValueError, match="no tree to write"):
        Repository(path=place, name="calc").tree_of(odd, tmp_path / "cache")
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "cache" / "commits").iterdir())


def test_trees_that_were_kept_before_settings_were_left_out_are_not_used(place: Path, tmp_path: Path) -> None:
    head = git(place, "rev-parse", "HEAD").strip()
    (tmp_path / "cache" / "commits" / f"calc-{head}").mkdir(parents=True)
    tree = Repository(path=place, name="calc").tree_of(head, tmp_path / "cache")
    assert (tree / "calc" / "ops.py").read_bytes() == CODE.encode()


def test_what_is_no_repository_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no git repository"):
        list(commit_pairs(Repository(path=tmp_path, name="x"), tmp_path / "cache"))
