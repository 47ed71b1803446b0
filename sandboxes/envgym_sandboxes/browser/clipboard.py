"""An episode's own clipboard: Chromium has one for all contexts, which no key of an agent reads or writes.

What is copied is taken from the document that has the focus, also one in a frame, in a world where the page's
scripts have no part. They hear of it as of a copy by a person, and may put something else in its place.
"""

import json
from typing import Any, Literal

from envgym_sandboxes.browser.keys import Event
from envgym_sandboxes.browser.tab import Tab
from envgym_sandboxes.browser.wire import Refused

__all__ = ["taken", "without_effect"]

_DEEPEST = 20
"""Frames within each other that are looked into."""

_FOCUSED = """() => {
  let on = document.activeElement;
  while (on?.shadowRoot?.activeElement) on = on.shadowRoot.activeElement;
  return on;
}"""
_TAKE = """(kind, focused) => {
  const said = getSelection(), at = said?.anchorNode, data = new DataTransfer();
  let field = focused();
  const on = field && field !== document.body ? field : (at?.nodeType === 1 ? at : at?.parentElement) || document;
  const told = { clipboardData: data, bubbles: true, cancelable: true, composed: true };
  if (!on.dispatchEvent(new ClipboardEvent(kind, told))) return data.getData('text/plain');
  field = focused();
  if (field?.type === 'password') return '';
  const text = typeof field?.selectionStart === 'number'
    ? field.value.slice(field.selectionStart, field.selectionEnd) : String(getSelection() ?? '');
  if (text && kind === 'cut') document.execCommand('delete');
  return text;
}"""


def without_effect(events: list[Event]) -> list[Event]:
    """The same keys, which the page hears and the browser does nothing with: it goes by the code of the key."""
    return [(method, params | {"windowsVirtualKeyCode": 0}) for method, params in events]


async def taken(tab: Tab, kind: Literal["copy", "cut"]) -> str:
    """The text that is copied or cut where the focus is; "" where nothing is selected. Raises Refused."""
    frame = tab.frame
    for _ in range(_DEEPEST):
        world = (await tab.call("Page.createIsolatedWorld", frameId=frame))["executionContextId"]
        inner = await _inner(tab, world)
        if not inner:
            break
        frame = inner
    take = f"({_TAKE})({json.dumps(kind)}, {_FOCUSED})"
    said = await tab.call("Runtime.evaluate", contextId=world, expression=take, returnByValue=True)
    text = said["result"].get("value")
    return text if isinstance(text, str) else ""


async def _inner(tab: Tab, world: int) -> str:
    """The frame that has the focus within this one; "" where none has."""
    focused: dict[str, Any] = (await tab.call("Runtime.evaluate", contextId=world, expression=f"({_FOCUSED})()"))[
        "result"
    ]
    if focused.get("className") not in ("HTMLIFrameElement", "HTMLFrameElement", "HTMLObjectElement"):
        return ""
    try:
        return str((await tab.call("DOM.describeNode", objectId=focused["objectId"]))["node"].get("frameId", ""))
    except Refused:  # it is gone meanwhile
        return ""
