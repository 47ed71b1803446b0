"""What a model reads of a class that is missing: its interface in words, at three levels of specificity. Pure."""

import ast
from collections.abc import Sequence

from envgym_environments.code_repair.kinds.contract import Place, Seen
from envgym_environments.code_repair.runner import Layout

__all__ = ["class_issue"]

_MOST_TESTS = 5
_MOST_WORDS = 600


def class_issue(node: ast.ClassDef, place: Place, seen: Seen, layout: Layout, used: Sequence[str]) -> str:
    """The prompt, at the level of ``seen["issue"]``: "full", "short" or "symptom"."""
    failing = seen["fail_to_pass"]
    bases = ", ".join(ast.unparse(base) for base in [*node.bases, *(one.value for one in node.keywords)])
    state = "is missing from" if seen["state"] == "removed" else "has no bodies in"
    lines = [f"The class `{node.name}`{f' ({bases})' if bases else ''} {state} {place['path']}. Write it."]
    doc = ast.get_docstring(node) or ""
    match seen["issue"]:
        case "full":
            lines += ["", doc[:_MOST_WORDS]] if doc else []
            lines += ["", "Its members:", *_members(node, whole=True)]
        case "short":
            lines += [doc.partition("\n")[0]] if doc else []
            lines += ["Its members:", *_members(node, whole=False)]
        case "symptom":
            pass
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")
    if used:
        lines += ["", f"It is used in {', '.join(used[:8])}."]
    lines += ["", f"{len(failing)} of the {seen['tests']} tests fail without it:"]
    lines += [f"- {test}" for test in failing[: _MOST_TESTS if seen["issue"] == "full" else 1]]
    lines += [
        "",
        f"The package's code is in {layout.package}. These tests must pass and no other may break.",
    ]
    return "\n".join(lines)


def _members(node: ast.ClassDef, *, whole: bool) -> list[str]:
    found: list[str] = []
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = "".join(f"@{ast.unparse(mark)} " for mark in one.decorator_list)
            word = "async def" if isinstance(one, ast.AsyncFunctionDef) else "def"
            returns = f" -> {ast.unparse(one.returns)}" if one.returns else ""
            head = f"{marks}{word} {one.name}({ast.unparse(one.args)}){returns}" if whole else one.name
            doc = (ast.get_docstring(one) or "") if whole else ""
            said = " ".join(doc.partition("\n\n")[0].split())[:200]
            found.append(f"- `{head}`{f': {said}' if said else ''}")
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            found.append(f"- `{', '.join(ast.unparse(target) for target in targets)}`, an attribute of the class")
    return found
