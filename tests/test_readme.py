"""Every code block of README and docs runs.

The blocks of a document run in order, python blocks in one interpreter and bash blocks in one shell, in an empty
directory. A block that cannot run here as it stands says so in the comment above it:
``<!-- tested as: COMMAND ; because: REASON -->``; then that command runs instead, at the repository's root.
Above a block that acts in a sandbox stands ``<!-- needs: a sandbox -->``: where no backend isolates, all but such
blocks run, and the test is skipped with what `auto` says.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from envgym.errors import SandboxUnavailable
from envgym.registry import make_backend

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:<!-- tested as: (?P<instead>.+?) ; because: (?P<reason>.+?) -->\n)?"
    r"(?P<sandbox><!-- needs: a sandbox -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)```",
    re.S,
)
_SHOWN = {"text", "toml", "json"}  # examples of content, not code


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    code: str
    instead: str | None
    sandbox: bool


def blocks(document: Path) -> list[Block]:
    found = [
        Block(match["kind"], match["code"], match["instead"], match["sandbox"] is not None)
        for match in _BLOCK.finditer(document.read_text())
    ]
    assert all(block.kind in {"python", "bash", *_SHOWN} for block in found), (
        f"{document}: a block without a language"
    )
    return found


def no_sandbox() -> str:
    """Why no isolating sandbox works here; "" where one does."""
    try:
        make_backend("auto")
    except SandboxUnavailable as error:
        return str(error)
    return ""


def run(command: list[str], code: str, cwd: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        command, input=code, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, f"{code}\n--\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.turns
def test_every_block_of_a_document_runs(document, tmp_path):
    every = blocks(document)
    missing = no_sandbox() if any(block.sandbox for block in every) else ""
    found = [block for block in every if not (missing and block.sandbox)]
    python = "\n".join(block.code for block in found if block.kind == "python" and block.instead is None)
    bash = "\n".join(block.code for block in found if block.kind == "bash" and block.instead is None)
    if python:
        run([sys.executable, "-"], python, tmp_path)
    if bash:
        run(["bash", "-euo", "pipefail"], bash, tmp_path)
    for block in found:
        if block.instead is not None:
            run(["bash", "-euo", "pipefail"], block.instead, ROOT)
    if missing:
        pytest.skip(missing)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    for target in targets:
        assert "://" in target or (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_setting_that_code_or_documents_name_exists():
    """In help, messages, skeletons and documents: ``--set section.name=``."""
    known, section = set(), ""
    for line in (ROOT / "docs/settings.md").read_text().splitlines():
        if found := re.match(r"\[([\w.]+)\]", line):
            section = found[1] + "."
        elif found := re.match(r"(?:# )?(\w+) = ", line):
            known.add(section + found[1])
    open_tables = ("env_options", "task_options", "agent_options", "model.others", "reinforce.credit_options")
    roots = [ROOT / name for name in ("envgym", "agents", "environments", "sandboxes")]
    sources = [*DOCUMENTS, *(path for root in roots for path in root.rglob("*.py"))]
    named = {(path.name, name) for path in sources for name in re.findall(r"--set ([a-z_.]+)=", path.read_text())}
    assert len(named) > 20
    placeholder = "section.field"
    unknown = {one for one in named if one[1] not in known and not one[1].startswith(open_tables)}
    assert {name for _place, name in unknown} <= {placeholder}, unknown


def test_the_promised_sizes_of_the_readme_hold():
    code = [block.code for block in blocks(ROOT / "README.md") if block.kind == "python"]
    lines = [sum(bool(line.strip()) for line in text.splitlines()) for text in code]
    assert lines[0] <= 21, "register your own environment in about 20 lines"
    assert lines[1] <= 3, "check it in three lines"
    assert lines[2] <= 12, "collect trajectories in about 10 lines"
    assert lines[3] <= 10, "train in 10 lines"
