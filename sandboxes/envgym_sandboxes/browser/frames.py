"""What is in the frames of a page: how much, where its elements are in the window, and what it says.

The browser keeps all frames of a page in one process, those of other origins and sandboxed ones, too.
"""

import asyncio
from typing import Any

from envgym_sandboxes.browser.tab import Tab, size_of
from envgym_sandboxes.browser.wire import Refused

__all__ = ["MOST_FRAMES", "Box", "below", "boxes_in_sight", "sizes", "texts"]

MOST_FRAMES = 50
"""Of a page; what is in further ones is left out."""

Box = tuple[float, float, float, float]
"""Left, top, width and height in the window."""

_SHOWN = "function() { return this.checkVisibility({visibilityProperty: true}); }"
_SAID = "(document.body?.innerText || '').slice(0, %d)"


def below(frames: dict[str, Any]) -> list[str]:
    """The names of all frames in one, as `Page.getFrameTree` tells them: each before those in it."""
    found = []
    for child in frames.get("childFrames", ()):
        found += [child["frame"]["id"], *below(child)]
    return found


async def boxes_in_sight(tab: Tab, snapshot: dict[str, Any]) -> dict[int, Box]:
    """The boxes of all elements that are in sight, by Chromium's number; of a frame's what the frame shows."""
    documents = snapshot["documents"]
    window = (0.0, 0.0, float(tab.spec.size[0]), float(tab.spec.size[1]))
    places = await _places(tab, documents) if len(documents) > 1 else {}
    found: dict[int, Box] = {}
    waiting = [(0, window, window)]
    while waiting:
        number, place, seen = waiting.pop()
        document = documents[number]
        found |= _boxes(document, place if number else None, seen)
        for inner in document["nodes"]["contentDocumentIndex"]["value"]:
            if inner in places and (sight := _common(places[inner], seen)) is not None:
                waiting.append((inner, places[inner], sight))
    return found


async def _places(tab: Tab, documents: list[dict[str, Any]]) -> dict[int, Box]:
    """Where in the window each document in a frame is: what is inside of the frame's border and padding."""
    owners = {}
    for document in documents:
        held, shown = document["nodes"]["contentDocumentIndex"], set(document["layout"]["nodeIndex"])
        for node, inner in zip(held["index"], held["value"], strict=True):
            if node in shown:
                owners[inner] = document["nodes"]["backendNodeId"][node]
    some = list(owners.items())[:MOST_FRAMES]
    calls = [tab.call("DOM.getBoxModel", backendNodeId=owner) for _, owner in some]
    said = await tab.within(asyncio.gather(*calls, return_exceptions=True), tab.spec.limits.act_s)
    places = {}
    for (inner, _), model in zip(some, said, strict=True):
        if isinstance(model, Refused):  # it has no box, or is gone
            continue
        if isinstance(model, BaseException):
            raise model
        across, down = model["model"]["content"][::2], model["model"]["content"][1::2]
        places[inner] = (min(across), min(down), max(across) - min(across), max(down) - min(down))
    return places


def _boxes(document: dict[str, Any], place: Box | None, seen: Box) -> dict[int, Box]:
    """A document's boxes in sight. place: where it is, which may be scaled; None: it is the window's own."""
    layout, backends = document["layout"], document["nodes"]["backendNodeId"]
    if not layout["bounds"]:
        return {}
    _, _, wide, high = layout["bounds"][0]  # of the document itself, as large as its viewport
    if place is None:
        place = (0.0, 0.0, wide, high)
    if wide <= 0 or high <= 0:
        return {}
    across, down = place[2] / wide, place[3] / high
    left, top = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
    found: dict[int, Box] = {}
    gone: set[int] = set()
    for index, (x, y, w, h) in zip(layout["nodeIndex"], layout["bounds"], strict=True):
        backend = backends[index]
        if backend in found or backend in gone:
            continue  # the first box of an element is its own
        box = (place[0] + (x - left) * across, place[1] + (y - top) * down, w * across, h * down)
        if _common(box, seen) is None:
            gone.add(backend)
        else:
            found[backend] = box
    return found


def _common(one: Box, other: Box) -> Box | None:
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[0] + one[2], other[0] + other[2]), min(one[1] + one[3], other[1] + other[3])
    return (left, top, right - left, bottom - top) if left < right and top < bottom else None


async def sizes(tab: Tab) -> list[tuple[int, int]]:
    """Elements and characters of each frame, shown or not."""
    tree = (await tab.call("Page.getFrameTree"))["frameTree"]
    said = await asyncio.gather(*(_value(tab, frame, size_of(tab.spec)) for frame in below(tree)))
    return [(int(one[0]), int(one[1])) for one in said if one]


async def texts(tab: Tab, most: int) -> list[str]:
    """What a reader sees in the frames that are shown, at most so many characters of each, in their order."""
    tree = (await tab.call("Page.getFrameTree"))["frameTree"]
    return await _texts(tab, tree, most, set(below(tree)[:MOST_FRAMES]))


async def _texts(tab: Tab, tree: dict[str, Any], most: int, some: set[str]) -> list[str]:
    inner = [one for one in tree.get("childFrames", ()) if one["frame"]["id"] in some]
    said = await asyncio.gather(*(_text(tab, one["frame"]["id"], most) for one in inner))
    found: list[str] = []
    for one, text in zip(inner, said, strict=True):
        if text is not None:
            found += [text, *await _texts(tab, one, most, some)]
    return found


async def _text(tab: Tab, frame: str, most: int) -> str | None:
    """What one frame says; None where it is not shown, or is gone."""
    try:
        owner = await tab.call("DOM.getFrameOwner", frameId=frame)
        node = await tab.call("DOM.resolveNode", backendNodeId=owner["backendNodeId"])
        handle = node["object"]["objectId"]
        shown = tab.call("Runtime.callFunctionOn", objectId=handle, functionDeclaration=_SHOWN, returnByValue=True)
        if (await shown)["result"].get("value") is not True:
            return None
    except Refused:
        return None
    said = await _value(tab, frame, _SAID % most)
    return None if said is None else str(said)


async def _value(tab: Tab, frame: str, expression: str) -> Any:
    """The value of an expression in a frame, where its own scripts have no part in it; None where it is gone."""
    try:
        world = (await tab.call("Page.createIsolatedWorld", frameId=frame))["executionContextId"]
        said = await tab.call("Runtime.evaluate", contextId=world, expression=expression, returnByValue=True)
    except Refused:
        return None
    return said["result"].get("value")
