"""Which drawn shape is meant by words such as "large", "red", "triangle", "digit"."""

from envgym_environments.web.miniwob.reading import Element

__all__ = ["fits"]


def _size(one: Element) -> str:
    if one.tag == "text":
        return ""
    if one.tag == "rect":
        return "small" if float(one.attributes["width"]) <= 12 else "large"
    if one.tag == "circle":
        return "small" if float(one.attributes["r"]) <= 6 else "large"
    xs = [float(pair.split(",")[0]) for pair in one.attributes["points"].split()]
    return "small" if max(xs) - min(xs) <= 12 else "large"


def fits(one: Element, words: list[str]) -> bool:
    """Whether a drawn shape is what words such as "small red circle" say."""
    kinds = {"rectangle": "rect", "circle": "circle", "triangle": "polygon"}
    for word in words:
        if word in kinds and one.tag != kinds[word]:
            return False
        if word in ("letter", "digit") and (one.tag != "text" or one.text.isdigit() != (word == "digit")):
            return False
        if word in _COLOURS and one.attributes.get("fill") != word:
            return False
        if word in ("small", "large") and _size(one) not in ("", word):
            return False
    return True


_COLOURS = ["red", "green", "blue", "aqua", "black", "magenta", "yellow"]
