"""Actions on a tab: where they land, and the input that a person's hands would give.

What cannot be done is a `Missed`, which says why to the model.
"""

import asyncio
import base64
from typing import Any

from envgym.page import Node, Outcome
from envgym.page_actions import (
    Click,
    Drag,
    Fill,
    Hover,
    PageAction,
    Press,
    Scroll,
    Select,
    Target,
    TypeText,
    Upload,
)
from envgym.page_keys import clipboard_use
from envgym_sandboxes.browser.clipboard import taken, without_effect
from envgym_sandboxes.browser.keys import key_events, typed_events
from envgym_sandboxes.browser.seeing import ACTED_ON, tree
from envgym_sandboxes.browser.tab import Tab
from envgym_sandboxes.browser.wire import Refused

__all__ = ["Missed", "perform"]


class Missed(Exception):
    """An action that is not possible: an outcome, and what to tell the model."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome, self.message = outcome, message


_HIT = """function(left, top, right, bottom) {
  const box = this.getClientRects()[0], page = this.ownerDocument, root = this.getRootNode();
  if (!box) return 'it has no box';
  const above = (one) => one.parentNode || one.host;
  const within = (one, other) => { for (; one; one = above(one)) if (one === other) return true; return false; };
  const cut = ([l, t, r, b], x, y, w, h) =>
    [Math.max(l, x), Math.max(t, y), Math.min(r, x + w), Math.min(b, y + h)];
  const hit = ([l, t, r, b]) => {
    if (r < l || b < t) return [null];
    const x = (l + r) / 2, y = (t + b) / 2, at = root.elementFromPoint?.(x, y) || page.elementFromPoint(x, y);
    return [at, '=' + [(x - box.left) / (box.width || 1), (y - box.top) / (box.height || 1)]];
  };
  const mine = (at) => at && (within(at, this) || at.closest('label')?.control === this
    || this.closest('label')?.control === at);
  const whole = [box.left + left * box.width, box.top + top * box.height,
    box.left + right * box.width, box.top + bottom * box.height];
  let seen = cut(whole, 0, 0, page.defaultView.innerWidth, page.defaultView.innerHeight);
  let [at, spot] = hit(seen);
  if (mine(at)) return spot;
  for (let one = above(this); one && one !== page; one = above(one)) {
    if (one.nodeType !== 1 || one === page.body || one === page.documentElement) continue;
    const style = page.defaultView.getComputedStyle(one);
    if (style.overflow === 'visible' || /^(inline|contents)$/.test(style.display)) continue;
    const clip = one.getBoundingClientRect();
    seen = cut(seen, clip.left + one.clientLeft, clip.top + one.clientTop, one.clientWidth, one.clientHeight);
  }
  [at, spot] = hit(seen);
  if (mine(at) || (at && within(this, at))) return spot;
  return at ? 'it is covered by ' + at.tagName.toLowerCase() + (at.id ? '#' + at.id : '') : 'nothing of it is seen';
}"""
"""Where to meet an element, in parts of its box ("=0.5,0.5"), or why it is not met. What encloses it may be met in
its place, for that may be what hears the mouse. Given: what of the box is in the window, in such parts."""
_READY_TO_FILL = """function() {
  if (this.matches(':disabled') || this.readOnly) return 'it is disabled or only to be read';
  if (this.tagName === 'SELECT') return 'it is a selection: select options of it';
  const rich = this.isContentEditable, page = this.ownerDocument;
  if (!rich && !/^(INPUT|TEXTAREA)$/.test(this.tagName)) return 'it is no field';
  const typed = rich || !/^(checkbox|radio|file|submit|button|reset|image)$/.test(this.type);
  if (!typed) return 'it is no field for text';
  let host = this;
  while (rich && host.parentElement?.isContentEditable) host = host.parentElement;
  host.focus();
  if (rich) page.getSelection().selectAllChildren(this);
  const focused = this.getRootNode().activeElement === host || (rich && page.designMode === 'on');
  if (!focused || !page.hasFocus()) return 'it does not take the focus';
  if (rich) return '';
  if (/^(date|time|month|week|datetime-local|color|range)$/.test(this.type)) return '=';
  this.select();
  return '';
}"""
_SET_VALUE = """function(text) {
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, text);
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
  return this.value === text ? '' : 'it takes no ' + text;
}"""
_CHOOSE = """function(wanted) {
  if (this.tagName !== 'SELECT') return 'it is no selection field';
  if (this.matches(':disabled')) return 'it is disabled';
  if (!this.multiple && wanted.length !== 1) return 'it takes one option';
  const all = [...this.options], found = [];
  for (const one of wanted) {
    const same = (text) => text.trim() === one.trim();
    const option = all.find((o) => same(o.label) || same(o.text)) || all.find((o) => same(o.value));
    if (!option || option.matches(':disabled')) return 'there is no option ' + JSON.stringify(one) + ', but '
      + all.slice(0, 30).map((o) => JSON.stringify(o.text.trim())).join(', ');
    found.push(option);
  }
  this.focus();
  for (const option of all) if (this.multiple || found.includes(option)) option.selected = found.includes(option);
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
  return '';
}"""
_GIVE = """function(files) {
  if (this.tagName !== 'INPUT' || this.type !== 'file') return 'it is no field for files';
  if (this.matches(':disabled')) return 'it is disabled';
  const data = new DataTransfer();
  for (const [name, content] of files) {
    data.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name));
  }
  this.files = data.files;
  for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
  return '';
}"""
_SCROLLING = frozenset(["pageup", "pagedown", "home", "end", "space", "up", "down", "left", "right"]) | {
    " ",
    *(f"arrow{where}" for where in ("up", "down", "left", "right")),
}
_PLACE = "(() => { try { return __quiet.place(%f, %f); } catch { return true; } })()"


async def perform(tab: Tab, action: PageAction, clipboard: list[str]) -> None:
    """Do what is done with hands. clipboard: this episode's own, of one text. Raises Missed, Refused, Crashed."""
    match action:
        case Click(target, button, count):
            await _click(tab, await _point(tab, target), button, count)
        case Hover(target):
            at = await _point(tab, target)
            # a move is held back until the next frame, unless something comes that is not; and of a release of no
            # button the page hears nothing
            await _mouse(tab, [("mouseMoved", at, {}), ("mouseReleased", at, {"button": "none"})])
        case Fill(target, text):
            await _fill(tab, target, text)
        case TypeText(text):
            await _keys(tab, typed_events(text))
        case Press(keys):
            await _press(tab, keys, clipboard)
        case Scroll(dx, dy, target):
            at = (tab.spec.size[0] / 2, tab.spec.size[1] / 2) if target is None else await _point(tab, target)
            tab.scrolls = await tab.run(_PLACE % at)
            await _mouse(tab, [("mouseMoved", at, {}), ("mouseWheel", at, {"deltaX": dx, "deltaY": dy})])
        case Select(target, options):
            await _told(tab, await _element(tab, target), _CHOOSE, list(options))
        case Drag(start, end):
            await _drag(tab, start, end)
        case Upload(target, files):
            given = [[name, base64.b64encode(content).decode()] for name, content in files.items()]
            await _told(tab, await _element(tab, target), _GIVE, given)
        case _:
            raise TypeError(f"{action!r} is no PageAction that is done with hands")


