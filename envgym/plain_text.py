"""Text of models and worlds as something to look at: no character of it steers the terminal it is read on.

It makes no markup and decides no layout.
"""

__all__ = ["visible"]


def visible(text: str, limit: int | None = None) -> str:
    """`text` with control characters written out, its middle cut out beyond `limit` characters."""
    if limit is not None and len(text) > limit:
        cut = len(text) - limit
        text = f"{text[: limit // 2]} [... {cut} characters ...] {text[-(limit // 2) :]}"
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)
