"""HTML read as an accessibility tree, and its forms: what has a role and a name, what a form sends.

Names are those of the parts of the accessible-name computation that plain pages use
(https://www.w3.org/TR/accname-1.2/): aria-label, the label element, content, placeholder and title.
"""

import re
from collections.abc import Iterator, Mapping

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from envgym.page import Node

__all__ = [
    "CONTROLS", "chosen_of", "control_of", "form_of", "is_disabled", "is_hidden", "kind_of", "labels_of", "name_of",
    "nodes_of", "options_of", "set_value", "text_of", "value_of",
]  # fmt: skip

_HIDDEN = {"head", "title", "script", "style", "template", "noscript"}
_UNSEEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\s*(?:!|;|$)", re.IGNORECASE)
_ROLES = {
    "a": "link", "button": "button", "textarea": "textbox", "select": "combobox", "img": "image",
    "nav": "navigation", "main": "main", "header": "banner", "footer": "contentinfo", "table": "table",
    "tr": "row", "td": "cell", "th": "columnheader", "ul": "list", "ol": "list", "li": "listitem",
    "article": "article", "p": "paragraph", "h1": "heading", "h2": "heading", "h3": "heading",
    "h4": "heading",
}  # fmt: skip
_INPUTS = {
    "checkbox": "checkbox", "radio": "radio", "search": "searchbox", "number": "spinbutton", "submit": "button",
    "button": "button", "file": "button", "reset": "button", "image": "button",
}  # fmt: skip
MOST_OF_A_NAME = 2_000
"""Characters: elements within each other would else have all of a page as their name, each."""
_SILENT = frozenset({"select", "textarea", "script", "style"})
_BY_CONTENT = {"link", "button", "heading", "cell", "columnheader"}
CONTROLS = ("input", "textarea", "select", "button")


def kind_of(tag: Tag) -> str:
    """The type of a control, in small letters: "submit" of a button that says none, "text" of such a field."""
    kind = str(tag.get("type", "")).strip().lower()
    if tag.name == "button":
        return kind if kind in ("reset", "button") else "submit"
    return (kind or "text") if tag.name == "input" else tag.name


def is_hidden(tag: Tag) -> bool:
    """Whether an element by itself says that it is not to be seen: attribute, type, inline style."""
    hidden = tag.name in _HIDDEN or tag.has_attr("hidden") or (tag.name == "input" and kind_of(tag) == "hidden")
    return hidden or bool(_UNSEEN.search(str(tag.get("style", ""))))


def is_disabled(tag: Tag) -> bool:
    """Whether a control or option takes nothing: it says so, or its fieldset does (but for the legend)."""
    if tag.name not in ("option", "optgroup", *CONTROLS):
        return False
    if tag.has_attr("disabled"):
        return True
    below = tag
    for around in tag.parents:
        if around.name in ("fieldset", "optgroup") and around.has_attr("disabled"):
            return below.name != "legend"
        below = around
    return False


def form_of(tag: Tag, soup: BeautifulSoup) -> Tag | None:
    """The form that a control belongs to: the one that it names, or the one around it."""
    if tag.has_attr("form"):
        return soup.find("form", id=str(tag["form"]))
    return tag.find_parent("form")


def _seen(root: Tag, without: frozenset[str] = frozenset()) -> Iterator[str]:
    """The texts of what is within an element and not hidden."""
    left = list(reversed(root.contents))
    while left:
        child = left.pop()
        if isinstance(child, Tag):
            if not is_hidden(child) and child.name not in without:
                left += reversed(child.contents)
        elif type(child) is NavigableString:
            yield str(child)


def text_of(soup: BeautifulSoup) -> str:
    """What a reader sees of a document."""
    return " ".join(text for part in _seen(soup.body or soup) if (text := part.strip()))


def nodes_of(soup: BeautifulSoup) -> list[tuple[Node, Tag | None]]:
    """The tree with the elements that its nodes stand for, in document order; refs are numbered in it."""
    found: list[tuple[Node, Tag | None]] = []
    root, labels = soup.body or soup, labels_of(soup)
    left = [(child, 0, "") for child in reversed(root.contents)]  # no recursion: how deep a page is, it says itself
    while left:
        child, depth, above = left.pop()
        if isinstance(child, Tag):
            if is_hidden(child) or child.name == "option":
                continue
            role = str(child.get("role", "")) or role_of(child)
            name = name_of(child, labels) if role else ""
            if role and (name or role not in ("paragraph", "cell", "list", "listitem", "row", "table")):
                node = Node(f"e{len(found) + 1}", role, name, _shown(child), depth, _states(child))
                found.append((node, child))
                if child.name in ("select", "textarea"):
                    continue
                depth, above = depth + 1, name or above
            left += [(inner, depth, above) for inner in reversed(child.contents)]
        elif type(child) is NavigableString and (text := " ".join(child.split())) and text not in above:
            found.append((Node("", "text", text, depth=depth), None))
    return found


