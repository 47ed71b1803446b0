"""Pages as text: the accessibility tree line by line, a whole view, and what differs from the view before.

Pure functions; what is costly to send again and again (a tree of which two lines changed) is sent as a difference.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

from envgym.page import Acted, Node, PageView

__all__ = ["acted_text", "node_line", "tree_diff", "tree_text", "view_diff", "view_text"]


def node_line(node: Node) -> str:
    """One element: ``[e7] button "Send" (disabled)``."""
    ref = f"[{node.ref}] " if node.ref else ""
    name = f' "{_one_line(node.name)}"' if node.name else ""
    value = f' = "{_one_line(node.value)}"' if node.value else ""
    states = f" ({', '.join(node.states)})" if node.states else ""
    return f"{ref}{node.role}{name}{value}{states}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace('"', '\\"')


def tree_text(nodes: Sequence[Node]) -> str:
    """The tree, one element on a line, indented by its depth."""
    return "\n".join("  " * node.depth + node_line(node) for node in nodes)


def tree_diff(before: Sequence[Node], after: Sequence[Node]) -> str:
    """What was removed ("-") and added ("+"), in order; "" where nothing was."""
    old, new = tree_text(before).split("\n"), tree_text(after).split("\n")
    lines = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += [f"- {line.strip()}" for line in old[a:b]] + [f"+ {line.strip()}" for line in new[c:d]]
    return "\n".join(line for line in lines if line.strip("+- "))


def view_text(view: PageView) -> str:
    """Everything of a view that is text, under headings."""
    parts = [_head(view)]
    if view.tree is not None:
        parts.append(tree_text(view.tree) or "(empty page)")
    if view.dom is not None:
        parts.append(f"HTML:\n{view.dom}")
    if view.text is not None:
        parts.append(f"Text:\n{view.text}")
    if view.marks is not None:
        parts.append("Marks:\n" + "\n".join(_mark(node) for node in view.marks))
    if view.focused is not None:
        parts.append(f"Focused: {view.focused or 'nothing'}")
    if view.truncated:
        parts.append(f"Cut, because too long: {', '.join(view.truncated)}")
    return "\n".join(parts)


def _head(view: PageView) -> str:
    lines = [f"Page: {view.title or '(no title)'} <{view.url}>"]
    if len(view.tabs) > 1:
        lines += [
            f"{'*' if tab.active else ' '} tab {number}: {tab.title or '(no title)'} <{tab.url}>"
            for number, tab in enumerate(view.tabs)
        ]
    if view.error:
        lines.append(f"error: {view.error}")
    return "\n".join(lines)


def _mark(node: Node) -> str:
    left, top, width, height = node.box or (0, 0, 0, 0)
    return f"{node_line(node)} at {left:.0f},{top:.0f} size {width:.0f}x{height:.0f}"


def view_diff(before: PageView | None, after: PageView) -> str:
    """A view told as what changed since `before`, where that is shorter than the whole and the page is the same."""
    if before is None or before.url != after.url or before.tree is None or after.tree is None or after.error:
        return view_text(after)
    changed = tree_diff(before.tree, after.tree)
    told = f"{_head(after)}\nChanged:\n{changed}" if changed else f"{_head(after)}\nNothing changed."
    whole = view_text(after)
    if after.focused is not None and after.focused != before.focused:
        told += f"\nFocused: {after.focused or 'nothing'}"
    same_rest = (before.dom, before.text) == (after.dom, after.text)
    return told if same_rest and len(told) < len(whole) else whole


def acted_text(acted: Acted) -> str:
    """What came of an action, as lines for a model; "" where there is nothing to say."""
    lines = [] if acted.outcome.ok and not acted.message else [f"error ({acted.outcome}): {acted.message}"]
    if acted.outcome.ok and acted.message:
        lines = [acted.message]
    for dialog in acted.dialogs:
        answer = "accepted" if dialog.accepted else "dismissed"
        lines.append(f"dialog ({dialog.kind}, {answer}): {_one_line(dialog.message)[:500]}")
    for file in acted.downloads:
        size = "too large" if file.content is None else f"{len(file.content)} bytes"
        lines.append(f"downloaded: {_one_line(file.name)[:200]} ({size})")
    if acted.refused:
        lines.append(f"outside, and closed: {', '.join(acted.refused)}")
    if acted.opened:
        lines.append(f"new tabs: {acted.opened}")
    return "\n".join(lines)
