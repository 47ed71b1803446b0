"""What the browser without scripts sends with a form: its entries, and the two ways in which they are written.

After the HTML standard: "constructing the entry list", "multipart form data" and "URL-encoded form data"
(https://html.spec.whatwg.org/multipage/form-control-infrastructure.html). Text is in UTF-8, whatever a page wants.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode

from bs4 import BeautifulSoup, Tag

from envgym_sandboxes.plain_tree import CONTROLS, chosen_of, form_of, is_disabled, kind_of, value_of

__all__ = [
    "Entry",
    "File",
    "controls_of",
    "default_button",
    "encoded",
    "entries_of",
    "missing_of",
    "multipart",
    "reset",
]

File = tuple[str, bytes]
"""A file's name and its content."""
Entry = tuple[str, str | File]


def entries_of(
    form: Tag, soup: BeautifulSoup, button: Tag | None, given: Callable[[Tag], Mapping[str, bytes]]
) -> list[Entry]:
    """The entries of a form when a button of it is pressed, in the order of the document.

    given: the files that a file field was given; where there is none, the entry is a file without name and content.
    """
    entries: list[Entry] = []
    for tag in controls_of(form, soup):
        name, kind = str(tag.get("name", "")), kind_of(tag)
        boxed = kind in ("checkbox", "radio") and not tag.has_attr("checked")
        pressed = kind in ("submit", "button", "reset", "image") and tag is not button
        if is_disabled(tag) or boxed or pressed:
            continue
        if kind == "image":  # where it was pressed: nothing is drawn here
            entries += [(f"{name}.{axis}" if name else axis, "0") for axis in "xy"]
        elif not name:
            continue
        elif kind == "file":
            entries += [(name, file) for file in given(tag).items() or [("", b"")]]
        elif kind == "select":
            entries += [(name, value_of(option)) for option in chosen_of(tag) if not is_disabled(option)]
        else:
            entries.append((name, value_of(tag)))
    return entries


def controls_of(form: Tag, soup: BeautifulSoup) -> list[Tag]:
    """The controls of a form, also those that stand elsewhere and name it."""
    return [tag for tag in soup.find_all(list(CONTROLS)) if form_of(tag, soup) is form]


def missing_of(form: Tag, soup: BeautifulSoup) -> Tag | None:
    """The first control that must have something and has nothing."""
    mine = controls_of(form, soup)
    pressed = {str(tag.get("name", "")) for tag in mine if kind_of(tag) == "radio" and tag.has_attr("checked")}
    for tag in mine:
        kind = kind_of(tag)
        barred = is_disabled(tag) or tag.has_attr("readonly") or kind in ("hidden", "submit", "button", "reset")
        if not tag.has_attr("required") or barred:
            continue
        if kind == "radio":
            there = str(tag.get("name", "")) in pressed
        else:
            there = tag.has_attr("checked") if kind == "checkbox" else bool(value_of(tag))
        if not there:
            return tag
    return None


def default_button(form: Tag, soup: BeautifulSoup) -> Tag | None:
    """The button that Enter in a field presses."""
    return next((tag for tag in controls_of(form, soup) if kind_of(tag) in ("submit", "image")), None)


def reset(form: Tag, soup: BeautifulSoup, fresh: BeautifulSoup) -> list[Tag]:
    """Make the controls of a form what they were. fresh: the same document, just read. Gives its controls."""
    kinds = [*CONTROLS, "option"]
    mine = controls_of(form, soup)
    these = {id(tag) for tag in mine}  # two that look alike are equal
    for tag, was in zip(soup.find_all(kinds), fresh.find_all(kinds), strict=True):
        if id(tag) in these or (tag.name == "option" and id(tag.find_parent("select")) in these):
            tag.attrs = dict(was.attrs)
            if tag.name == "textarea":
                tag.string = was.get_text()
    return mine


def encoded(entries: Sequence[Entry]) -> str:
    """As an address and a form without files write them: of a file its name alone."""
    return urlencode([(_lines(name), _lines(said if isinstance(said, str) else said[0])) for name, said in entries])


def multipart(entries: Sequence[Entry]) -> tuple[str, bytes]:
    """The type of the content, and the content. The boundary is the same for the same entries."""
    boundary = f"----envgym{hashlib.sha256(repr(entries).encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    parts = []
    for name, said in entries:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(_lines(name))}"'
        if isinstance(said, str):
            parts.append(f"{head}\r\n\r\n{_lines(said)}\r\n".encode())
        else:
            head += f'; filename="{_quoted(_lines(said[0]))}"\r\nContent-Type: application/octet-stream\r\n\r\n'
            parts.append(head.encode() + said[1] + b"\r\n")
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _lines(text: str) -> str:
    """Line ends as they are sent; what is half a character is U+FFFD, as every text becomes that leaves a form."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


def _quoted(text: str) -> str:
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