def role_of(tag: Tag) -> str:
    """The role of an element without a role of its own; "" where it has none."""
    if tag.name == "input":
        return _INPUTS.get(kind_of(tag), "textbox")
    if tag.name == "select" and tag.has_attr("multiple"):
        return "listbox"
    return "" if tag.name == "a" and not tag.has_attr("href") else _ROLES.get(tag.name, "")


def labels_of(soup: BeautifulSoup) -> dict[str, Tag]:
    """The labels that name a control, by its id; of several the first."""
    return {str(tag["for"]): tag for tag in reversed(soup.find_all("label", attrs={"for": True}))}


def name_of(tag: Tag, labels: Mapping[str, Tag]) -> str:
    """The accessible name of an element, cut at `MOST_OF_A_NAME`. labels: as `labels_of` gives them."""
    return _name(tag, labels)[:MOST_OF_A_NAME]


def _name(tag: Tag, labels: Mapping[str, Tag]) -> str:
    if label := str(tag.get("aria-label", "")).strip():
        return label
    if tag.name in ("input", "textarea", "select") and kind_of(tag) not in ("submit", "button", "reset", "image"):
        around = tag.find_parent("label")
        if around is None and tag.has_attr("id"):
            around = labels.get(str(tag["id"]))
        if isinstance(around, Tag) and (text := _text_without_controls(around)):
            return text
        return str(tag.get("placeholder") or tag.get("title") or "").strip()
    if tag.name == "input":
        usual = {"submit": "Submit", "reset": "Reset", "image": "Submit"}.get(kind_of(tag), "")
        return str(tag.get("alt" if kind_of(tag) == "image" else "value", usual)).strip()
    if role_of(tag) in _BY_CONTENT:
        return _text_without_controls(tag)
    return str(tag.get("alt") or tag.get("title") or "").strip()


def _text_without_controls(tag: Tag) -> str:
    parts, size = [], 0
    for text in _seen(tag, _SILENT):
        parts.append(text[: 4 * MOST_OF_A_NAME])
        size += len(" ".join(parts[-1].split()))
        if size > MOST_OF_A_NAME:
            break
    return " ".join("".join(parts).split())


def _shown(tag: Tag) -> str:
    if tag.name == "select":
        return ", ".join(" ".join(option.get_text().split()) for option in chosen_of(tag))
    if tag.name == "textarea":
        return value_of(tag)
    if tag.name != "input" or kind_of(tag) in ("checkbox", "radio", "submit", "reset", "image"):
        return ""
    return str(tag.get("value", "No file chosen")) if kind_of(tag) == "file" else value_of(tag)


def _states(tag: Tag) -> tuple[str, ...]:
    states = [state for state in ("checked", "readonly", "required") if tag.has_attr(state)]
    return tuple(sorted([*states, *(["disabled"] if is_disabled(tag) else [])]))


def options_of(tag: Tag) -> list[Tag]:
    """The options of a selection field."""
    return list(tag.find_all("option"))


def chosen_of(tag: Tag) -> list[Tag]:
    """The options that are chosen: any number where several may be, else the last that says so, or the first."""
    options = options_of(tag)
    chosen = [option for option in options if option.has_attr("selected")]
    if tag.has_attr("multiple"):
        return chosen
    return chosen[-1:] or [option for option in options if not is_disabled(option)][:1]


def value_of(tag: Tag) -> str:
    """What a control or an option would send."""
    if tag.name == "textarea":
        text = tag.get_text()
        return text.removeprefix("\n")
    if tag.name == "select":
        return next((value_of(option) for option in chosen_of(tag)), "")
    if tag.name == "option":
        return str(tag["value"]) if tag.has_attr("value") else " ".join(tag.get_text().split())
    return str(tag.get("value", "on" if kind_of(tag) in ("checkbox", "radio") else ""))


def set_value(soup: BeautifulSoup, tag: Tag, value: str) -> None:
    """Change a control: its text, or for a box or radio button "" or "on"."""
    if kind_of(tag) in ("checkbox", "radio"):
        if kind_of(tag) == "radio":
            for other in soup.find_all("input", attrs={"name": str(tag.get("name", ""))}):
                if kind_of(other) == "radio" and form_of(other, soup) is form_of(tag, soup):
                    other.attrs.pop("checked", None)
        tag.attrs.pop("checked", None)
        if value:
            tag["checked"] = ""
    elif tag.name == "textarea":
        tag.string = value
    else:
        tag["value"] = value


def control_of(tag: Tag, soup: BeautifulSoup) -> Tag:
    """What a click on an element works on: itself, the control or link around it, or that of its label."""
    around = tag if tag.name in ("a", *CONTROLS) else tag.find_parent(["a", "button", "label"])
    around = tag if tag.name == "label" else around
    if isinstance(around, Tag) and around.name == "label":
        named = soup.find(list(CONTROLS), id=str(around["for"])) if around.has_attr("for") else None
        return named or around.find(list(CONTROLS)) or tag
    return around if isinstance(around, Tag) else tag
