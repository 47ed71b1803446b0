"""The tools of the symbol index: `symbols`, `definition` and `references`, over the state of an agent's sandbox.

Answers are text and bounded, and say what they leave out. What is no code of the package or its tests is not read.
"""

import asyncio
import shlex
from collections.abc import Sequence

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.symbols.index import SUFFIXES, Index, Place
from envgym_environments.code_repair.tools import clip_row, clip_rows

__all__ = ["definition", "index_of", "references", "symbols"]

_MOST_FILES = 2000
_MOST_BYTES = 500_000
_MOST_CHARACTERS = 5000
_MOST_DEFINITIONS = 4
_MOST_CODE = 80
_AT_ONCE = 16
_PRUNED = ["__pycache__", ".git", ".hg", ".tox", ".nox", ".venv", "node_modules", ".hypothesis", "build", "dist"]


async def index_of(sandbox: Sandbox, path: str = ".") -> tuple[Index, str]:
    """The index of the code below a path, and a line about what was left out ("" when nothing was)."""
    prune = " -o ".join(f"-name {name}" for name in _PRUNED)
    names = " -o ".join(f"-name '*{suffix}'" for suffix in SUFFIXES)
    start = shlex.quote(path if not path.startswith(("-", "(", "!", ",")) else f"./{path}")
    command = rf"find {start} \( {prune} \) -prune -o -type f \( {names} \) -size -{_MOST_BYTES}c -print0"
    listed = await sandbox.exec(["sh", "-c", command], timeout_s=30.0)
    found = [name.removeprefix("./") for name in listed.stdout.decode("utf-8", "replace").split("\0")[:-1]]
    found = sorted(name for name in found if "\ufffd" not in name)
    chosen = found[:_MOST_FILES]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(name: str) -> tuple[str, str]:
        async with gate:
            try:
                return name, (await sandbox.read(name)).decode("utf-8", "replace")
            except OSError:
                return name, ""  # it went away meanwhile, or may not be read: it has no symbols

    index = Index(dict(await asyncio.gather(*(read(name) for name in chosen))))
    left_out = [f"only the first {_MOST_FILES} of {len(found)} files were read"] * (len(found) > _MOST_FILES)
    if index.unread:
        left_out.append(f"not readable as code: {', '.join(index.unread[:5])}")
    return index, "; ".join(left_out)


def _with(rows: Sequence[str], left_out: str, nothing: str) -> str:
    shown = clip_rows(rows, "lines", most=_MOST_CHARACTERS) if rows else nothing
    return f"{shown}\n({left_out})" if left_out else shown


async def symbols(sandbox: Sandbox, path: str, pattern: str) -> str:
    """An outline: for each file the classes, functions and constants whose name holds `pattern`."""
    index, left_out = await index_of(sandbox, path)
    rows: list[str] = []
    of = ""
    for at in index.places():
        if pattern.lower() not in at.symbol.qualname.lower():
            continue
        if at.path != of:
            rows.append(of := at.path)
        rows.append(_row(at))
    return _with(
        rows, left_out, f"nothing named like {pattern!r} below {path}" if pattern else f"no code below {path}"
    )


def _row(at: Place) -> str:
    first, last = at.symbol.lines
    lines = f"{first}-{last}" if last > first else str(first)
    return f"{'  ' * (1 + at.symbol.qualname.count('.'))}{lines}: {at.symbol.signature}"


async def definition(sandbox: Sandbox, name: str) -> str:
    """Where a name is defined, with its code; of a class also its members, inherited ones included."""
    index, left_out = await index_of(sandbox)
    places = index.named(name.strip())
    parts = [_defined(index, at) for at in places[:_MOST_DEFINITIONS]]
    if len(places) > _MOST_DEFINITIONS:
        others = ", ".join(f"{at.path}:{at.symbol.lines[0]}" for at in places[_MOST_DEFINITIONS:][:20])
        parts.append(f"{len(places) - _MOST_DEFINITIONS} more: {others}")
    if not parts:
        like = sorted({at.symbol.qualname for at in index.places() if name.lower() in at.symbol.qualname.lower()})
        parts = [f"no definition of {name!r}" + (f"; there are {', '.join(like[:10])}" if like and name else "")]
    return "\n\n".join([*parts, f"({left_out})"] if left_out else parts)


def _defined(index: Index, at: Place) -> str:
    first, last = at.symbol.lines
    if at.symbol.kind == "class":
        rows = [
            f"{at.path}:{first}-{last}: {at.symbol.signature}",
            *([at.symbol.summary] if at.symbol.summary else []),
        ]
        for owner, member in index.members(at):
            of = "" if owner == at.symbol.name else f"  (of {owner}, {member.path})"
            rows.append(f"  {member.symbol.line}: {member.symbol.signature}{of}")
        return "\n".join(rows)
    lines = index.texts[at.path].split("\n")[first - 1 : last]
    shown = [f"{first + number:5d} {line}" for number, line in enumerate(lines)]
    return f"{at.path}:{first}-{last}\n" + clip_rows(shown, "lines", most=_MOST_CHARACTERS, lines=_MOST_CODE)


async def references(sandbox: Sandbox, name: str) -> str:
    """Every line of code that uses a name: strings and comments do not count, definitions are marked."""
    index, left_out = await index_of(sandbox)
    last = name.strip().rpartition(".")[2]
    defined = {(at.path, at.symbol.line) for at in index.named(last)}
    texts = {path: index.texts[path].split("\n") for path, _ in index.uses(last)}
    rows = []
    for path, line in index.uses(last):
        mark = " (defined)" if (path, line) in defined else ""
        rows.append(f"{path}:{line}:{mark} {clip_row(texts[path][line - 1].strip(), 200)}")
    return _with(rows, left_out, f"no code uses {name!r}")
