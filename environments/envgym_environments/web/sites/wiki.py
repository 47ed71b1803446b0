"""A wiki about made-up towns: pages with facts and links, histories, reverting, categories, a watch list."""

import re
import sqlite3

import numpy as np
from markupsafe import Markup, escape
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import TODAY, date, person, pick, some

__all__ = ["CATEGORIES", "WIKI"]

CATEGORIES = ("Rivers", "Towns", "Mountains", "Bridges", "Festivals")
_HEAD = ("Ald", "Ber", "Cor", "Dun", "Elm", "Far", "Gal", "Hol", "Ist", "Kel", "Lor", "Mar", "Nor", "Ost", "Pel")
_TAIL = {"Rivers": "water", "Towns": "stead", "Mountains": "horn", "Bridges": "span", "Festivals": "feast"}
_FACTS = {
    "Rivers": ("Length in km", "Tributaries"), "Towns": ("Inhabitants", "Founded"),
    "Mountains": ("Height in m", "First climbed"), "Bridges": ("Length in m", "Opened"),
    "Festivals": ("Visitors", "First held"),
}  # fmt: skip
_LINK = re.compile(r"\[\[([^\[\]|]{1,80})\]\]")

WIKI = Site(
    name="wiki",
    title="Landmark Wiki",
    me="Robin Vale",
    search="/search",
    nav={"All pages": "/all", "Recent changes": "/changes", "Watch list": "/watched", "New page": "/new"},
    schema="""
CREATE TABLE page (title TEXT PRIMARY KEY, category TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE revision (id INTEGER PRIMARY KEY, page TEXT NOT NULL REFERENCES page, author TEXT NOT NULL,
  day TEXT NOT NULL, text TEXT NOT NULL, summary TEXT NOT NULL);
CREATE TABLE watched (page TEXT PRIMARY KEY REFERENCES page) WITHOUT ROWID;
CREATE INDEX revisions ON revision (page);
""",
    templates={
        "home": """<p>{{ total }} pages by everybody.</p><ul>{% for one in categories %}
<li><a href="/categories/{{ one }}">{{ one }}</a></li>{% endfor %}</ul>""",
        "list": """<ul>{% for row in list.rows %}<li data-entry="{{ row.title }}"><a href="/pages/{{ row.title|urlencode }}">{{ row.title }}</a>
</li>{% endfor %}</ul>{{ pages(list, args) }}""",
        "page": """<p>Category: <a href="/categories/{{ p.category }}">{{ p.category }}</a> | <a href="{{ here }}/edit">Edit this page</a>
| <a href="{{ here }}/history">History</a> {% if watched %}{{ act(here ~ "/unwatch", "Stop watching") }}
{% else %}{{ act(here ~ "/watch", "Watch this page") }}{% endif %}</p>
{% for line in lines %}<p>{{ line }}</p>{% endfor %}<p class="soft">Last change by {{ r.author }} on {{ r.day }}: {{ r.summary }}</p>""",
        "edit": """<form method="post" action="{{ here }}/edit">{{ area("Text", "Text", r.text) }}
{{ pick("Category", "Category", categories, p.category) }}{{ text("Summary", "Summary") }}<button>Save page</button></form>""",
        "history": """<table><thead><tr><th>Version</th><th>By</th><th>Day</th><th>Summary</th><th></th></tr></thead><tbody>
{% for row in rows %}<tr data-entry="{{ row.id }}"><td><a href="/versions/{{ row.id }}">Version {{ row.id }}</a></td>
<td>{{ row.author }}</td><td>{{ row.day }}</td><td>{{ row.summary }}</td><td>{% if not loop.first %}
{{ act("/versions/" ~ row.id ~ "/restore", "Restore version " ~ row.id) }}{% endif %}</td></tr>{% endfor %}</tbody></table>""",
        "version": """<p>Of <a href="/pages/{{ r.page|urlencode }}">{{ r.page }}</a>, by {{ r.author }} on {{ r.day }}: {{ r.summary }}</p>
<pre>{{ r.text }}</pre>""",
        "new": """<form method="post" action="/new">{{ text("Title", "Title") }}{{ area("Text", "Text") }}
{{ pick("Category", "Category", categories) }}<button>Create page</button></form>""",
        "changes": """<table><thead><tr><th>Page</th><th>By</th><th>Day</th><th>Summary</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/pages/{{ row.page|urlencode }}">{{ row.page }}</a></td>
<td>{{ row.author }}</td><td>{{ row.day }}</td><td>{{ row.summary }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, {}) }}""",
    },
)


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """60 pages with two facts each and links to others; some have older versions, some were vandalised."""
    titles = {f"{head}{_TAIL[category]}": category for category in CATEGORIES for head in some(rng, _HEAD, 12)}
    names, authors = sorted(titles), sorted({person(rng) for _ in range(9)})
    for title in names:
        db.execute("INSERT INTO page VALUES (?,?)", (title, titles[title]))
    writes: list[tuple[str, str, str, str, str]] = []
    for title in names:
        first, second = _FACTS[titles[title]]
        facts = f"{first}: {int(rng.integers(20, 9000))}\n{second}: {int(rng.integers(1200, 1990))}"
        if second == "Tributaries":
            facts = f"{first}: {int(rng.integers(20, 900))}\n{second}: {int(rng.integers(2, 40))}"
        near, far = some(rng, [name for name in names if name != title], 2)
        text = f"{facts}\n{title} is near [[{near}]]. It is often compared with [[{far}]]."
        writes.append((date(rng, -800, -400), title, pick(rng, authors), text, "first version"))
        if rng.random() < 0.6:
            text = f"{text}\nMany visit it in {pick(rng, ('spring', 'summer', 'autumn', 'winter'))}."
            writes.append((date(rng, -390, -100), title, pick(rng, authors), text, "more about visits"))
        if rng.random() < 0.25:
            text = f"{pick(rng, ('BUY CHEAP SHOES', 'lol', 'this page is boring'))}"
            writes.append((date(rng, -90, -1), title, "anonymous", text, "improved"))
    for day, title, author, text, summary in sorted(writes, key=lambda write: write[0]):
        db.execute("INSERT INTO revision (page, author, day, text, summary) VALUES (?,?,?,?,?)",
                   (title, author, day, text, summary))  # fmt: skip
    for title in some(rng, names, 3):
        db.execute("INSERT INTO watched VALUES (?)", (title,))


