"""A web page as a place to act: typed actions in, observations out, each part of which is paid for only if wanted.

The contract only: what an agent can do is a frozen `PageAction` (`envgym.page_actions`), what came of it an `Acted`
(what the model or the page did wrong is data in it), what is seen a `PageView`. A `Browser` gives each episode a
`Page` of its own, which reaches nothing but the `Site`s named in its `PageSpec`. Implementations live in leaves and
are found by name (`envgym.open_browser`). As tools: `envgym.page_tools`; as text and as differences:
`envgym.page_text`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from pydantic import JsonValue

from envgym.backend_report import BackendReport
from envgym.page_actions import PageAction

__all__ = [
    "Acted",
    "Browser",
    "Dialog",
    "Download",
    "Folder",
    "Node",
    "Outcome",
    "Page",
    "PageLimits",
    "PageSpec",
    "PageView",
    "Site",
    "Storage",
    "Tab",
    "Tcp",
    "UnixSocket",
    "Wanted",
]


class Outcome(StrEnum):
    """What came of an action. All but the first are data: the model's fault or the page's, never an exception."""

    DONE = "done"
    NO_ELEMENT = "no such element"
    NOT_REACHABLE = "element not reachable"
    INVALID = "not possible"
    REFUSED = "outside"
    NOT_LOADED = "not loaded"
    BUSY = "still busy"
    HUNG = "hung"
    CRASHED = "crashed"

    @property
    def ok(self) -> bool:
        """Whether the action was carried out, whatever the page then did."""
        return self in (Outcome.DONE, Outcome.BUSY)


@dataclass(frozen=True, slots=True)
class Dialog:
    """What the page asked in a dialog, and whether it was accepted; alerts always are."""

    kind: str
    message: str
    accepted: bool


@dataclass(frozen=True, slots=True)
class Download:
    """A file that the page gave. content: None where it was larger than allowed or did not come in time."""

    name: str
    url: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of one action.

    message: what to tell the model; "" when all went well. dialogs: those of this action, the first of them.
    refused: addresses outside the episode's sites that were wanted, the first of them, in the order of their names.
    downloads: what came since the action before; one that the browser begins late is told with the next action.
    opened: how many tabs the page opened. wall_s: how long it took, outside every comparison.
    """

    outcome: Outcome = Outcome.DONE
    message: str = ""
    dialogs: tuple[Dialog, ...] = ()
    downloads: tuple[Download, ...] = ()
    refused: tuple[str, ...] = ()
    opened: int = 0
    wall_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a view is to hold. Address, title and tabs are always there; all else is paid for only if wanted.

    tree: the accessibility tree, with refs. dom: pruned HTML: no scripts, styles, hidden parts nor noise, refs as
    attributes. text: what a reader sees; below a document's own that of the frames it shows. screenshot: PNG of
    the viewport. boxes: of what can be acted on, in frames too, as `PageView.marks`. marks: the same, and drawn
    into the screenshot where there is one. focused: the ref of what has the focus. value: an expression as
    `Page.run` takes it, whose value comes with the view: "" for none.
    """

    tree: bool = True
    dom: bool = False
    text: bool = False
    screenshot: bool = False
    marks: bool = False
    focused: bool = False
    boxes: bool = False
    value: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """An element of the accessibility tree, in document order.

    ref: its name for actions; "" for text and for what cannot be acted on. depth: in the tree, from 0. states:
    such as "checked", "disabled", "expanded=false", sorted. box: left, top, width, height in CSS pixels, where
    boxes or marks were wanted and it can be seen.
    """

    ref: str
    role: str
    name: str = ""
    value: str = ""
    depth: int = 0
    states: tuple[str, ...] = ()
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Tab:
    """An open tab."""

    url: str
    title: str
    active: bool


@dataclass(frozen=True, slots=True)
class PageView:
    """What is seen; a part that was not wanted is None. error: why there is nothing to see ("" where there is).

    truncated: which parts were cut at a bound of `PageLimits`.
    """

    url: str
    title: str
    tabs: tuple[Tab, ...] = ()
    tree: tuple[Node, ...] | None = None
    dom: str | None = None
    text: str | None = None
    screenshot: bytes | None = None
    marks: tuple[Node, ...] | None = None
    focused: str | None = None
    error: str = ""
    truncated: tuple[str, ...] = ()
    value: JsonValue = None


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A server that listens on a unix socket, such as one in a sandbox's directory that this host sees.

    path: of the socket; one that begins with a NUL is an abstract name (Linux).
    """

    path: str


@dataclass(frozen=True, slots=True)
class Tcp:
    """A server at an address of this host, such as what `Sandbox.forward` gives."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of a directory of this host, read-only; links out of it are not followed."""

    path: str


