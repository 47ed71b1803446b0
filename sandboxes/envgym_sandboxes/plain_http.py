"""How the browser without scripts loads a document: within its sites, in bounded time and size.

Redirections are followed as Fetch has them (https://fetch.spec.whatwg.org/#http-redirect-fetch): 307 and 308 keep
method and content, 303 and a 301 or 302 after POST become GET.
"""

import asyncio
from dataclasses import dataclass
from http.cookiejar import Cookie, DefaultCookiePolicy
from urllib.parse import urljoin
from urllib.request import Request

import httpx

from envgym.page import Folder, Outcome, PageSpec, Tcp, UnixSocket

__all__ = ["Asked", "Wrong", "client_of", "joined", "loaded", "with_query"]

MOST_BYTES = 2_000_000
"""Of one document, as it is after decompression."""
MOST_REDIRECTIONS = 20


class Wrong(Exception):
    """What was asked for cannot be done; data for whoever acts."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. content: what is sent, after its type."""

    url: str
    method: str = "GET"
    content: tuple[str, bytes] | None = None


class _Nowhere(httpx.AsyncBaseTransport):
    """Where the requests to all that is no site of the task go."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("it is outside the sites of this task", request=request)


class _Ascii(DefaultCookiePolicy):
    """A cookie that no header line of httpx can hold is not taken."""

    def set_ok(self, cookie: Cookie, request: Request) -> bool:
        """As the standard policy, of ASCII alone."""
        return f"{cookie.name}{cookie.value}{cookie.path}".isascii() and super().set_ok(cookie, request)


def client_of(spec: PageSpec) -> httpx.AsyncClient:
    """A client that reaches the sites alone, with the cookies given. ValueError: a site of another kind."""
    mounts: dict[str, httpx.AsyncBaseTransport | None] = {}
    for origin, site in spec.sites.items():
        match site:
            case UnixSocket(path):
                mounts[origin] = httpx.AsyncHTTPTransport(uds=path, verify=False)
            case Tcp() | Folder():
                raise ValueError(f"PageSpec.sites has {site!r}; a plain browser takes a UnixSocket")
    # nothing here is encrypted: to read the list of certificates would be most of the time that a page takes
    client = httpx.AsyncClient(
        mounts=mounts, transport=_Nowhere(), trust_env=False, verify=False, timeout=spec.limits.act_s,
    )  # fmt: skip
    client.cookies.jar.set_policy(_Ascii())
    for cookie in spec.storage.cookies if spec.storage else ():
        name, value, domain = str(cookie["name"]), str(cookie["value"]), str(cookie["domain"])
        client.cookies.set(name, value, domain=domain, path=str(cookie.get("path", "/")))
    return client


def address_of(text: str) -> httpx.URL:
    """An address as it is asked for. Raises Wrong for what is none."""
    try:
        return httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise Wrong(Outcome.INVALID, f"{text[:100]!r} is no address: {str(error)[:200]}") from error


def joined(base: str, to: str) -> str:
    """An address that a page tells, from its own. Raises Wrong for what is none."""
    try:
        return urljoin(base, to)
    except ValueError as error:
        raise Wrong(Outcome.INVALID, f"{to[:100]!r} is no address: {str(error)[:200]}") from error


def with_query(url: str, query: str) -> httpx.URL:
    """An address with another query, and without a place in the document. Raises Wrong for what is none."""
    return address_of(str(address_of(url).copy_with(query=query.encode(), fragment=None)))


async def loaded(client: httpx.AsyncClient, spec: PageSpec, asked: Asked, referer: str) -> tuple[str, str]:
    """The address and the text of a document, all redirections and all of its bytes within `PageLimits.act_s`.

    Raises Wrong: INVALID (no address), REFUSED (outside the sites), NOT_LOADED (all else).
    """
    try:
        async with asyncio.timeout(spec.limits.act_s):
            return await _followed(client, spec, asked, referer)
    except TimeoutError as error:
        said = f"the page could not be loaded: it took longer than {spec.limits.act_s:g} s"
        raise Wrong(Outcome.NOT_LOADED, said) from error
    except httpx.HTTPError as error:
        raise Wrong(Outcome.NOT_LOADED, f"the page could not be loaded: {type(error).__name__}") from error


async def _followed(client: httpx.AsyncClient, spec: PageSpec, asked: Asked, referer: str) -> tuple[str, str]:
    sites = {_origin(httpx.URL(origin)) for origin in spec.sites}
    headers = {"Accept": "text/html"} | ({"Referer": referer.partition("#")[0]} if referer else {})
    for _ in range(MOST_REDIRECTIONS + 1):
        url = address_of(asked.url)
        if _origin(url) not in sites:
            raise Wrong(Outcome.REFUSED, f"{asked.url[:200]} is outside the sites of this task")
        kind, content = asked.content or ("", None)
        sent = client.build_request(
            asked.method, url, content=content, headers=headers | ({"Content-Type": kind} if kind else {})
        )
        answer = await client.send(sent, stream=True)
        try:
            if not answer.has_redirect_location:
                return str(answer.url), await _text(answer)
        finally:
            await answer.aclose()
        to = joined(str(url), answer.headers["Location"])
        keeps = answer.status_code in (307, 308) or (asked.method == "GET" and answer.status_code != 303)
        asked = Asked(to, asked.method, asked.content) if keeps else Asked(to)
    said = f"the page could not be loaded: it redirected more than {MOST_REDIRECTIONS} times"
    raise Wrong(Outcome.NOT_LOADED, said)


def _origin(url: httpx.URL) -> tuple[str, bytes]:
    return url.scheme, url.netloc  # in small letters, without a port that is the scheme's own


async def _text(answer: httpx.Response) -> str:
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            said = f"the page could not be loaded: it has more than {MOST_BYTES:,} bytes"
            raise Wrong(Outcome.NOT_LOADED, said)
    try:
        return bytes(body).decode(answer.charset_encoding or "utf-8", "replace")
    except (LookupError, ValueError):  # a charset that is not there, or no charset, such as "hex"
        return bytes(body).decode("utf-8", "replace")
