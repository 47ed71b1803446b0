"""HTML read as an accessibility tree, and its forms: what has a role and a name, what a form sends.

Names are those of the parts of the accessible-name computation that plain pages use
(https://www.w3.org/TR/accname-1.2/): aria-label, the label element, content, placeholder and title.
"""

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from envgym.page import Node

__all__ = ["control_of", "nodes_of", "options_of", "sent_by", "set_value", "value_of"]

_HIDDEN = {"head", "script", "style", "template", "noscript", "option"}
_ROLES = {
    "a": "link", "button": "button", "textarea": "textbox", "select": "combobox", "img": "image",
    "nav": "navigation", "main": "main", "header": "banner", "footer": "contentinfo", "table": "table",
    "tr": "row", "td": "cell", "th": "columnheader", "ul": "list", "ol": "list", "li": "listitem",
    "article": "article", "p": "paragraph", "h1": "heading", "h2": "heading", "h3": "heading",
    "h4": "heading",
}  # fmt: skip
_INPUTS = {
    "checkbox": "checkbox", "radio": "radio", "search": "searchbox", "number": "spinbutton", "submit": "button",
    "button": "button",
}  # fmt: skip
_SILENT = {"select", "textarea", "script", "style"}
_BY_CONTENT = {"link", "button", "heading", "cell", "columnheader"}
_CONTROLS = ("input", "textarea", "select", "button")


def nodes_of(soup: BeautifulSoup) -> list[tuple[Node, Tag | None]]:
    """The tree with the elements that its nodes stand for, in document order; refs are numbered in it."""
    found: list[tuple[Node, Tag | None]] = []
    _walk(soup.body or soup, 0, "", soup, found)
    return found


def _walk(tag: Tag, depth: int, above: str, soup: BeautifulSoup, found: list[tuple[Node, Tag | None]]) -> None:
    for child in tag.children:
        if isinstance(child, Tag):
            if child.name in _HIDDEN or child.has_attr("hidden") or child.get("type") == "hidden":
                continue
            role = str(child.get("role", "")) or role_of(child)
            name = name_of(child, soup) if role else ""
            if role and (name or role not in ("paragraph", "cell", "list", "listitem", "row", "table")):
                node = Node(f"e{len(found) + 1}", role, name, _shown(child), depth, _states(child))
                found.append((node, child))
                if child.name not in ("select", "textarea"):
                    _walk(child, depth + 1, name or above, soup, found)
            else:
                _walk(child, depth, above, soup, found)
        elif type(child) is NavigableString and (text := " ".join(child.split())) and text not in above:
            found.append((Node("", "text", text, depth=depth), None))


def role_of(tag: Tag) -> str:
    """The role of an element without a role of its own; "" where it has none."""
    if tag.name == "input":
        return _INPUTS.get(str(tag.get("type", "text")), "textbox")
    return "" if tag.name == "a" and not tag.has_attr("href") else _ROLES.get(tag.name, "")


def name_of(tag: Tag, soup: BeautifulSoup) -> str:
    """The accessible name of an element."""
    if label := str(tag.get("aria-label", "")).strip():
        return label
    if tag.name in ("input", "textarea", "select") and tag.get("type") not in ("submit", "button"):
        around = tag.find_parent("label")
        if around is None and tag.has_attr("id"):
            around = soup.find("label", attrs={"for": str(tag["id"])})
        if isinstance(around, Tag) and (text := _text_without_controls(around)):
            return text
        return str(tag.get("placeholder") or tag.get("title") or "").strip()
    if tag.name == "input":
        return str(tag.get("value", "")).strip()
    if role_of(tag) in _BY_CONTENT:
        return _text_without_controls(tag)
    return str(tag.get("alt") or tag.get("title") or "").strip()


def _text_without_controls(tag: Tag) -> str:
    parts = [
        str(text)
        for text in tag.find_all(string=True)
        if not any(
            parent.name in ("select", "textarea", "script", "style") for parent in text.parents if parent is not tag
        )
    ]
    return " ".join("".join(parts).split())


def _shown(tag: Tag) -> str:
    if tag.name == "select":
        chosen = _chosen(tag)
        return chosen.get_text().strip() if chosen else ""
    if tag.name == "textarea" or (tag.name == "input" and tag.get("type") not in ("checkbox", "radio", "submit")):
        return value_of(tag)
    return ""


def _states(tag: Tag) -> tuple[str, ...]:
    return tuple(state for state in ("checked", "disabled") if tag.has_attr(state))


def options_of(tag: Tag) -> list[Tag]:
    """The options of a selection field."""
    return list(tag.find_all("option"))


def _chosen(tag: Tag) -> Tag | None:
    options = options_of(tag)
    return next((option for option in options if option.has_attr("selected")), options[0] if options else None)


def value_of(tag: Tag) -> str:
    """What a control or an option would send."""
    if tag.name == "textarea":
        text = tag.get_text()
        return text.removeprefix("\n")
    if tag.name == "select":
        chosen = _chosen(tag)
        return value_of(chosen) if chosen else ""
    if tag.name == "option":
        return str(tag["value"]) if tag.has_attr("value") else tag.get_text().strip()
    return str(tag.get("value", "on" if tag.get("type") in ("checkbox", "radio") else ""))


def set_value(soup: BeautifulSoup, tag: Tag, value: str) -> None:
    """Change a control: its text, or for a box or radio button "" or "on"."""
    if tag.get("type") in ("checkbox", "radio"):
        if tag.get("type") == "radio":
            for other in soup.find_all("input", attrs={"type": "radio", "name": str(tag.get("name", ""))}):
                other.attrs.pop("checked", None)
        tag.attrs.pop("checked", None)
        if value:
            tag["checked"] = ""
    elif tag.name == "textarea":
        tag.string = value
    else:
        tag["value"] = value


def control_of(tag: Tag) -> Tag:
    """What a click on an element works on: itself, the control or link around it, or that of its label."""
    around = tag if tag.name in ("a", *_CONTROLS) else tag.find_parent(["a", "button", "label"])
    if isinstance(around, Tag) and around.name == "label":
        inside = around.find(list(_CONTROLS))
        return inside if isinstance(inside, Tag) else tag
    return around if isinstance(around, Tag) else tag


def sent_by(form: Tag, button: Tag | None) -> list[tuple[str, str]]:
    """What a form sends when a button of it is pressed (https://html.spec.whatwg.org/#constructing-form-data-set)."""
    pairs: list[tuple[str, str]] = []
    for tag in form.find_all(list(_CONTROLS)):
        name, kind = str(tag.get("name", "")), str(tag.get("type", ""))
        is_button = tag.name == "button" or kind in ("submit", "button")
        boxed = kind in ("checkbox", "radio") and not tag.has_attr("checked")
        if name and not tag.has_attr("disabled") and not boxed and (not is_button or tag is button):
            pairs.append((name, value_of(tag)))
    return pairs
