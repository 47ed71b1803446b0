"""The cookies that a browser had when a document was asked for: what it sent then, with what it now knows of them.

A request says names and values alone (RFC 6265, 4.2); whether scripts see a cookie, its path and its end are the
browser's own, which tells them after the document has come.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

__all__ = ["Cookie", "cookies_then"]

Cookie = Mapping[str, JsonValue]
"""A cookie as `Page.storage` tells it, and as `Storage` takes it."""


def cookies_then(sent: str, path: str, now: Sequence[Cookie], host: str) -> tuple[Cookie, ...]:
    """Records of the cookies that there were. sent: the request's field, path: what it asked for, with its query.

    now: the browser's after the answer. What was sent has the values of then. What is for other paths is not sent:
    of that, what there is now; where the answer itself sets it, it will again.
    """
    here = path.partition("?")[0].partition("#")[0]
    left = [one for one in now if _is_sent(str(one.get("path", "/")), here)]
    found = [one for one in now if one not in left]
    for name, value in _pairs(sent):
        same = [one for one in left if one["name"] == name]
        known = next((one for one in same if one["value"] == value), same[0] if same else None)
        if known is not None:
            left.remove(known)
        found.append({**(known or {"domain": host, "path": "/"}), "name": name, "value": value})
    return tuple(found)


def _pairs(sent: str) -> list[tuple[str, str]]:
    """Names and values as they were spelled, quotes too; one without a name is a value (browsers send it so)."""
    found = []
    for one in sent.split(";"):
        name, equals, value = one.strip().partition("=")
        if equals or name:
            found.append((name, value) if equals else ("", name))
    return found


def _is_sent(path: str, here: str) -> bool:
    """Whether a cookie's path is one of a request's (RFC 6265, 5.1.4)."""
    return here == path or here.startswith(path if path.endswith("/") else f"{path}/")