# places


async def _backend(tab: Tab, target: Target) -> int:
    if target.ref:
        found = tab.nodes.get(target.ref)
        if found is None:
            raise Missed(Outcome.NO_ELEMENT, f"there is no element {target.ref[:20]!r} on this page")
        return found
    refs = _named(target, await tree(tab))
    if target.nth >= len(refs):
        what = f"{target.role or 'element'} named {target.name[:80]!r}" if target.name else target.role
        raise Missed(Outcome.NO_ELEMENT, f"there is no {what} number {target.nth} on this page")
    return tab.nodes[refs[target.nth]]


def _named(target: Target, nodes: list[Node]) -> list[str]:
    """The refs of what has this role and name: whole names before parts, what one acts on before what labels it."""
    wanted = target.name.strip().lower()
    kinds: dict[tuple[bool, bool], list[str]] = {}
    above: list[tuple[int, str]] = []
    for node in nodes:
        while above and above[-1][0] >= node.depth:
            above.pop()
        ref = node.ref or (above[-1][1] if above else "")  # a text is clicked where it stands
        if node.ref:
            above.append((node.depth, node.ref))
        name = node.name.strip().lower()
        if ref and (not target.role or node.role == target.role) and wanted in name:
            kinds.setdefault((name != wanted, node.role not in ACTED_ON), []).append(ref)
    return list(dict.fromkeys(kinds[min(kinds)])) if kinds else []