Site = UnixSocket | Tcp | Folder
"""Where the requests to an origin go."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What a browser keeps for sites: cookies as the browser tells them, local storage by origin."""

    cookies: tuple[Mapping[str, JsonValue], ...] = ()
    local: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Bounds of one episode's page.

    act_s: until an action's own part must be over, and a view be taken: a page that does not answer is then HUNG.
    settle_s: how long is waited for quiet; then BUSY. quiet_s: how long nothing may change for it to be quiet.
    tree_nodes, text_chars, dom_chars: of a view. dialogs, tabs: more are closed at once. download_bytes: of a file.
    """

    act_s: float = 10.0
    settle_s: float = 3.0
    quiet_s: float = 0.03
    tree_nodes: int = 3_000
    text_chars: int = 100_000
    dom_chars: int = 200_000
    dialogs: int = 8
    tabs: int = 8
    download_bytes: int = 10_000_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"PageLimits.{name} is {value}; it must be positive")


@dataclass(frozen=True, slots=True)
class PageSpec:
    """One episode's browser context.

    sites: origin, such as "http://shop.test" (port 80) or "http://wiki.test:8080", -> where its requests go. All
        else is outside, and closed. start: the first address, "" for an empty page. size: of the viewport.
    scripts: run in each document before its own.
    accept_dialogs: how confirmations are answered; a prompt gets its default.
    """

    sites: Mapping[str, Site]
    start: str = ""
    size: tuple[int, int] = (1024, 768)
    scripts: tuple[str, ...] = ()
    storage: Storage | None = None
    accept_dialogs: bool = True
    limits: PageLimits = PageLimits()


@runtime_checkable
class Page(Protocol):
    """One episode's context: tabs that share cookies and storage with nobody else. An async context manager.

    Calls go one after the other. What the page or the model did wrong is in `Acted` and `PageView.error`; after a
    crash or a hang the tab is replaced by an empty one. SandboxDied is raised where the browser itself is gone.
    """

    spec: PageSpec

    async def act(self, action: PageAction) -> Acted:
        """Do it, and wait until network and document are quiet, or their time is up; nothing sleeps."""
        ...

    async def view(self, wanted: Wanted = Wanted()) -> PageView:  # frozen
        """What there is to see now. Raises EnvironmentFailure where `Wanted.value` throws, as `run` does."""
        ...

    async def run(self, expression: str) -> JsonValue:
        """The value of a JavaScript expression in the active tab's document, promises awaited.

        For environments and graders only; no agent's text may get here. Raises EnvironmentFailure where it throws
        or gives no plain data, or where the page hangs or crashes.
        """
        ...

    async def restart(self, storage: Storage | None = None, *, keeps: bool = True) -> None:
        """As a new page of the same spec, but sooner: one tab at its start, and nothing of before.

        storage: instead of `PageSpec.storage`. keeps: whether scripts of the sites may keep anything (storages, the
        window's name), or send or set anything by themselves; where none ever does, False spares the way by an
        empty page. Raises as `Browser.page`.
        """
        ...

    def forget(self) -> None:
        """Refs are given anew, from e1 on, and nothing was copied: another episode begins in the same document."""
        ...

    async def storage(self) -> Storage:
        """Cookies, and the local storage of the sites that are open in a tab."""
        ...

    async def digest(self) -> str:
        """A digest of all that is there, as far as it can be seen from outside.

        Of every tab its address, its normalised accessibility tree, what all its fields hold, where it is scrolled
        to, its local and session storage; and the cookies' names and values.
        Not of what scripts hold in memory, of refs, of the clipboard, nor of what a browser knows besides: history,
        cache, when cookies end. What a kind of browser does not have (scripts, scrolling) does not count.
        """
        ...

    async def close(self) -> None:
        """End the context with all it holds. Idempotent; never raises for what is already gone."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class Browser(Protocol):
    """A browser of this event loop; many episodes have their pages in it. An async context manager.

    draws: whether its pages can be seen: screenshots, boxes, marks.
    """

    name: str
    draws: bool

    def report(self) -> BackendReport:
        """Whether it works here, what it keeps apart, and what would fix what is missing."""
        ...

    async def page(self, spec: PageSpec) -> Page:
        """A new context with one tab, at `PageSpec.start`.

        Raises ValueError for an origin or an address that cannot be, SandboxUnavailable where no browser can be
        started, EnvironmentFailure when the first address cannot be loaded.
        """
        ...

    async def close(self) -> None:
        """Close the pages it gave; the last one who holds the browser ends it. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
