"""What is to be drawn again: small documents as pages have them, at five levels, from a generator.

Levels add parts, not tricks: a document is what a person would write for it, with colours and sizes of its own.
"""

from collections.abc import Callable
from html import escape

import numpy as np

from envgym_environments.words import NOUNS, person, pick, product, some, title, town

__all__ = ["DOCUMENTS", "document"]

_DARK = ("#1f3a5f", "#5b2333", "#2f4f2f", "#333333", "#4b2e83", "#7a3e00")
_BRIGHT = ("#e4572e", "#17bebb", "#ffc914", "#76b041", "#2e86ab", "#a23b72", "#f18f01", "#6c91bf")
_PALE = ("#f4f1de", "#e8f1f2", "#fdf0d5", "#edf6e5", "#f3e8ff", "#ffffff")


def document(rng: np.random.Generator, kind: str, level: int) -> str:
    """A document of a kind, level 1 to 5."""
    body = DOCUMENTS[kind](rng, level)
    ground, ink, size = pick(rng, _PALE), pick(rng, _DARK), int(rng.integers(11, 15))
    style = f"margin:0;padding:10px;background:{ground};color:{ink};font:{size}px DejaVu Sans,sans-serif"
    return f'<!DOCTYPE html>\n<html><body style="{style}">\n{body}\n</body></html>\n'


def _blocks(rng: np.random.Generator, level: int) -> str:
    lines = []
    for colour in some(rng, _BRIGHT, 1 + level):
        left, top = int(rng.integers(0, 210)), int(rng.integers(0, 150))
        width, height = int(rng.integers(30, 110)), int(rng.integers(24, 90))
        round_ = f";border-radius:{int(rng.integers(4, 20))}px" if level > 2 and rng.integers(2) else ""
        says = escape(pick(rng, NOUNS)) if level > 1 else ""
        place = f"position:absolute;left:{left}px;top:{top}px;width:{width}px;height:{height}px"
        lines.append(f'<div style="{place};background:{colour}{round_}">{says}</div>')
    return "\n".join(lines)


def _bars(rng: np.random.Generator, level: int) -> str:
    count, base, parts = 2 + level, 190, []
    wide = 280 // count
    for place, (name, colour) in enumerate(zip(some(rng, NOUNS, count), some(rng, _BRIGHT, count), strict=True)):
        tall, left = int(rng.integers(20, 150)), 10 + place * wide
        parts.append(f'<rect x="{left}" y="{base - tall}" width="{wide - 8}" height="{tall}" fill="{colour}"/>')
        if level > 1:
            parts.append(f'<text x="{left}" y="{base + 14}" font-size="9">{escape(name[:6])}</text>')
        if level > 3:
            parts.append(f'<text x="{left}" y="{base - tall - 4}" font-size="9">{tall}</text>')
    axis = f'<line x1="6" y1="{base}" x2="296" y2="{base}" stroke="#333" stroke-width="2"/>'
    head = f'<text x="10" y="18" font-size="13">{escape(title(rng))}</text>'
    return f'<svg width="300" height="215">{head}{"".join(parts)}{axis}</svg>'


def _table(rng: np.random.Generator, level: int) -> str:
    columns = [("Name", person), ("Town", town), ("Goods", product)][: 2 + (level > 3)]
    band = pick(rng, _BRIGHT)
    cell = f"border:1px solid {pick(rng, _DARK)};padding:{int(rng.integers(2, 5))}px"
    head = "".join(f'<th style="{cell};background:{band}">{name}</th>' for name, _ in columns)
    rows = "\n".join(
        "<tr>" + "".join(f'<td style="{cell}">{escape(made(rng))}</td>' for _, made in columns) + "</tr>"
        for _ in range(level)
    )
    return f'<table style="border-collapse:collapse">\n<tr>{head}</tr>\n{rows}\n</table>'


def _card(rng: np.random.Generator, level: int) -> str:
    band, button = some(rng, _BRIGHT, 2)
    lines = "\n".join(f"<li>{escape(product(rng))}</li>" for _ in range(level))
    press = (
        f'<span style="background:{button};padding:4px 10px">{pick(rng, ("Buy", "Open", "Send", "Join"))}</span>'
    )
    said = f"<p>{escape(person(rng))} of {escape(town(rng))}</p>" if level > 2 else ""
    return (
        f'<div style="border:2px solid {band};width:{int(rng.integers(180, 280))}px">\n'
        f'<h3 style="margin:0;padding:6px;background:{band}">{escape(title(rng))}</h3>\n{said}\n<ul>{lines}</ul>\n'
        f'<p style="margin:8px">{press}</p>\n</div>'
    )


def _columns(rng: np.random.Generator, level: int) -> str:
    count = 2 + (level > 2)
    parts = []
    for colour in some(rng, _BRIGHT, count):
        lines = "".join(f"<p>{escape(title(rng))}</p>" for _ in range(1 + level // 2))
        parts.append(f'<div style="flex:{int(rng.integers(1, 4))};background:{colour};padding:6px">{lines}</div>')
    head = f'<div style="background:{pick(rng, _DARK)};color:#ffffff;padding:6px">{escape(title(rng))}</div>'
    return f'{head}\n<div style="display:flex;gap:{int(rng.integers(2, 9))}px">{"".join(parts)}</div>'


DOCUMENTS: dict[str, Callable[[np.random.Generator, int], str]] = {
    "blocks": _blocks,
    "bars": _bars,
    "table": _table,
    "card": _card,
    "columns": _columns,
}
"""Kind -> the body of a document of it."""
