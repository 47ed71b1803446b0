"""A page's pruned HTML, as the observations of `miniwob` show it, read into elements for scripted solvers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

__all__ = ["Element", "Shown", "read"]


@dataclass(slots=True)
class Element:
    """One element: ref, tag, attributes, its own and its children's text, what is in it."""

    ref: str
    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    parts: list["str | Element"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it."""
        return " ".join(one if isinstance(one, str) else one.text for one in self.parts).strip()

    @property
    def kind(self) -> str:
        """The type of a field; "text" where none is given."""
        return self.attributes.get("type", "text")

    def __iter__(self) -> Iterator["Element"]:
        yield self
        for child in self.children:
            yield from child


@dataclass(frozen=True, slots=True)
class Shown:
    """What an observation shows: what is asked, and the elements below the question, in order."""

    asked: str
    elements: tuple[Element, ...]

    def all(self, tag: str, kind: str = "") -> list[Element]:
        """The elements with a tag, and of a type or a class, where one is given."""
        return [
            one
            for one in self.elements
            if one.tag == tag
            and (not kind or one.attributes.get("type") == kind or kind in one.attributes.get("class", "").split())
        ]

    def named(self, text: str, tag: str = "") -> Element:
        """The innermost element with exactly this text. Raises LookupError."""
        found = [one for one in self.elements if one.text == text and (not tag or one.tag == tag)]
        if not found:
            raise LookupError(f"nothing says {text!r}")
        return next((one for one in found if not any(child.text == text for child in one.children)), found[0])

    def by_id(self, name: str) -> Element:
        """The element with this id. Raises LookupError."""
        for one in self.elements:
            if one.attributes.get("id") == name:
                return one
        raise LookupError(f"there is no #{name}")

    def fields(self) -> list[Element]:
        """Fields for text."""
        own = ("text", "password", "date", "time", "number")
        return [one for one in self.elements if one.tag == "textarea" or (one.tag == "input" and one.kind in own)]

    def submit(self) -> Element:
        """The button that ends a form. Raises LookupError."""
        buttons = self.all("button")
        for name in ("Submit", "Login", "OK", "Search"):
            for one in buttons:
                if one.text == name:
                    return one
        if not buttons:
            raise LookupError("there is no button")
        return buttons[-1]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.top = Element("", "", {})
        self._open = [self.top]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        made = Element(attributes.pop("ref", ""), tag, attributes)
        self._open[-1].children.append(made)
        self._open[-1].parts.append(made)
        self._open.append(made)

    def handle_endtag(self, tag: str) -> None:
        if len(self._open) > 1 and self._open[-1].tag == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].parts.append(data.strip())


def read(observation: str) -> Shown:
    """An observation's last message. The question itself is left out of the elements."""
    asked, _, html = observation.partition("\n")
    reader = _Reader()
    reader.feed(html)
    question = next((one for one in reader.top if one.attributes.get("id") == "query"), None)
    left_out = set() if question is None else {id(one) for one in question}
    return Shown(asked, tuple(one for one in reader.top if one.tag and id(one) not in left_out))