async def _element(tab: Tab, target: Target) -> str:
    """The handle of the element."""
    if target.x is not None and target.y is not None:
        said = await tab.call("DOM.getNodeForLocation", x=int(target.x), y=int(target.y))
        backend = said["backendNodeId"]
    else:
        backend = await _backend(tab, target)
    try:
        return str((await tab.call("DOM.resolveNode", backendNodeId=backend))["object"]["objectId"])
    except Refused as error:
        raise Missed(Outcome.NO_ELEMENT, "that element is not on the page any more") from error


async def _point(tab: Tab, target: Target) -> tuple[float, float]:
    """Where to act on a target: in the middle of what of it is seen."""
    if target.x is not None and target.y is not None:
        wide, high = tab.spec.size
        if not (0 <= target.x < wide and 0 <= target.y < high):
            raise Missed(Outcome.NOT_REACHABLE, f"{target.x:g},{target.y:g} is outside the window of {wide}x{high}")
        return target.x, target.y
    backend = await _backend(tab, target)
    found: list[Any] = await asyncio.gather(
        tab.call("DOM.scrollIntoViewIfNeeded", backendNodeId=backend),
        tab.call("DOM.getContentQuads", backendNodeId=backend),
        tab.call("DOM.resolveNode", backendNodeId=backend),
        return_exceptions=True,
    )
    _, quads, handle = found
    if isinstance(handle, BaseException):
        raise Missed(Outcome.NO_ELEMENT, "that element is not on the page any more") from handle
    if isinstance(quads, BaseException) or not quads["quads"]:
        if not await _true(tab, handle["object"]["objectId"], "function() { return this.isConnected; }"):
            raise Missed(Outcome.NO_ELEMENT, "that element is not on the page any more")
        raise Missed(Outcome.NOT_REACHABLE, "that element cannot be seen")
    (left, top), (across, down) = _extent(quads["quads"][0])
    (in_x, to_x), (in_y, to_y) = (
        (max(-start / (size or 1.0), 0.0), min((most - start) / (size or 1.0), 1.0))
        for start, size, most in zip((left, top), (across, down), map(float, tab.spec.size), strict=True)
    )
    spot = await _told(tab, handle["object"]["objectId"], _HIT, in_x, in_y, to_x, to_y, mark="=")
    in_x, in_y = map(float, spot[1:].split(","))
    return left + in_x * across, top + in_y * down


