"""HTML becomes a picture: one document, served to one page of a browser, in which nothing runs.

The document comes from a server of its own with a policy that refuses scripts, frames and every address, so that
what a model writes is drawn and does nothing. Pictures are those of one browser: equal documents give equal ones.
"""

from typing import Any

from pydantic import JsonValue
from werkzeug.wrappers import Response

from envgym.browsing import open_browser
from envgym.errors import EnvironmentFailure
from envgym.page import Browser, Page, PageLimits, PageSpec, UnixSocket, Wanted
from envgym.page_actions import Goto
from envgym.page_text import acted_text
from envgym.tools import tool_spec
from envgym_environments.render.canvas import SIZE
from envgym_environments.web.sites.wire import Server

__all__ = ["HtmlCanvas"]

_ORIGIN = "http://drawn.test"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"

_PARTS = """(() => {
  const hex = c => { const n = (c.match(/[\\d.]+/g) || []).map(Number);
    if (n.length < 3 || n[3] === 0) return '';
    return '#' + n.slice(0, 3).map(v => v.toString(16).padStart(2, '0')).join(''); };
  const lines = [];
  for (const e of document.body.querySelectorAll('*')) {
    const s = getComputedStyle(e), r = e.getBoundingClientRect();
    if (!r.width || !r.height || r.bottom < 0 || r.right < 0) continue;
    if (r.top > innerHeight || r.left > innerWidth) continue;
    const own = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join(' ').trim();
    const drawn = e instanceof SVGElement && e.tagName !== 'svg';
    const ground = drawn ? (own ? '' : hex(e.tagName === 'line' ? s.stroke : s.fill)) : hex(s.backgroundColor);
    const edge = !drawn && parseFloat(s.borderTopWidth) ? hex(s.borderTopColor) : '';
    if (!own && !ground && !edge) continue;
    lines.push([e.tagName.toLowerCase(), [r.left, r.top, r.width, r.height].map(Math.round).join(' '),
      ground, edge && 'edge ' + edge, own && JSON.stringify(own.slice(0, 200)),
      own && Math.round(parseFloat(s.fontSize)) + 'px ' + hex(drawn ? s.fill : s.color)].filter(Boolean).join(' '));
  }
  return ['body ' + hex(getComputedStyle(document.body).backgroundColor)].concat(lines.slice(0, 200)).join('\\n');
})()"""
"""What is drawn, a part on a line: tag, left, top, width, height, ground, edge, text with its size and colour."""


def render(html: str) -> None:
    """Draw an HTML document, and see how alike it is. Scripts do not run and nothing can be loaded.

    Args:
        html: the whole document.
    """


class HtmlCanvas:
    """A `Canvas` of a page that shows what it is given; the first picture opens it."""

    tool = tool_spec(render)

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._html = b""
        self._server = Server(self._respond, "drawn.test")
        self._browser: Browser | None = None
        self._page: Page | None = None

    async def _respond(self, environ: dict[str, Any]) -> Response:
        found = environ["PATH_INFO"] == "/"
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
        return Response(
            self._html if found else b"", status=200 if found else 404, headers=headers, mimetype="text/html"
        )

    async def picture(self, source: str) -> tuple[bytes | None, str]:
        """See `Canvas`. There is none of a document that hangs or kills its page."""
        page = await self._opened()
        self._html = source.encode("utf-8", "replace")
        acted = await page.act(Goto(f"{_ORIGIN}/"))
        view = await page.view(Wanted(tree=False, screenshot=True))
        if view.screenshot is None or not acted.outcome.ok:
            return None, view.error or acted_text(acted) or "it was not drawn"
        return view.screenshot, ""

    async def parts(self) -> str:
        """See `Canvas`."""
        page = await self._opened()
        found: JsonValue = await page.run(_PARTS)
        if not isinstance(found, str):
            raise EnvironmentFailure(f"the browser told no parts of the document but {found!r}")
        return found

    async def _opened(self) -> Page:
        if self._page is None:
            await self._server.open()
            self._browser = self._browser or open_browser(self._kind)
            limits = PageLimits(act_s=15.0, settle_s=5.0)
            spec = PageSpec({_ORIGIN: UnixSocket(self._server.path)}, size=SIZE, limits=limits)
            self._page = await self._browser.page(spec)
        return self._page

    async def close(self) -> None:
        """End page and server, give the browser back."""
        browser, page = self._browser, self._page
        self._browser = self._page = None
        for one in (page, self._server, browser):
            if one is not None:
                await one.close()
