"""What there is to see of a tab: tree, pruned HTML, text, screenshot, marks; each asked for only if wanted.

Refs are given in the order in which elements were first seen, and are kept as long as the document is.
"""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from envgym.errors import EnvironmentFailure
from envgym.page import Node, PageView, Wanted
from envgym_sandboxes.browser.frames import MOST_FRAMES, Box, below, boxes_in_sight, sizes, texts
from envgym_sandboxes.browser.tab import MOST_TEXT, Facts, Tab
from envgym_sandboxes.browser.wire import Refused

__all__ = ["ACTED_ON", "everywhere", "look", "tree"]

ACTED_ON = frozenset(
    [
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "listbox",
        "option",
        "checkbox",
        "radio",
        "switch",
        "slider",
        "spinbutton",
        "tab",
        "menuitem",
        "menuitemcheckbox",
        "menuitemradio",
        "treeitem",
        "gridcell",
        "ComboBoxMenuPopup",
        "ColorWell",
        "Date",
        "DateTime",
        "InputTime",
    ]
)
"""Roles that are marked: what one acts on."""

_PLAIN = frozenset(
    ("generic", "none", "presentation", "GenericContainer", "LayoutTable", "LayoutTableRow", "LayoutTableCell")
)
_LEFT_OUT = frozenset(("InlineTextBox", "LineBreak", "ListMarker"))
_STATES = (
    "checked",
    "disabled",
    "expanded",
    "focused",
    "invalid",
    "multiline",
    "pressed",
    "readonly",
    "required",
    "selected",
)
_TEXT = "(document.body?.innerText || '').slice(0, %d)"
_SKIPPED = frozenset(("SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "#comment"))
_KEPT = frozenset(
    [
        "id",
        "class",
        "name",
        "type",
        "value",
        "placeholder",
        "href",
        "src",
        "alt",
        "title",
        "for",
        "role",
        "aria-label",
        "checked",
        "selected",
        "disabled",
        "contenteditable",
        "min",
        "max",
        "step",
        "multiple",
        "action",
        "method",
        "x",
        "y",
        "r",
        "cx",
        "cy",
        "width",
        "height",
        "fill",
        "points",
    ]
)
_MARK = """(boxes => { const host = document.createElement('div'); host.id = '__marks';
 host.style.cssText = 'position:fixed;inset:0;z-index:2147483647;pointer-events:none;margin:0;padding:0;border:0';
 const root = host.attachShadow({mode: 'closed'});
 for (const [ref, x, y, w, h] of boxes) { const box = document.createElement('div');
  box.style.cssText = `position:fixed;left:${x}px;top:${y}px;width:${w}px;height:${h}px;outline:2px solid #d00`;
  const tag = document.createElement('span'); tag.textContent = ref;
  tag.style.cssText = 'position:absolute;left:0;top:0;background:#d00;color:#fff;font:bold 10px sans-serif';
  box.append(tag); root.append(box); } document.documentElement.append(host); })(%s)"""
_THERE = """(() => {
  const kept = (name) => { try { return Object.entries(window[name]).sort(); } catch { return null; } };
  const all = [...document.querySelectorAll('*')];
  const cookie = (() => { try { return document.cookie; } catch { return null; } })();
  return [kept('localStorage'), kept('sessionStorage'), cookie, window.name, [scrollX, scrollY].map(Math.round),
    all.map((one, at) => [at, one.scrollLeft, one.scrollTop].map(Math.round)).filter((one) => one[1] || one[2]),
    [...document.querySelectorAll('input,textarea,select')].map((one) => [one.type, one.value, !!one.checked,
      one.options ? [...one.options].map((option) => option.selected)
        : [...one.files || []].map((file) => [file.name, file.size])])];
})()"""
"""What a tree does not tell: what is kept for the site, where all is scrolled to, what every field holds."""
_UNMARK = "document.getElementById('__marks')?.remove()"


async def look(tab: Tab, wanted: Wanted, facts: Facts) -> PageView:
    """The view of one tab; other tabs and the value are its context's to add. Raises Hung, Crashed, Refused."""
    limits = tab.spec.limits
    view, boxed = PageView(tab.url, facts.title), wanted.boxes or wanted.marks
    treed = wanted.tree or boxed or wanted.focused
    if treed or wanted.dom or wanted.text:
        elements, letters = await _size(tab, facts)
        if elements > limits.tree_nodes * 10 or letters > MOST_TEXT:
            told = f"the page is too large to be shown: {elements} elements, {letters} characters"
            return replace(view, error=told, truncated=("everything",))
    # all is asked for at once: the answers are of one moment, and the way there and back is gone once
    nodes = tab.call("Accessibility.getFullAXTree") if treed else None
    asked = (
        tab.call("DOMSnapshot.captureSnapshot", computedStyles=[], includeDOMRects=False)
        if wanted.dom or boxed
        else None
    )
    text = tab.asked(_TEXT % (limits.text_chars + 1)) if wanted.text else None
    picture = _pictured(tab) if wanted.screenshot and not wanted.marks else None
    cut: list[str] = []
    if nodes is not None:
        view = _with_tree(tab, wanted, view, await tree(tab, nodes), cut)
    if asked is not None:
        view = await _with_snapshot(tab, wanted, view, await tab.within(asked, limits.act_s), cut)
    if text is not None:
        said = await _read(tab, str(await tab.valued(text)), facts.frames)
        view = replace(view, text=_bounded(said, limits.text_chars, "text", cut))
    if wanted.screenshot:
        view = replace(view, screenshot=await _screenshot(tab, view.marks, picture))
    return replace(view, tree=view.tree if wanted.tree else None, truncated=tuple(cut))


def _with_tree(tab: Tab, wanted: Wanted, view: PageView, nodes: list[Node], cut: list[str]) -> PageView:
    if len(nodes) > tab.spec.limits.tree_nodes:
        nodes = nodes[: tab.spec.limits.tree_nodes]
        cut.append("tree")
    focused = next((one.ref for one in nodes if "focused" in one.states and one.ref), "")
    return replace(view, tree=tuple(nodes), focused=focused if wanted.focused else None)


async def _size(tab: Tab, facts: Facts) -> tuple[int, int]:
    """Elements and characters of the document and of what is in its frames."""
    if not facts.frames:
        return facts.elements, facts.letters
    inner = await tab.within(sizes(tab), tab.spec.limits.act_s)
    return facts.elements + sum(one for one, _ in inner), facts.letters + sum(one for _, one in inner)


async def _read(tab: Tab, text: str, frames: int) -> str:
    """What a reader sees: a document's own text, and below it that of the frames in it."""
    if not frames:
        return text
    inner = await tab.within(texts(tab, tab.spec.limits.text_chars + 1), tab.spec.limits.act_s)
    return "\n".join(part for part in (text, *inner) if part)


async def _with_snapshot(
    tab: Tab, wanted: Wanted, view: PageView, snapshot: dict[str, Any], cut: list[str]
) -> PageView:
    if wanted.dom:
        view = replace(view, dom=_bounded(_pruned(tab, snapshot), tab.spec.limits.dom_chars, "dom", cut))
    if wanted.boxes or wanted.marks:
        view = replace(view, marks=tuple(_boxed(tab, view.tree or (), await boxes_in_sight(tab, snapshot))))
    return view


def _bounded(text: str, most: int, part: str, cut: list[str]) -> str:
    if len(text) > most:
        cut.append(part)
    return text[:most]


def _pictured(tab: Tab) -> "asyncio.Future[dict[str, Any]]":
    return tab.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)


async def _screenshot(
    tab: Tab, marks: tuple[Node, ...] | None, asked: "asyncio.Future[dict[str, Any]] | None"
) -> bytes:
    """The picture that was asked for; None: with marks drawn in it."""
    if asked is not None:
        return base64.b64decode((await tab.within(asked, tab.spec.limits.act_s))["data"])
    await tab.run(_MARK % json.dumps([[node.ref, *node.box] for node in marks or () if node.box]))
    try:
        said = await tab.within(_pictured(tab), tab.spec.limits.act_s)
    finally:
        await tab.run(_UNMARK)
    return base64.b64decode(said["data"])


async def tree(tab: Tab, asked: "asyncio.Future[dict[str, Any]] | None" = None) -> list[Node]:
    """The accessibility tree of the tab and of the frames in it, those without meaning left out.

    asked: the first document's, where it was asked for already.
    """
    said = await tab.within(asked or tab.call("Accessibility.getFullAXTree"), tab.spec.limits.act_s)
    found = _nodes(tab, said["nodes"])
    if not any(node.role == "Iframe" for node in found):
        return found
    frames = (await tab.within(tab.call("Page.getFrameTree"), tab.spec.limits.act_s))["frameTree"]
    return await _with_frames(tab, found, below(frames)[:MOST_FRAMES])


async def _with_frames(tab: Tab, found: list[Node], frames: list[str]) -> list[Node]:
    calls = [tab.call("Accessibility.getFullAXTree", frameId=frame) for frame in frames]
    owners = [tab.call("DOM.getFrameOwner", frameId=frame) for frame in frames]
    said = await tab.within(asyncio.gather(*calls, *owners, return_exceptions=True), tab.spec.limits.act_s)
    inside: dict[str, list[Node]] = {}
    for trees, owner in zip(said[: len(calls)], said[len(calls) :], strict=True):
        if not isinstance(trees, BaseException) and not isinstance(owner, BaseException):
            inside[ref_of(tab, owner["backendNodeId"])] = _nodes(tab, trees["nodes"])
    return _laid_in(found, inside, 0)


def _laid_in(nodes: list[Node], inside: dict[str, list[Node]], depth: int) -> list[Node]:
    whole = []
    for node in nodes:
        whole.append(replace(node, depth=node.depth + depth))
        if node.role == "Iframe" and node.ref in inside:
            whole += _laid_in(inside.pop(node.ref), inside, depth + node.depth + 1)
    return whole


def ref_of(tab: Tab, backend: int) -> str:
    """The ref of an element of the browser."""
    ref = tab.refs.get(backend)
    if ref is None:
        ref = tab.refs[backend] = f"e{len(tab.refs) + 1}"
        tab.nodes[ref] = backend
    return ref


def _nodes(tab: Tab, raw: list[dict[str, Any]]) -> list[Node]:
    known = {node["nodeId"]: node for node in raw}
    found: list[Node] = []
    waiting = [(raw[0]["nodeId"], 0, "")] if raw else []
    while waiting:
        name, depth, above = waiting.pop()
        node = known.get(name)
        if node is None:
            continue
        made = None if node.get("ignored") else _node(tab, node, depth, above)
        if made is not None:
            found.append(made)
            depth, above = depth + 1, made.name
        waiting += [(child, depth, above) for child in reversed(node.get("childIds", ()))]
    return found


def _node(tab: Tab, raw: dict[str, Any], depth: int, above: str) -> Node | None:
    role, name = raw.get("role", {}).get("value", ""), str(raw.get("name", {}).get("value", ""))[:2_000]
    if role in _LEFT_OUT or role == "RootWebArea" or (role == "StaticText" and (name in above or not name.strip())):
        return None
    states = []
    for one in raw.get("properties", ()):
        if one["name"] in _STATES and (value := one.get("value", {}).get("value")) not in (False, "false", None):
            states.append(one["name"] if value in (True, "true") else f"{one['name']}={value}")
        elif one["name"] == "expanded":
            states.append("expanded=false")
    if role in _PLAIN and not name and "focused" not in states:
        return None
    if role == "StaticText":
        return Node("", "text", name, depth=depth)
    value = str(raw.get("value", {}).get("value", ""))[:2_000]
    backend = raw.get("backendDOMNodeId")
    return Node("" if backend is None else ref_of(tab, backend), role, name, value, depth, tuple(sorted(states)))


def _boxed(tab: Tab, nodes: Sequence[Node], boxes: dict[int, Box]) -> list[Node]:
    """What can be acted on and is in sight, with its box."""
    found = []
    for node in nodes:
        box = boxes.get(tab.nodes.get(node.ref, -1)) if node.role in ACTED_ON else None
        if box is not None:
            found.append(replace(node, box=box))
    return found


@dataclass(frozen=True, slots=True)
class _Document:
    """One document of a snapshot. shown: nodes with a box. The rest: by node, of those that have any.

    frames: the document inside of a frame, by its place in the snapshot.
    """

    nodes: dict[str, Any]
    shown: set[int]
    below: dict[int, list[int]]
    values: dict[int, int]
    texts: dict[int, int]
    frames: dict[int, int]


def _document(raw: dict[str, Any]) -> _Document:
    nodes = raw["nodes"]
    below: dict[int, list[int]] = {}
    for index, parent in enumerate(nodes["parentIndex"]):
        below.setdefault(parent, []).append(index)
    values, texts, frames = (
        dict(zip(nodes[name]["index"], nodes[name]["value"], strict=True))
        for name in ("inputValue", "textValue", "contentDocumentIndex")
    )
    typed = {index: value for index, value in values.items() if value >= 0}
    return _Document(nodes, set(raw["layout"]["nodeIndex"]), below, typed, texts, frames)


def _pruned(tab: Tab, snapshot: dict[str, Any]) -> str:
    """The HTML of the document and of those in its frames: what has a box, with refs and what says something."""
    strings, documents = snapshot["strings"], snapshot["documents"]
    first = _document(documents[0])
    out: list[str] = []
    waiting: list[tuple[_Document, int] | str] = [(first, at) for at in reversed(first.below.get(-1, []))]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            out.append(one)
            continue
        document, at = one
        nodes, shown = document.nodes, document.shown
        name = strings[nodes["nodeName"][at]] if nodes["nodeName"][at] >= 0 else ""
        below = document.below.get(at, [])
        if nodes["nodeType"][at] == 3:
            out.append(_spaced(strings[nodes["nodeValue"][at]]) if at in shown else "")
            continue
        if name == "TEXTAREA":
            below = []  # what is typed in it is told, not what it began with
        if name.upper() in _SKIPPED or name.startswith("::"):
            continue
        inside_select = name in ("OPTION", "OPTGROUP")
        if nodes["nodeType"][at] == 1 and name not in ("HTML", "BODY") and (at in shown or inside_select):
            told = _attributes(strings, nodes, at, document.values)
            out.append(f"<{name.lower()} ref={ref_of(tab, nodes['backendNodeId'][at])}{told}>")
            waiting.append(f"</{name.lower()}>")
            text = document.texts.get(at, -1)
            out.append(escape(strings[text], quote=False) if text >= 0 else "")
        if at in document.frames and at in shown:
            inside = _document(documents[document.frames[at]])
            waiting += [(inside, root) for root in reversed(inside.below.get(-1, []))]
        waiting += [(document, child) for child in reversed(below)]
        if inside_select:
            shown.update(below)
    return "".join(out)


def _spaced(text: str) -> str:
    return escape(" ".join(text.split()), quote=False)


def _attributes(strings: list[str], nodes: dict[str, Any], at: int, values: dict[int, int]) -> str:
    pairs = nodes["attributes"][at]
    kept = {strings[a]: strings[b] if b >= 0 else "" for a, b in zip(pairs[::2], pairs[1::2], strict=True)}
    if at in values:
        kept["value"] = strings[values[at]]
    told = ((name, f'="{escape(text[:200])}"' if text else "") for name, text in kept.items() if name in _KEPT)
    return "".join(f" {name}{text}" for name, text in told)


async def everywhere(tabs: list[Tab]) -> list[Any]:
    """Of every tab what is seen and what a tree does not tell; one that cannot be seen counts by its address."""
    seen: list[Any] = []
    for tab in tabs:
        try:
            nodes = [(one.role, one.name, one.value, one.depth, one.states) for one in await tree(tab)]
            seen.append((tab.url, nodes, await tab.run(_THERE)))
        except (Refused, EnvironmentFailure):
            seen.append((tab.url, None, None))
    return seen