WIKI.fill = _fill
_LAST = "SELECT * FROM revision WHERE page = ? ORDER BY id DESC LIMIT 1"


def _place(visit: Visit, title: str) -> dict[str, object]:
    page = visit.one("SELECT * FROM page WHERE title = ?", title)
    return {"p": page, "r": visit.one(_LAST, title), "here": f"/pages/{title}", "title": title}


def _linked(line: str) -> Markup:
    """A line with its links; all else of it is text."""
    parts = _LINK.split(line)
    shown = [
        escape(part) if at % 2 == 0 else Markup('<a href="/pages/{0}">{0}</a>').format(part)
        for at, part in enumerate(parts)
    ]
    return Markup("").join(shown)


def _write(visit: Visit, title: str, text: str, summary: str) -> None:
    visit.change("INSERT INTO revision (page, author, day, text, summary) VALUES (?,?,?,?,?)",
                 title, WIKI.me, TODAY.isoformat(), text, summary)  # fmt: skip


@WIKI.get("/")
def _home(visit: Visit) -> Response:
    return visit.show(
        "home", title="Welcome", total=visit.value("SELECT COUNT(*) FROM page"), categories=CATEGORIES
    )


@WIKI.get("/all")
def _all(visit: Visit) -> Response:
    return visit.show("list", title="All pages", list=visit.paged("SELECT * FROM page ORDER BY title"), args={})


@WIKI.get("/categories/<category>")
def _category(visit: Visit, category: str) -> Response:
    listed = visit.paged("SELECT * FROM page WHERE category = ? ORDER BY title", category)
    return visit.show("list", title=f"Category {category}", list=listed, args={})


