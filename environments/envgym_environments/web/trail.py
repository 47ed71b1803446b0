"""What brought the pages of an episode to where they are: a document that can be loaded again, and calls since.

A page's way back and forward is the addresses that its tab was at: a browser's own history could not be restored.
"""

from dataclasses import dataclass, field, replace

from envgym.messages import ToolCall
from envgym.page import PageView
from envgym.page_keys import clipboard_use
from envgym_environments.web.service import Anchor

__all__ = ["Trail"]

_MOST = 50
"""Addresses of one tab."""


@dataclass(slots=True)
class Trail:
    """anchor: the document that is loaded again. before: what its tab had been at then, itself the last.

    later: what its tab had gone back from then, the next one last. calls: since the anchor. tabs: what each tab was
    at, the page that it shows last. ahead: what each has gone back from. active: which one is shown. copied: a text
    is kept that no document has.
    """

    origin: str
    anchor: Anchor
    before: tuple[str, ...]
    later: tuple[str, ...] = ()
    calls: list[ToolCall] = field(default_factory=list)
    tabs: list[list[str]] = field(init=False)
    ahead: list[list[str]] = field(init=False)
    active: int = 0
    copied: bool = False

    def __post_init__(self) -> None:
        self.tabs, self.ahead = [[*self.before]], [[*self.later]]

    @property
    def back(self) -> str | None:
        """The address before the one that is shown; None where there is none."""
        here = self.tabs[self.active]
        return here[-2] if len(here) > 1 else None

    @property
    def forward(self) -> str | None:
        """The address that was gone back from last; None where there is none, or another way was taken since."""
        return self.ahead[self.active][-1] if self.ahead[self.active] else None

    def after(self, call: ToolCall, view: PageView, asked: Anchor | None) -> "Trail":
        """After a call, with what is then seen and the document that was asked for last meanwhile.

        A new document is an anchor where it is all that there is: one tab, and nothing copied; and where it is the
        one that is shown, by its address: a frame's is asked for as a page's is.
        """
        self.calls.append(call)
        self.copied = self.copied or _copies(call)
        shown = next((number for number, tab in enumerate(view.tabs) if tab.active), 0)
        more = len(view.tabs) - len(self.tabs)
        if call.name == "close_tab" and more < 0:
            del self.tabs[self.active], self.ahead[self.active]
        del self.tabs[len(view.tabs) :], self.ahead[len(view.tabs) :]  # closed by the pages themselves
        self.ahead += [[] for _ in view.tabs[len(self.tabs) :]]
        self.tabs += [self._begun(tab.url) for tab in view.tabs[len(self.tabs) :]]
        self.active = shown
        if asked is None or more > 0 or view.error:  # a new tab begins with what it asked for
            return self
        here, path = self.tabs[shown], self._path(view.url)
        is_shown = path.partition("#")[0] == asked.path
        if not is_shown and here and path == here[-1]:  # a frame's document went elsewhere, the page did not
            return self
        at = path or asked.path
        ahead = self.ahead[shown]
        if call.name == "back":
            ahead.append(here[-1])
            del here[-2:]
        else:
            del ahead[-1 if call.name == "forward" else 0 :]
        here.append(at)
        del here[:-_MOST]
        if len(self.tabs) > 1 or self.copied or not is_shown:
            return self
        return Trail(self.origin, replace(asked, path=at), tuple(here), tuple(ahead))

    def _begun(self, url: str) -> list[str]:
        return [path] if (path := self._path(url)) else []

    def _path(self, url: str) -> str:
        """An address of the site without its origin; "" for any other."""
        return url.removeprefix(self.origin) if url.startswith(f"{self.origin}/") else ""


def _copies(call: ToolCall) -> bool:
    return call.name == "press" and clipboard_use(str(call.arguments.get("keys", ""))) in ("copy", "cut")
