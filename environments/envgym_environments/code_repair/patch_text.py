"""Unified diffs as text: which files they name, split into parts, and turned round. Applies nothing."""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

__all__ = ["header_name", "patch_paths", "quoted", "reversed_patch", "split_patch", "stays_inside"]

_HUNK = re.compile(r"@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)", re.DOTALL)
_COUNTS = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_TURNED = {
    "new file mode ": "deleted file mode ", "deleted file mode ": "new file mode ", "rename from ": "rename to ",
    "rename to ": "rename from ", "copy from ": "copy to ", "copy to ": "copy from ", "old mode ": "new mode ",
    "new mode ": "old mode ",
}  # fmt: skip
_NAMING = ("--- ", "+++ ", "rename from ", "rename to ", "copy from ", "copy to ")


def stays_inside(path: str) -> bool:
    """Whether a path is relative and has no way out."""
    place = PurePosixPath(path)
    return bool(path) and "\0" not in path and not place.is_absolute() and ".." not in place.parts


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def _walk(lines: list[str]) -> Iterator[tuple[int, str, bool]]:
    """(number, line, whether it is a hunk's body) of a patch."""
    old = new = 0
    for number, line in enumerate(lines, 1):
        body = (old > 0 or new > 0) or line.startswith("\\")
        if body:
            old -= line[:1] in (" ", "-", "\n")
            new -= line[:1] in (" ", "+", "\n")
        elif head := _COUNTS.match(line):
            old, new = int(head[1] or 1), int(head[2] or 1)
        yield number, line, body


def patch_paths(patch: str) -> tuple[tuple[int, str], ...]:
    """Every file that a patch names, with the line where it does; /dev/null is none."""
    found: list[tuple[int, str]] = []
    for number, line, body in _walk(_lines(patch)):
        head = next((head for head in _NAMING if line.startswith(head)), None)
        if body or head is None:
            continue
        name = header_name(line[len(head) :])
        if head in ("--- ", "+++ "):
            if name == "/dev/null":
                continue
            name = name[2:] if name[:2] in ("a/", "b/") else name
        found.append((number, name))
    return tuple(found)


def header_name(text: str) -> str:
    """The name in what follows ``--- `` or ``+++ ``: with a/ or b/ as it stands there, without quotes or a date."""
    return _unquoted(text.split("\t")[0].strip())


def quoted(name: str) -> str:
    """A name for a header: in quotes as git writes them where it would not be read as it is, else unchanged."""
    if not _UNUSUAL.search(name) and name == name.strip():
        return name
    return (
        '"'
        + "".join(
            _ESCAPED.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
            for byte in name.encode("utf-8", "surrogatepass")
        )
        + '"'
    )


def _unquoted(name: str) -> str:
    """A name without the quotes and escapes that git writes around unusual ones."""
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    inner = _ESCAPE.sub(
        lambda found: bytes([int(found[1], 8) & 255]) if len(found[1]) == 3 else _ESCAPES.get(found[1], found[1]),
        name[1:-1].encode("utf-8", "surrogatepass"),
    )
    return inner.decode("utf-8", "replace")


_UNUSUAL = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPES = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"
}  # fmt: skip
_ESCAPED = {value[0]: "\\" + key.decode() for key, value in _ESCAPES.items()} | {34: '\\"', 92: "\\\\"}


def split_patch(patch: str, wanted: Callable[[str], bool]) -> tuple[str, str]:
    """The parts of a patch whose file is wanted, and the others; each is "" or a patch."""
    chosen, others, part, paths = list[str](), list[str](), list[str](), list[str]()

    def close() -> None:
        (chosen if paths and all(map(wanted, paths)) else others).extend(part)

    named = dict[int, str](patch_paths(patch))
    lines = _lines(patch)
    for number, line, body in _walk(lines):
        begins = line.startswith("diff --git ") or (line.startswith("--- ") and not _is_git(part))
        if begins and not body and (paths or not _is_git(part)):
            close()
            part, paths = [], []
        part.append(line)
        if number in named:
            paths.append(named[number])
    close()
    return "".join(chosen), "".join(others)


def _is_git(part: list[str]) -> bool:
    return bool(part) and part[0].startswith("diff --git ") and not any(line.startswith("@@") for line in part)


def reversed_patch(patch: str) -> str:
    """The patch that undoes a patch.

    A reversed reversal has the same effect, and the same text if additions stand behind deletions, as is usual.
    """
    out: list[str] = []
    minus: list[str] = []
    plus: list[str] = []
    last: list[str] | None = None

    def flush() -> None:
        out.extend([*minus, *plus])
        minus.clear()
        plus.clear()

    old_name = ""
    for _, line, body in _walk(_lines(patch)):
        if body and line[:1] in "+-":
            last = minus if line[0] == "+" else plus
            last.append(("-" if line[0] == "+" else "+") + line[1:])
        elif body and line.startswith("\\") and last is not None and (minus or plus):
            last.append(line)
        else:
            flush()
            last = None
            if body:
                out.append(line)
            elif line.startswith("--- "):
                old_name = line
            elif line.startswith("+++ "):
                out += ["--- " + _side(line, "a/"), "+++ " + _side(old_name, "b/")]
            else:
                out.append(_turned(line))
    flush()
    return "".join(out)


def _side(line: str, prefix: str) -> str:
    name = line[4:]
    return prefix + name[2:] if name[:2] in ("a/", "b/") else name


def _turned(line: str) -> str:
    if head := _HUNK.match(line):
        return f"@@ -{head[2]} +{head[1]} @@{head[3]}"
    if found := re.match(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(.*)", line, re.DOTALL):
        return f"index {found[2]}..{found[1]}{found[3]}"
    if found := re.match(r"diff --git a/(.*) b/(.*)", line):
        return f"diff --git a/{found[2]} b/{found[1]}\n"
    head_of = next((head for head in _TURNED if line.startswith(head)), None)
    return line if head_of is None else _TURNED[head_of] + line[len(head_of) :]