def _extent(quad: list[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The left and top end of what a quad covers, and how wide and high that is."""
    across, down = quad[::2], quad[1::2]
    return (min(across), min(down)), (max(across) - min(across), max(down) - min(down))


async def _true(tab: Tab, handle: str, function: str) -> bool:
    asked = tab.call("Runtime.callFunctionOn", objectId=handle, functionDeclaration=function, returnByValue=True)
    return bool((await asked)["result"].get("value"))


async def _told(tab: Tab, handle: str, function: str, *arguments: Any, mark: str = "") -> str:
    """Call a function of ours on an element; it answers why it cannot be done, or what begins with `mark`."""
    said = await tab.call(
        "Runtime.callFunctionOn",
        objectId=handle,
        functionDeclaration=function,
        arguments=[{"value": one} for one in arguments],
        returnByValue=True,
    )
    answer = said["result"].get("value")
    if "exceptionDetails" in said or not isinstance(answer, str):
        raise Missed(Outcome.INVALID, "the element does not allow that")
    if answer and not (mark and answer.startswith(mark)):
        raise Missed(Outcome.NOT_REACHABLE, f"that is not possible there: {answer[:1000]}")
    return answer


# hands


async def _mouse(tab: Tab, events: list[tuple[str, tuple[float, float], dict[str, Any]]]) -> None:
    tab.mouse = events[-1][1]
    sent = [tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more) for kind, (x, y), more in events]
    await asyncio.gather(*sent)


async def _click(tab: Tab, at: tuple[float, float], button: str, count: int) -> None:
    events: list[tuple[str, tuple[float, float], dict[str, Any]]] = [("mouseMoved", at, {})]
    for number in range(1, count + 1):
        events += [
            (kind, at, {"button": button, "clickCount": number}) for kind in ("mousePressed", "mouseReleased")
        ]
    await _mouse(tab, events)


async def _fill(tab: Tab, target: Target, text: str) -> None:
    handle = await _element(tab, target)
    await tab.call("DOM.scrollIntoViewIfNeeded", objectId=handle)
    if await _told(tab, handle, _READY_TO_FILL, mark="=") == "=":
        await _told(tab, handle, _SET_VALUE, text)
    elif text:
        await tab.call("Input.insertText", text=text)
    else:
        await _keys(tab, key_events("Delete") or [])


async def _press(tab: Tab, keys: str, clipboard: list[str]) -> None:
    events = key_events(keys)
    if events is None:
        raise Missed(
            Outcome.INVALID, f"there is no key {keys[:40]!r}; keys are such as Enter, Tab, ArrowDown, Control+a"
        )
    use = clipboard_use(keys)
    if use == "paste":
        if clipboard:
            await tab.call("Input.insertText", text=clipboard[0])
    elif use:
        await _keys(tab, without_effect(events))
        if text := await taken(tab, use):
            clipboard[:] = [text]
    else:
        tab.scrolls = keys.lower().rpartition("+")[2] in _SCROLLING
        await _keys(tab, events)


async def _keys(tab: Tab, events: list[tuple[str, dict[str, Any]]]) -> None:
    await asyncio.gather(*(tab.call(method, **params) for method, params in events))


async def _ends(tab: Tab, start: Target, end: Target) -> tuple[tuple[float, float], tuple[float, float]]:
    """Points of two targets as the page is scrolled then. Raises Missed where both are never seen at once."""
    begin, goal = await _point(tab, start), await _seen(tab, end)
    if goal is not None:
        return begin, goal
    goal, again = await _point(tab, end), await _seen(tab, start)
    if again is None:
        raise Missed(Outcome.NOT_REACHABLE, "both ends are not in the window at once: scroll, and drag by points")
    return again, goal


async def _seen(tab: Tab, target: Target) -> tuple[float, float] | None:
    """The middle of what of a target is in the window, without scrolling; None where nothing is."""
    if target.x is not None:
        return await _point(tab, target)
    try:
        quads = (await tab.call("DOM.getContentQuads", backendNodeId=await _backend(tab, target)))["quads"]
    except Refused:  # it has no box, or is gone
        quads = []
    if not quads:
        return None
    (left, right), (top, bottom) = (
        (max(start, 0.0), min(start + size, most))
        for start, size, most in zip(*_extent(quads[0]), map(float, tab.spec.size), strict=True)
    )
    return ((left + right) / 2, (top + bottom) / 2) if left < right and top < bottom else None


async def _drag(tab: Tab, start: Target, end: Target) -> None:
    """Press, move and let go; where the page drags data, as the browser tells, that is dropped."""
    begin, goal = await _ends(tab, start, end)
    held = {"button": "left", "buttons": 1}
    between = ((begin[0] + goal[0]) / 2, (begin[1] + goal[1]) / 2)
    nudge = (begin[0] + (4 if goal[0] >= begin[0] else -4), begin[1] + (4 if goal[1] >= begin[1] else -4))
    tab.dragged = None
    await tab.call("Input.setInterceptDrags", enabled=True)
    try:
        await _mouse(tab, [("mouseMoved", begin, {}), ("mousePressed", begin, {**held, "clickCount": 1})])
        for at in (nudge, between):
            if tab.dragged is None:
                await _mouse(tab, [("mouseMoved", at, held)])
        if tab.dragged is not None:
            for kind in ("dragEnter", "dragOver", "drop"):
                await tab.call("Input.dispatchDragEvent", type=kind, x=goal[0], y=goal[1], data=tab.dragged)
        # at once: what scrolls by itself, while a selection is held outside of its box, does so with every frame
        last = [] if tab.dragged is not None else [("mouseMoved", goal, held)]
        await _mouse(tab, [*last, ("mouseReleased", goal, {"button": "left", "clickCount": 1})])
    finally:
        tab.wire.tell("Input.setInterceptDrags", tab.session, enabled=False)
