"""A browser without a browser: HTML and forms over HTTP, as accessibility trees; no JavaScript, no pictures.

For sites that work without scripts it does the same as a real one without the cost of one, for tests and training
at scale; it is not what a person sees. httpx speaks HTTP, Beautiful Soup reads the documents. What it cannot do
(coordinates, tabs, dragging, screenshots) is told as such.
"""

import hashlib
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
from bs4 import BeautifulSoup, Tag
from pydantic import JsonValue

from envgym.backend_report import BackendReport
from envgym.errors import EnvironmentFailure
from envgym.page import (
    Acted,
    Folder,
    Outcome,
    PageSpec,
    PageView,
    Storage,
    Tab,
    Tcp,
    UnixSocket,
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
    Wait,
)
from envgym_sandboxes.plain_tree import control_of, nodes_of, options_of, sent_by, set_value, value_of

__all__ = ["PlainBrowser", "open_plain"]

_HEADERS = {"Accept": "text/html"}


class _Wrong(Exception):
    """What was asked for cannot be done; data for whoever acts."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class PlainPage:
    """See `envgym.page.Page`."""

    def __init__(self, spec: PageSpec) -> None:
        self.spec = spec
        self._client = _client(spec)
        self._url, self._soup = "about:blank", BeautifulSoup("", "html.parser")
        self._history: list[str] = []
        self._at = -1
        self._focused: Tag | None = None
        self._closed = False

    async def begin(self) -> None:
        """Load the start. Raises EnvironmentFailure where that does not work."""
        if self.spec.start:
            acted = await self.act(Goto(self.spec.start))
            if not acted.outcome.ok:
                raise EnvironmentFailure(f"{self.spec.start} cannot be loaded: {acted.outcome}: {acted.message}")

    async def restart(self, storage: Storage | None = None) -> None:
        """As a new page of the same spec. storage: instead of the spec's."""
        await self._client.aclose()
        self._client = _client(self.spec if storage is None else replace(self.spec, storage=storage))
        self._url, self._soup, self._focused = "about:blank", BeautifulSoup("", "html.parser"), None
        self._history, self._at = [], -1
        await self.begin()

    async def act(self, action: PageAction) -> Acted:
        """Do it."""
        try:
            await self._do(action)
        except _Wrong as wrong:
            refused = (str(wrong),) if wrong.outcome is Outcome.REFUSED else ()
            return Acted(wrong.outcome, str(wrong), refused=refused)
        except httpx.HTTPError as error:
            return Acted(Outcome.NOT_LOADED, f"the page could not be loaded: {type(error).__name__}")
        return Acted()

    async def _do(self, action: PageAction) -> None:
        match action:
            case Goto(url):
                await self._go("GET", url)
            case Back() | Forward():
                await self._travel(-1 if isinstance(action, Back) else 1)
            case Click(target):
                await self._click(self._element(target))
            case Fill(target, text):
                self._fill(self._element(target), text)
            case Select(target, options):
                self._select(self._element(target), options)
            case TypeText() | Press():
                await self._key(action)
            case Hover() | Scroll() | Wait():
                pass
            case _:
                what = type(action).__name__
                raise _Wrong(Outcome.INVALID, f"a browser without scripts and tabs has no {what}")

    async def _key(self, action: TypeText | Press) -> None:
        """Text goes into the field that has the focus; Enter sends its form."""
        field = self._focused
        if field is None:
            return
        if isinstance(action, TypeText):
            self._fill(field, value_of(field) + action.text)
        elif action.keys == "Enter" and field.name == "input":
            await self._send(field, None)

    def _element(self, target: Target) -> Tag:
        if target.x is not None:
            raise _Wrong(Outcome.INVALID, "nothing is drawn here: name an element instead of a point")
        found = nodes_of(self._soup)
        if target.ref:
            for node, tag in found:
                if node.ref == target.ref and tag is not None:
                    return tag
            raise _Wrong(Outcome.NO_ELEMENT, f"there is no element {target.ref[:20]!r} on this page")
        wanted = target.name.strip().lower()
        mine = [(node.name.strip().lower(), tag) for node, tag in found
                if tag is not None and (not target.role or node.role == target.role)]  # fmt: skip
        tags = [tag for name, tag in mine if name == wanted] or [tag for name, tag in mine if wanted in name]
        if target.nth >= len(tags):
            what = f"{target.role or 'element'} named {target.name[:80]!r}" if target.name else target.role
            raise _Wrong(Outcome.NO_ELEMENT, f"there is no {what} number {target.nth} on this page")
        return tags[target.nth]

    async def _click(self, tag: Tag) -> None:
        tag = control_of(tag)
        kind = str(tag.get("type", ""))
        if tag.name == "a" and tag.has_attr("href"):
            await self._go("GET", urljoin(self._url, str(tag["href"])))
        elif (tag.name == "button" and kind in ("", "submit")) or (tag.name == "input" and kind == "submit"):
            await self._send(tag, tag)
        elif tag.name == "input" and kind in ("checkbox", "radio"):
            set_value(self._soup, tag, "" if kind == "checkbox" and tag.has_attr("checked") else "on")
        elif tag.name in ("input", "textarea", "select"):
            self._focused = tag

    def _fill(self, tag: Tag, text: str) -> None:
        if tag.name not in ("input", "textarea") or tag.get("type") in ("checkbox", "radio", "submit", "hidden"):
            raise _Wrong(Outcome.INVALID, "that is no field for text")
        if tag.get("type") == "number" and text and not text.lstrip("-").replace(".", "", 1).isdecimal():
            raise _Wrong(Outcome.INVALID, f"{text[:40]!r} is no number")
        self._focused = tag
        set_value(self._soup, tag, text if tag.name == "textarea" else text.replace("\n", " "))

    def _select(self, tag: Tag, options: tuple[str, ...]) -> None:
        if tag.name != "select":
            raise _Wrong(Outcome.INVALID, "that is no selection field")
        known = {
            name: option for option in options_of(tag) for name in (value_of(option), option.get_text().strip())
        }
        if len(options) != 1 or options[0] not in known:
            shown = ", ".join(option.get_text().strip() for option in options_of(tag))
            raise _Wrong(Outcome.INVALID, f"choose one of: {shown[:500]}")
        for option in options_of(tag):
            option.attrs.pop("selected", None)
        known[options[0]]["selected"] = ""

    async def _send(self, tag: Tag, button: Tag | None) -> None:
        form = tag.find_parent("form")
        if form is None:
            return
        method, address = (
            str(form.get("method", "get")).upper(),
            urljoin(self._url, str(form.get("action") or self._url)),
        )
        pairs = sent_by(form, button)
        if method == "POST":
            await self._go("POST", address, pairs)
        else:
            await self._go("GET", urlsplit(address)._replace(query=urlencode(pairs)).geturl())

    async def _travel(self, by: int) -> None:
        if not 0 <= self._at + by < len(self._history):
            raise _Wrong(Outcome.INVALID, "there is no page that way")
        to = self._at + by
        await self._go("GET", self._history[to], at=to)

    async def _go(
        self, method: str, url: str, pairs: list[tuple[str, str]] | None = None, *, at: int | None = None
    ) -> None:
        """Load an address, redirections followed within the sites."""
        body: dict[str, Any] | None = None if pairs is None else _multiple(pairs)
        sent_from = {"Referer": self._url} if self._url.startswith("http") else {}
        for _ in range(10):
            self._allowed(url)
            answer = await self._client.request(method, url, data=body, headers=_HEADERS | sent_from)
            if not answer.is_redirect:
                break
            method, body, url = "GET", None, urljoin(url, answer.headers.get("Location", ""))
        self._url, self._focused = url, None
        self._soup = BeautifulSoup(answer.text, "html.parser")
        if at is None:
            self._history, at = [*self._history[: self._at + 1], url], self._at + 1
        self._at = at

    def _allowed(self, url: str) -> None:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}" not in self.spec.sites:
            raise _Wrong(Outcome.REFUSED, f"{url[:200]} is outside the sites of this task")

    async def view(self, wanted: Wanted = Wanted()) -> PageView:  # noqa: B008  # frozen
        """What there is to see: the tree and the text. Raises EnvironmentFailure where more is wanted."""
        if wanted.screenshot or wanted.marks or wanted.boxes or wanted.dom:
            raise EnvironmentFailure("a plain browser draws nothing and keeps no DOM: ask for the tree or the text")
        if wanted.value:
            await self.run(wanted.value)
        title = self._soup.title.get_text(strip=True) if self._soup.title else ""
        nodes = tuple(
            replace(node, states=(*node.states, "focused")) if tag is not None and tag is self._focused else node
            for node, tag in nodes_of(self._soup)
        )
        limits = self.spec.limits
        focused = next((node.ref for node in nodes if "focused" in node.states), "")
        return PageView(
            self._url,
            title,
            (Tab(self._url, title, True),),
            tree=nodes[: limits.tree_nodes] if wanted.tree else None,
            text=self._soup.get_text(" ", strip=True)[: limits.text_chars] if wanted.text else None,
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
        """Of address, tree and values."""
        nodes = [(node.depth, node.role, node.name, node.value, node.states) for node, _ in nodes_of(self._soup)]
        return hashlib.blake2b(
            repr((self._url, nodes)).encode("utf-8", "surrogatepass"), digest_size=16
        ).hexdigest()

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


def _multiple(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, value in pairs:
        data.setdefault(name, []).append(value)
    return data


def _client(spec: PageSpec) -> httpx.AsyncClient:
    mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
    for origin, site in spec.sites.items():
        match site:
            case UnixSocket(path):
                mounts[origin] = httpx.AsyncHTTPTransport(uds=path, verify=False)
            case Tcp() | Folder():
                raise ValueError(f"PageSpec.sites has {site!r}; a plain browser takes a UnixSocket")
    # nothing here is encrypted: to read the list of certificates would be most of the time that a page takes
    client = httpx.AsyncClient(mounts=mounts, trust_env=False, verify=False, timeout=spec.limits.act_s)
    for cookie in spec.storage.cookies if spec.storage else ():
        name, value, domain = str(cookie["name"]), str(cookie["value"]), str(cookie["domain"])
        client.cookies.set(name, value, domain=domain, path=str(cookie.get("path", "/")))
    return client


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