@WIKI.get("/search")
def _search(visit: Visit) -> Response:
    words = visit.arg("q")
    listed = visit.paged(
        "SELECT p.* FROM page p JOIN revision r ON r.id = (SELECT MAX(id) FROM revision WHERE page = title) "
        "WHERE title LIKE ?1 OR r.text LIKE ?1 ORDER BY NOT title LIKE ?1, title", f"%{words}%"
    )  # fmt: skip
    return visit.show("list", title="Search", list=listed, args={"q": words})


@WIKI.get("/changes")
def _changes(visit: Visit) -> Response:
    return visit.show(
        "changes", title="Recent changes", list=visit.paged("SELECT * FROM revision ORDER BY id DESC")
    )


@WIKI.get("/watched")
def _watched(visit: Visit) -> Response:
    listed = visit.paged("SELECT page AS title FROM watched ORDER BY page")
    return visit.show("list", title="Watch list", list=listed, args={})


@WIKI.get("/pages/<title>")
def _page(visit: Visit, title: str) -> Response:
    place = _place(visit, title)
    watched = bool(visit.all("SELECT 1 FROM watched WHERE page = ?", title))
    text = visit.value("SELECT text FROM revision WHERE page = ? ORDER BY id DESC LIMIT 1", title)
    return visit.show("page", lines=[_linked(line) for line in text.split("\n")], watched=watched, **place)  # type: ignore[arg-type]


@WIKI.get("/pages/<title>/edit")
def _edit(visit: Visit, title: str) -> Response:
    place = _place(visit, title) | {"title": f"Edit {title}"}
    return visit.show("edit", categories=CATEGORIES, **place)  # type: ignore[arg-type]


@WIKI.post("/pages/<title>/edit")
def _save(visit: Visit, title: str) -> Response:
    visit.one("SELECT 1 FROM page WHERE title = ?", title)
    text, category = visit.field("Text"), visit.choice("Category", CATEGORIES)
    if text != visit.one(_LAST, title)["text"]:
        _write(visit, title, text, visit.optional("Summary")[:200])
    visit.change("UPDATE page SET category = ? WHERE title = ?", category, title)
    return visit.go(f"/pages/{title}", "Saved.")


@WIKI.get("/pages/<title>/history")
def _history(visit: Visit, title: str) -> Response:
    rows = visit.all("SELECT * FROM revision WHERE page = ? ORDER BY id DESC", title)
    return visit.show("history", title=f"History of {title}", rows=rows)


@WIKI.post("/pages/<title>/watch")
def _watch(visit: Visit, title: str) -> Response:
    visit.one("SELECT 1 FROM page WHERE title = ?", title)
    visit.change("INSERT OR IGNORE INTO watched VALUES (?)", title)
    return visit.go(f"/pages/{title}", "You watch this page.")


@WIKI.post("/pages/<title>/unwatch")
def _unwatch(visit: Visit, title: str) -> Response:
    visit.change("DELETE FROM watched WHERE page = ?", title)
    return visit.go(f"/pages/{title}", "You no longer watch this page.")


@WIKI.get("/versions/<int:version>")
def _version(visit: Visit, version: int) -> Response:
    return visit.show(
        "version", title=f"Version {version}", r=visit.one("SELECT * FROM revision WHERE id = ?", version)
    )


@WIKI.post("/versions/<int:version>/restore")
def _restore(visit: Visit, version: int) -> Response:
    row = visit.one("SELECT * FROM revision WHERE id = ?", version)
    _write(visit, row["page"], row["text"], f"restored version {version}")
    return visit.go(f"/pages/{row['page']}", "Restored.")


@WIKI.get("/new")
def _new(visit: Visit) -> Response:
    return visit.show("new", title="New page", categories=CATEGORIES)


@WIKI.post("/new")
def _create(visit: Visit) -> Response:
    title, text, category = visit.field("Title", most=80), visit.field("Text"), visit.choice("Category", CATEGORIES)
    if not re.fullmatch(r"[\w' -]+", title):
        raise Refused("a title has letters, digits, spaces, - and ' alone.")
    if visit.all("SELECT 1 FROM page WHERE title = ?", title):
        raise Refused(f"there is a page {title!r} already.")
    visit.change("INSERT INTO page VALUES (?,?)", title, category)
    _write(visit, title, text, "first version")
    return visit.go(f"/pages/{title}", "Created.")
