"""A browser without a browser: HTML and forms over HTTP, as accessibility trees; no JavaScript, no pictures.

For sites that work without scripts it sends what a real one sends without the cost of one, for tests and training
at scale; it is not what a person sees. httpx speaks HTTP, Beautiful Soup reads the documents. What it cannot do
(coordinates, tabs, dragging, screenshots) is told as such. Not there, and not told: style sheets (of styles it
knows `display: none` and `visibility: hidden` in an element's own), frames, `<base>`, `<dialog>`, `<meta refresh>`,
charsets that a document names inside itself, fields' rules but `required` and numbers (pattern, min, max, length,
e-mail), cookies that are not ASCII. A disabled control and a form that lacks something are INVALID here, with the
reason; in a real one such a click does nothing.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from bs4 import BeautifulSoup, Tag
from pydantic import JsonValue

from envgym.backend_report import BackendReport
from envgym.errors import EnvironmentFailure
from envgym.page import (
    Acted,
    Node,
    Outcome,
    PageSpec,
    PageView,
    Storage,
    Tab,
    Wanted,
)
from envgym.page_actions import (
    Back,
    Click,
    Fill,
    Forward,
    Goto,
    Hover,
    PageAction,
    Press,
    Scroll,
    Select,
    Target,
    TypeText,
    Upload,
    Wait,
)
from envgym_sandboxes.plain_document import TooMuch, document_of
from envgym_sandboxes.plain_forms import (
    controls_of,
    default_button,
    encoded,
    entries_of,
    missing_of,
    multipart,
    reset,
)
from envgym_sandboxes.plain_http import Asked, Wrong, client_of, joined, loaded, with_query
from envgym_sandboxes.plain_tree import (
    CONTROLS,
    control_of,
    form_of,
    is_disabled,
    kind_of,
    labels_of,
    name_of,
    nodes_of,
    options_of,
    set_value,
    text_of,
    value_of,
)

__all__ = ["PlainBrowser", "open_plain"]

_NO_TEXT = ("checkbox", "radio", "submit", "reset", "button", "image", "hidden", "file")
_BLOCKS_NOT = (*_NO_TEXT, "textarea", "select")
_URLENCODED = "application/x-www-form-urlencoded"
_LARGE = 100_000
"""Characters of a document that is read in a thread: others of this event loop are not held up by it."""

T = TypeVar("T")


class PlainPage:
    """See `envgym.page.Page`."""

    def __init__(self, spec: PageSpec) -> None:
        self.spec = spec
        self._client = client_of(spec)
        self._url, self._soup = "about:blank", BeautifulSoup("", "html.parser")
        self._html = ""  # that the document was read from
        self._history: list[str] = []
        self._at = -1
        self._focused: Tag | None = None
        self._given: dict[int, Mapping[str, bytes]] = {}  # by the id of a file field of this document
        self._closed = False

    async def begin(self) -> None:
        """Load the start. Raises EnvironmentFailure where that does not work."""
        if self.spec.start:
            acted = await self.act(Goto(self.spec.start))
            if not acted.outcome.ok:
                raise EnvironmentFailure(f"{self.spec.start} cannot be loaded: {acted.outcome}: {acted.message}")

    async def restart(self, storage: Storage | None = None, *, keeps: bool = True) -> None:
        """As a new page of the same spec. storage: instead of the spec's. keeps: no scripts are run that would."""
        await self._client.aclose()
        self._client = client_of(self.spec if storage is None else replace(self.spec, storage=storage))
        self._url, self._soup, self._focused = "about:blank", BeautifulSoup("", "html.parser"), None
        self._history, self._at = [], -1
        self._given.clear()
        await self.begin()

    async def act(self, action: PageAction) -> Acted:
        """Do it."""
        try:
            await self._do(action)
        except Wrong as wrong:
            refused = (str(wrong),) if wrong.outcome is Outcome.REFUSED else ()
            return Acted(wrong.outcome, str(wrong), refused=refused)
        return Acted()

    async def _do(self, action: PageAction) -> None:
        match action:
            case Goto(url):
                await self._follow(url)
            case Back() | Forward():
                await self._travel(-1 if isinstance(action, Back) else 1)
            case Click(target):
                await self._click(await self._element(target))
            case Fill(target, text):
                self._fill(await self._element(target), text)
            case Select(target, options):
                self._select(await self._element(target), options)
            case Upload(target, files):
                self._upload(await self._element(target), files)
            case TypeText() | Press():
                await self._key(action)
            case Hover() | Scroll() | Wait():
                pass
            case _:
                what = type(action).__name__
                raise Wrong(Outcome.INVALID, f"a browser without scripts and tabs has no {what}")

    async def _key(self, action: TypeText | Press) -> None:
        """Text goes into the field that has the focus; Enter sends its form."""
        field = self._focused
        if field is None:
            return
        if isinstance(action, TypeText):
            self._fill(field, value_of(field) + action.text)
        elif action.keys == "Enter" and field.name == "input":
            await self._enter(field)

    async def _enter(self, field: Tag) -> None:
        """Press the form's first button; a form without one is sent if it has one field for text."""
        if (form := form_of(field, self._soup)) is None:
            return
        if (button := default_button(form, self._soup)) is not None:
            if not is_disabled(button):
                await self._send(form, button)
        elif sum(kind_of(one) not in _BLOCKS_NOT for one in controls_of(form, self._soup)) == 1:
            await self._send(form, None)

    async def _aside(self, work: Callable[[], T], html: str) -> T:
        """Work on a document: at once, or, where it is large, in a thread."""
        return work() if len(html) < _LARGE else await asyncio.to_thread(work)

    async def _nodes(self) -> list[tuple[Node, Tag | None]]:
        return await self._aside(lambda: nodes_of(self._soup), self._html)

    async def _element(self, target: Target) -> Tag:
        if target.x is not None:
            raise Wrong(Outcome.INVALID, "nothing is drawn here: name an element instead of a point")
        found = await self._nodes()
        if target.ref:
            for node, tag in found:
                if node.ref == target.ref and tag is not None:
                    return tag
            raise Wrong(Outcome.NO_ELEMENT, f"there is no element {target.ref[:20]!r} on this page")
        wanted = target.name.strip().lower()
        mine = [(node.name.strip().lower(), tag) for node, tag in found
                if tag is not None and (not target.role or node.role == target.role)]  # fmt: skip
        tags = [tag for name, tag in mine if name == wanted] or [tag for name, tag in mine if wanted in name]
        if target.nth >= len(tags):
            what = f"{target.role or 'element'} named {target.name[:80]!r}" if target.name else target.role
            raise Wrong(Outcome.NO_ELEMENT, f"there is no {what} number {target.nth} on this page")
        return tags[target.nth]

    async def _click(self, tag: Tag) -> None:
        tag = control_of(tag, self._soup)
        kind, form = kind_of(tag), form_of(tag, self._soup)
        if is_disabled(tag):
            raise Wrong(Outcome.INVALID, "it is disabled")
        if tag.name == "a" and tag.has_attr("href"):
            await self._follow(joined(self._url, str(tag["href"])))
        elif tag.name not in CONTROLS:
            return
        elif kind in ("submit", "image"):
            if form is not None:
                await self._send(form, tag)
        elif kind == "reset":
            for control in reset(form, self._soup, document_of(self._html)) if form is not None else ():
                self._given.pop(id(control), None)
        elif kind in ("checkbox", "radio"):
            set_value(self._soup, tag, "" if kind == "checkbox" and tag.has_attr("checked") else "on")
        elif kind != "button":
            self._focused = tag

    def _fill(self, tag: Tag, text: str) -> None:
        kind = kind_of(tag)
        if tag.name not in ("input", "textarea") or kind in _NO_TEXT:
            raise Wrong(Outcome.INVALID, "that is no field for text")
        if is_disabled(tag) or tag.has_attr("readonly"):
            raise Wrong(Outcome.INVALID, "it is disabled or only to be read")
        if kind == "number" and text and not text.lstrip("-").replace(".", "", 1).isdecimal():
            raise Wrong(Outcome.INVALID, f"{text[:40]!r} is no number")
        self._focused = tag
        set_value(self._soup, tag, text if tag.name == "textarea" else text.replace("\n", " "))

    def _upload(self, tag: Tag, files: Mapping[str, bytes]) -> None:
        if tag.name != "input" or tag.get("type") != "file":
            raise Wrong(Outcome.INVALID, "that is no field for files")
        if len(files) > 1 and not tag.has_attr("multiple"):
            raise Wrong(Outcome.INVALID, f"it takes one file, not {len(files)}")
        self._given[id(tag)] = files
        tag["value"] = ", ".join(files)

    def _select(self, tag: Tag, options: tuple[str, ...]) -> None:
        if tag.name != "select":
            raise Wrong(Outcome.INVALID, "that is no selection field")
        if is_disabled(tag):
            raise Wrong(Outcome.INVALID, "it is disabled")
        several = tag.has_attr("multiple")
        if len(options) != 1 and not several:
            raise Wrong(Outcome.INVALID, f"it takes one option, not {len(options)}")
        there = [(" ".join(one.get_text().split()), one) for one in options_of(tag) if not is_disabled(one)]
        known = {value_of(option): option for _, option in there} | dict(there)
        if any(one.strip() not in known for one in options):
            raise Wrong(Outcome.INVALID, f"choose one of: {', '.join(name for name, _ in there)[:500]}")
        for option in options_of(tag):
            option.attrs.pop("selected", None)
        for one in options:
            known[one.strip()]["selected"] = ""

    async def _send(self, form: Tag, button: Tag | None) -> None:
        def told(name: str) -> str:
            own = button.get(f"form{name}") if button is not None else None
            return str(own if own is not None else form.get(name, ""))

        free = form.has_attr("novalidate") or (button is not None and button.has_attr("formnovalidate"))
        if not free and (missing := missing_of(form, self._soup)) is not None:
            what = name_of(missing, labels_of(self._soup)) or str(missing.get("name", ""))
            raise Wrong(Outcome.INVALID, f"the form is not sent: {what[:80]!r} must have something")
        address = joined(self._url, told("action") or self._url)
        entries = entries_of(form, self._soup, button, lambda field: self._given.get(id(field), {}))
        if told("method").lower() != "post":
            await self._go(Asked(str(with_query(address, encoded(entries)))))
        elif told("enctype").lower() == "multipart/form-data":
            await self._go(Asked(address, "POST", multipart(entries)))
        else:
            await self._go(Asked(address, "POST", (_URLENCODED, encoded(entries).encode())))

    async def _follow(self, url: str) -> None:
        """Go to an address; a place in this document is only named, and nothing is loaded."""
        if "#" in url and url.partition("#")[0] == self._url.partition("#")[0]:
            self._arrive(url, self._at if url == self._url else None)
        else:
            await self._go(Asked(url))

    async def _travel(self, by: int) -> None:
        if not 0 <= self._at + by < len(self._history):
            raise Wrong(Outcome.INVALID, "there is no page that way")
        to = self._at + by
        url = self._history[to]
        if url != self._url and url.partition("#")[0] == self._url.partition("#")[0]:
            self._arrive(url, to)
        else:
            await self._go(Asked(url), at=to)

    async def _go(self, asked: Asked, *, at: int | None = None) -> None:
        """Load a document. at: which one of the history it is; None: one more."""
        referer = self._url if self._url.startswith("http") else ""
        url, text = await loaded(self._client, self.spec, asked, referer)
        try:
            async with asyncio.timeout(self.spec.limits.act_s):
                soup = await self._aside(lambda: document_of(text), text)
        except TooMuch as error:
            raise Wrong(Outcome.NOT_LOADED, f"the page could not be loaded: {error}") from error
        except TimeoutError as error:
            told = f"the page could not be loaded: it took longer than {self.spec.limits.act_s:g} s to be read"
            raise Wrong(Outcome.NOT_LOADED, told) from error
        self._soup, self._html, self._focused = soup, text, None
        self._given.clear()
        self._arrive(url, at)

    def _arrive(self, url: str, at: int | None) -> None:
        if at is None:
            self._history, at = [*self._history[: self._at + 1], url], self._at + 1
        self._url, self._at = url, at

    async def view(self, wanted: Wanted = Wanted()) -> PageView:  # noqa: B008  # frozen
        """What there is to see: the tree and the text. Raises EnvironmentFailure where more is wanted."""
        if wanted.screenshot or wanted.marks or wanted.boxes or wanted.dom:
            raise EnvironmentFailure("a plain browser draws nothing and keeps no DOM: ask for the tree or the text")
        if wanted.value:
            await self.run(wanted.value)
        title = self._soup.title.get_text(strip=True) if self._soup.title else ""
        nodes = tuple(
            replace(node, states=(*node.states, "focused")) if tag is not None and tag is self._focused else node
            for node, tag in await self._nodes()
        )
        limits = self.spec.limits
        focused = next((node.ref for node in nodes if "focused" in node.states), "")
        return PageView(
            self._url,
            title,
            (Tab(self._url, title, True),),
            tree=nodes[: limits.tree_nodes] if wanted.tree else None,
            text=text_of(self._soup)[: limits.text_chars] if wanted.text else None,
            focused=focused if wanted.focused else None,
            truncated=("tree",) if len(nodes) > limits.tree_nodes else (),
        )

    async def run(self, expression: str) -> JsonValue:
        """It runs no scripts. Raises EnvironmentFailure."""
        raise EnvironmentFailure("a plain browser runs no scripts")

    async def storage(self) -> Storage:
        """Its cookies."""
        jar = self._client.cookies.jar
        return Storage(
            tuple({"name": one.name, "value": one.value, "domain": one.domain, "path": one.path} for one in jar)
        )

    async def digest(self) -> str:
        """Of address, tree, values, files that were given, which field has the focus, and cookies."""
        nodes = [
            (node.depth, node.role, node.name, node.value, node.states, tag is not None and tag is self._focused,
             sorted(self._given.get(id(tag), {}).items()))
            for node, tag in await self._nodes()
        ]  # fmt: skip
        cookies = sorted((one.domain, one.path, one.name, str(one.value)) for one in self._client.cookies.jar)
        there = repr((self._url, nodes, cookies)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(there, digest_size=16).hexdigest()

    async def close(self) -> None:
        """Close its connections. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


class PlainBrowser:
    """See `envgym.page.Browser`. It holds nothing but its pages."""

    name = "plain"
    draws = False

    def __init__(self) -> None:
        self._pages: list[PlainPage] = []

    def report(self) -> BackendReport:
        """It works wherever its libraries are."""
        return BackendReport(backend="plain", works=True)

    async def page(self, spec: PageSpec) -> PlainPage:
        """A page with cookies of its own."""
        page = PlainPage(spec)
        await page.begin()
        self._pages = [one for one in self._pages if not one._closed] + [page]
        return page

    async def close(self) -> None:
        """Close its pages. Idempotent."""
        for page in self._pages:
            await page.close()
        self._pages.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def open_plain() -> PlainBrowser:
    """A browser of HTML and forms alone."""
    return PlainBrowser()
