"""Text and JSON values as every reader takes them: no half surrogate pairs, no NaN, and images as names.

What is cleaned here comes back exactly through the extra text; this is only what other tools see.
"""

import math
import re
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from envgym.messages import ImagePart

__all__ = ["clean", "clean_json", "image_from_url", "image_url", "no_nul"]

_HALF = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """A text with half surrogate pairs replaced, which UTF-8 cannot hold and most JSON readers refuse."""
    return _HALF.sub("\ufffd", text)


def no_nul(text: str) -> str:
    """A cleaned text without NUL either, for files that end texts with it."""
    return clean(text).replace("\0", "\ufffd")


def clean_json(value: Any) -> Any:
    """A JSON value with every text cleaned, keys too, and numbers that JSON lacks (NaN, infinities) as null."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def image_url(image: ImagePart) -> str:
    """The name of an image as a URL: its hash and its type, never its bytes."""
    return f"sha256:{quote(clean(image.sha256), safe='')}?type={quote(clean(image.media_type), safe='')}"


def image_from_url(url: str) -> ImagePart | None:
    """The image that `image_url` named; None for any other URL."""
    scheme, _, rest = url.partition(":")
    name, mark, query = rest.partition("?")
    if scheme != "sha256" or not mark:
        return None
    return ImagePart(sha256=unquote(name), media_type=parse_qs(query).get("type", ["image/png"])[0])
