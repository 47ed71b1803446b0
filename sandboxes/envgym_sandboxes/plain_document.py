"""HTML as a document of bounded depth and size, with the end tags that people leave out.

After the HTML standard's optional tags (https://html.spec.whatwg.org/multipage/syntax.html#optional-tags), which
Beautiful Soup's own parser does not know: `<option>1<option>2` are neighbours and not one within the other.
"""

from typing import Any

from bs4 import BeautifulSoup, Tag

__all__ = ["TooMuch", "document_of"]

MOST_DEEP = 512
"""Elements within each other; Chromium's own parser goes no deeper, either."""
MOST_ELEMENTS = 50_000

_BLOCKS = [
    "address", "article", "aside", "blockquote", "details", "div", "dl", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6",
    "header", "hr", "main", "menu", "nav", "ol", "p", "pre", "section", "table", "ul",
]  # fmt: skip
_ENDS: dict[str, tuple[set[str], set[str]]] = {
    "option": ({"option"}, {"select", "datalist"}),
    "optgroup": ({"option", "optgroup"}, {"select"}),
    "li": ({"li"}, {"ul", "ol", "menu"}),
    "dt": ({"dt", "dd"}, {"dl"}),
    "dd": ({"dt", "dd"}, {"dl"}),
    "td": ({"td", "th"}, {"tr", "table"}),
    "th": ({"td", "th"}, {"tr", "table"}),
    "tr": ({"tr"}, {"table"}),
    **{part: ({"thead", "tbody", "tfoot"}, {"table"}) for part in ("thead", "tbody", "tfoot")},
    **{block: ({"p"}, {"button", "td", "th", "table", "caption", "template"}) for block in _BLOCKS},
}  # fmt: skip
"""By a beginning element: what ends then if it is open, and what it must be within for that."""


class TooMuch(Exception):
    """A document is deeper or larger than is read; the message says which."""


class _Document(BeautifulSoup):
    count = 0

    def handle_starttag(self, name: str, *more: Any, **given: Any) -> Tag | None:
        """As Beautiful Soup, within the bounds. Raises TooMuch."""
        ends, within = _ENDS.get(name, (set(), set()))
        for tag in reversed(self.tagStack) if ends else ():
            if tag.name in within:
                break
            if tag.name in ends:
                self.handle_endtag(tag.name)
                if name != "optgroup":  # which ends an option and the group that it is in
                    break
        self.count += 1
        if len(self.tagStack) > MOST_DEEP:
            raise TooMuch(f"its elements are nested deeper than {MOST_DEEP}")
        if self.count > MOST_ELEMENTS:
            raise TooMuch(f"it has more than {MOST_ELEMENTS:,} elements")
        return super().handle_starttag(name, *more, **given)


def document_of(html: str) -> BeautifulSoup:
    """The document that a text is. Raises TooMuch."""
    return _Document(html, "html.parser")
