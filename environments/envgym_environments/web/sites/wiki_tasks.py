"""What is asked in the wiki: to correct, write, restore, sort, watch, and to find something out over two pages."""

import re
import sqlite3

import numpy as np

from envgym_environments.web.sites.goals import Do, Goal, choose, click, fill, pick, press, tries
from envgym_environments.web.sites.wiki import CATEGORIES, WIKI
from envgym_environments.words import TODAY

__all__ = ["WIKI"]

_DAY = TODAY.isoformat()
_FACT = re.compile(r"^(.+): (\d+)$", re.MULTILINE)
_WRITE = "INSERT INTO revision (page, author, day, text, summary) VALUES (?,?,?,?,?)"


def _to(title: str) -> tuple[Do, ...]:
    return fill(f"Search {WIKI.title}", title), press("Search"), click(title)


def _whole(db: sqlite3.Connection) -> list[sqlite3.Row]:
    """The last versions of the pages that nobody has spoilt."""
    return db.execute(
        "SELECT r.*, category FROM revision r JOIN page p ON p.title = page "
        "WHERE r.id = (SELECT MAX(id) FROM revision WHERE page = p.title) AND author != 'anonymous' ORDER BY page"
    ).fetchall()


@WIKI.kind("correct")
def _correct(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Correct one number of a page."""
    row = pick(rng, _whole(db))
    name, old = pick(rng, _FACT.findall(row["text"]))
    new = str(int(old) + int(rng.integers(1, 15)))
    text = row["text"].replace(f"{name}: {old}", f"{name}: {new}")
    return Goal(
        f"On the page {row['page']}, correct '{name}' from {old} to {new}, with the summary 'corrected'. "
        "Leave the rest as it is.",
        (
            *_to(row["page"]),
            click("Edit this page"),
            fill("Text", text),
            fill("Summary", "corrected"),
            press("Save page"),
        ),
        ((_WRITE, (row["page"], WIKI.me, _DAY, text, "corrected")),),
    )


@WIKI.kind("write")
def _write(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Write a page."""
    category, near = pick(rng, CATEGORIES), pick(rng, _whole(db))["page"]
    title = f"{pick(rng, ('Red', 'Old', 'Upper', 'Little', 'Saint'))} {pick(rng, ('Quay', 'Gate', 'Hollow', 'Mill', 'Ford'))}"
    text = f"{title} is near [[{near}]]."
    return Goal(
        f"Create a page with the title '{title}' in the category {category}, with exactly this text: {text}",
        (
            click("New page"),
            fill("Title", title),
            fill("Text", text),
            choose("Category", category),
            press("Create page"),
        ),
        (
            ("INSERT INTO page VALUES (?,?)", (title, category)),
            (_WRITE, (title, WIKI.me, _DAY, text, "first version")),
        ),
    )


@WIKI.kind("restore")
def _restore(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Undo what an anonymous visitor did to a page."""
    bad = pick(rng, db.execute("SELECT * FROM revision WHERE author = 'anonymous' ORDER BY id").fetchall())
    good = db.execute(
        "SELECT * FROM revision WHERE page = ? AND author != 'anonymous' ORDER BY id DESC LIMIT 1", (bad["page"],)
    ).fetchone()
    return Goal(
        f"An anonymous visitor has spoilt the page {bad['page']}. Restore the last version before that.",
        (*_to(bad["page"]), click("History"), press(f"Restore version {good['id']}")),
        ((_WRITE, (bad["page"], WIKI.me, _DAY, good["text"], f"restored version {good['id']}")),),
    )


@WIKI.kind("sort")
def _sort(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Put a page into another category."""
    row = pick(rng, _whole(db))
    category = pick(rng, [one for one in CATEGORIES if one != row["category"]])
    return Goal(
        f"Move the page {row['page']} to the category {category}; its text stays.",
        (*_to(row["page"]), click("Edit this page"), choose("Category", category), press("Save page")),
        (("UPDATE page SET category = ? WHERE title = ?", (category, row["page"])),),
    )


@WIKI.kind("watch")
def _watch(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Watch the page that another one links to."""
    for _ in tries():
        row = pick(rng, _whole(db))
        near = re.findall(r"near \[\[(.+?)\]\]", row["text"])[0]
        if not db.execute("SELECT 1 FROM watched WHERE page = ?", (near,)).fetchone():
            break
    return Goal(
        f"Watch the page of the place that {row['page']} is near, as its page says.",
        (*_to(row["page"]), click(near), press("Watch this page")),
        (("INSERT INTO watched VALUES (?)", (near,)),),
    )


@WIKI.kind("look-up")
def _look_up(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """A fact of the page that another one links to."""
    whole = {row["page"]: row for row in _whole(db)}
    for _ in tries():
        row = pick(rng, list(whole.values()))
        other = re.findall(r"compared with \[\[(.+?)\]\]", row["text"])[0]
        if other in whole:
            break
    name, value = pick(rng, _FACT.findall(whole[other]["text"]))
    return Goal(
        f"{row['page']} is often compared with something. What is '{name}' of that, as its page says?",
        (*_to(row["page"]), click(other)),
        answer=int(value),
    )


@WIKI.kind("author")
def _author(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Who wrote the first version of a page."""
    page = pick(rng, _whole(db))["page"]
    author = db.execute("SELECT author FROM revision WHERE page = ? ORDER BY id LIMIT 1", (page,)).fetchone()[0]
    return Goal(
        f"Who wrote the first version of the page {page}?", (*_to(page), click("History")), answer=str(author)
    )


@WIKI.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have the history of a page shown."""
    page = pick(rng, _whole(db))["page"]
    return Goal(
        f"Open the history of the page {page} and leave it open.",
        (*_to(page), click("History")),
        shows=f"/pages/{page}/history",
    )
