"""A forum: boards, threads, posts with votes; one can write, edit, delete what is one's own, vote and follow."""

import sqlite3

import numpy as np
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import NOUNS, TODAY, date, person, pick, some

__all__ = ["BOARDS", "FORUM", "SORTS"]

BOARDS = ("Gardens", "Bicycles", "Kitchen", "Trains", "Photography")
SORTS = {"Newest": "t.id DESC", "Oldest": "t.id", "Most replies": "replies DESC, t.id", "Title": "title, t.id"}
_ASK = ("Which {} would you buy?", "My {} does not work any more", "How do you store a {}?", "Show us your {}",
        "Is a used {} worth it?", "What I learned about the {}", "Looking for a good {}")  # fmt: skip
_SAY = ("I had one for years and never looked back.", "It depends on how often you use it.", "Ask in the shop near you.",
        "Mine broke in the second winter.", "Do it yourself, it is easy.", "Have you tried the old way?",
        "Photos, please!", "That is not what I have seen.", "Thank you, this helped me a lot.")  # fmt: skip

FORUM = Site(
    name="forum",
    title="The Bench",
    me="robin_v",
    search="/search",
    nav={"Boards": "/", "Followed threads": "/followed", "My posts": "/mine"},
    schema="""
CREATE TABLE thread (id INTEGER PRIMARY KEY, board TEXT NOT NULL, title TEXT NOT NULL, author TEXT NOT NULL,
  day TEXT NOT NULL, locked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE post (id INTEGER PRIMARY KEY, thread INTEGER NOT NULL REFERENCES thread, author TEXT NOT NULL,
  day TEXT NOT NULL, text TEXT NOT NULL, votes INTEGER NOT NULL DEFAULT 0, edited INTEGER NOT NULL DEFAULT 0);
CREATE TABLE vote (post INTEGER PRIMARY KEY);
CREATE TABLE followed (thread INTEGER PRIMARY KEY REFERENCES thread);
CREATE INDEX posts ON post (thread);
""",
    templates={
        "home": """<table><thead><tr><th>Board</th><th>Threads</th></tr></thead><tbody>{% for row in boards %}
<tr><td><a href="/boards/{{ row.board }}">{{ row.board }}</a></td><td>{{ row.number }}</td></tr>{% endfor %}</tbody></table>""",
        "board": """<p><a href="/boards/{{ board }}/new">Start a thread</a></p>
<form class="row">{{ pick("Sort by", "sort", sorts, args.sort) }}{{ text("Only by author", "author", args.author) }}
<button>Apply</button></form>{% include "threads" %}""",
        "threads": """<table><thead><tr><th>Thread</th><th>By</th><th>Day</th><th>Replies</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/threads/{{ row.id }}">{{ row.title }}</a>
{% if row.locked %}<span class="tag">locked</span>{% endif %}</td>
<td>{{ row.author }}</td><td>{{ row.day }}</td><td>{{ row.replies }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, args) }}""",
        "thread": """<p>In <a href="/boards/{{ t.board }}">{{ t.board }}</a>, by {{ t.author }} on {{ t.day }}.
{% if followed %}{{ act("/threads/" ~ t.id ~ "/unfollow", "Unfollow this thread") }}
{% else %}{{ act("/threads/" ~ t.id ~ "/follow", "Follow this thread") }}{% endif %}</p>
{% for p in posts %}<article data-entry="{{ p.id }}"><p><b>#{{ loop.index }} {{ p.author }}</b> <span class="soft">{{ p.day }}
{{ "(edited)" if p.edited else "" }}</span> votes: {{ p.votes }}</p><pre>{{ p.text }}</pre>
{% if p.voted %}{{ act("/posts/" ~ p.id ~ "/unvote", "Take back my vote for #" ~ loop.index) }}
{% elif p.author != site.me %}{{ act("/posts/" ~ p.id ~ "/vote", "Vote for #" ~ loop.index) }}{% endif %}
{% if p.author == site.me %}<a href="/posts/{{ p.id }}/edit">Edit #{{ loop.index }}</a>
{% if not loop.first %}{{ act("/posts/" ~ p.id ~ "/delete", "Delete #" ~ loop.index) }}{% endif %}{% endif %}</article>{% endfor %}
{% if t.locked %}<p>This thread is locked.</p>{% else %}<h2>Reply</h2>
<form method="post" action="/threads/{{ t.id }}/reply">{{ area("Your reply", "Your reply") }}<button>Send reply</button></form>{% endif %}""",
        "new": """<form method="post" action="/boards/{{ board }}/new">{{ text("Title", "Title") }}
{{ area("Your post", "Your post") }}<button>Start thread</button></form>""",
        "edit": """<form method="post" action="/posts/{{ p.id }}/edit">{{ area("Your post", "Your post", p.text) }}
<button>Save changes</button></form>""",
    },
)


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """Some 110 threads by 30 members, with posts and votes; a few posts and threads are one's own."""
    members = sorted({person(rng).lower().replace(" ", "_") for _ in range(30)})
    titles = some(rng, [ask.format(thing.lower()) for ask in _ASK for thing in NOUNS[:54]], 110)
    for number, (day, title) in enumerate(zip(sorted(date(rng, -400, -2) for _ in titles), titles, strict=True), 1):
        author = FORUM.me if rng.random() < 0.06 else pick(rng, members)
        db.execute("INSERT INTO thread VALUES (?,?,?,?,?,?)",
                   (number, pick(rng, BOARDS), title, author, day, int(rng.random() < 0.08)))  # fmt: skip
        for at in range(int(rng.integers(1, 9))):
            who = author if at == 0 else FORUM.me if rng.random() < 0.1 else pick(rng, members)
            text = f"{pick(rng, _SAY)} {pick(rng, _SAY)}"
            db.execute("INSERT INTO post (thread, author, day, text, votes) VALUES (?,?,?,?,?)",
                       (number, who, day, text, int(rng.integers(0, 40))))  # fmt: skip
    for thread in some(rng, range(1, 111), 4):
        db.execute("INSERT INTO followed VALUES (?)", (thread,))


FORUM.fill = _fill
_THREADS = "SELECT t.*, (SELECT COUNT(*) - 1 FROM post WHERE thread = t.id) AS replies FROM thread t"


@FORUM.get("/")
def _home(visit: Visit) -> Response:
    rows = visit.all("SELECT board, COUNT(*) AS number FROM thread GROUP BY board ORDER BY board")
    return visit.show("home", title="Boards", boards=rows)


@FORUM.get("/boards/<board>")
def _board(visit: Visit, board: str) -> Response:
    args = {"sort": visit.arg("sort"), "author": visit.arg("author")}
    order = SORTS.get(args["sort"], SORTS["Newest"])
    listed = visit.paged(
        f"{_THREADS} WHERE board = ?1 AND (?2 = '' OR author = ?2) ORDER BY {order}", board, args["author"]
    )
    return visit.show("board", title=board, board=board, list=listed, args=args, sorts=SORTS)


@FORUM.get("/search")
def _search(visit: Visit) -> Response:
    words = visit.arg("q").split()[:8]
    where = " AND ".join(["title LIKE ?"] * len(words)) or "1"
    listed = visit.paged(f"{_THREADS} WHERE {where} ORDER BY t.id DESC", *(f"%{word}%" for word in words))
    return visit.show("threads", title="Search", list=listed, args={"q": visit.arg("q")})


@FORUM.get("/followed")
def _followed(visit: Visit) -> Response:
    listed = visit.paged(f"{_THREADS} WHERE t.id IN (SELECT thread FROM followed) ORDER BY t.id DESC")
    return visit.show("threads", title="Followed threads", list=listed, args={})


@FORUM.get("/mine")
def _mine(visit: Visit) -> Response:
    listed = visit.paged(
        f"{_THREADS} WHERE t.id IN (SELECT thread FROM post WHERE author = ?) ORDER BY t.id DESC", FORUM.me
    )
    return visit.show("threads", title="Threads with my posts", list=listed, args={})


@FORUM.get("/threads/<int:thread>")
def _thread(visit: Visit, thread: int) -> Response:
    row = visit.one("SELECT * FROM thread WHERE id = ?", thread)
    posts = visit.all(
        "SELECT p.*, id IN (SELECT post FROM vote) AS voted FROM post p WHERE thread = ? ORDER BY id", thread
    )
    followed = bool(visit.all("SELECT 1 FROM followed WHERE thread = ?", thread))
    return visit.show("thread", title=row["title"], t=row, posts=posts, followed=followed)


@FORUM.post("/threads/<int:thread>/reply")
def _reply(visit: Visit, thread: int) -> Response:
    if visit.value("SELECT locked FROM thread WHERE id = ?", thread):
        raise Refused("this thread is locked.")
    visit.change("INSERT INTO post (thread, author, day, text) VALUES (?,?,?,?)",
                 thread, FORUM.me, TODAY.isoformat(), visit.field("Your reply"))  # fmt: skip
    return visit.go(f"/threads/{thread}", "Your reply is there.")


@FORUM.post("/threads/<int:thread>/follow")
def _follow(visit: Visit, thread: int) -> Response:
    visit.one("SELECT 1 FROM thread WHERE id = ?", thread)
    visit.change("INSERT OR IGNORE INTO followed VALUES (?)", thread)
    return visit.go(f"/threads/{thread}", "You follow this thread.")


@FORUM.post("/threads/<int:thread>/unfollow")
def _unfollow(visit: Visit, thread: int) -> Response:
    visit.change("DELETE FROM followed WHERE thread = ?", thread)
    return visit.go(f"/threads/{thread}", "You no longer follow this thread.")


@FORUM.get("/boards/<board>/new")
def _new(visit: Visit, board: str) -> Response:
    visit.one("SELECT 1 FROM thread WHERE board = ?", board)
    return visit.show("new", title=f"A new thread in {board}", board=board)


@FORUM.post("/boards/<board>/new")
def _start(visit: Visit, board: str) -> Response:
    title, text, day = visit.field("Title", most=120), visit.field("Your post"), TODAY.isoformat()
    visit.one("SELECT 1 FROM thread WHERE board = ?", board)
    thread = visit.change(
        "INSERT INTO thread (board, title, author, day) VALUES (?,?,?,?)", board, title, FORUM.me, day
    )
    visit.change("INSERT INTO post (thread, author, day, text) VALUES (?,?,?,?)", thread, FORUM.me, day, text)
    return visit.go(f"/threads/{thread}", "Your thread is there.")


def _own(visit: Visit, post: int) -> sqlite3.Row:
    row = visit.one("SELECT * FROM post WHERE id = ?", post)
    if row["author"] != FORUM.me:
        raise Refused("that is not your post.")
    return row


@FORUM.get("/posts/<int:post>/edit")
def _edit(visit: Visit, post: int) -> Response:
    return visit.show("edit", title="Edit a post", p=_own(visit, post))


@FORUM.post("/posts/<int:post>/edit")
def _save(visit: Visit, post: int) -> Response:
    thread = _own(visit, post)["thread"]
    visit.change("UPDATE post SET text = ?, edited = 1 WHERE id = ?", visit.field("Your post"), post)
    return visit.go(f"/threads/{thread}", "Saved.")


@FORUM.post("/posts/<int:post>/delete")
def _delete(visit: Visit, post: int) -> Response:
    thread = _own(visit, post)["thread"]
    if post == visit.value("SELECT MIN(id) FROM post WHERE thread = ?", thread):
        raise Refused("the first post of a thread cannot be deleted.")
    visit.change("DELETE FROM post WHERE id = ?", post)
    return visit.go(f"/threads/{thread}", "Deleted.")


@FORUM.post("/posts/<int:post>/vote")
def _vote(visit: Visit, post: int) -> Response:
    row = visit.one("SELECT * FROM post WHERE id = ?", post)
    if row["author"] == FORUM.me or visit.all("SELECT 1 FROM vote WHERE post = ?", post):
        raise Refused("one vote for a post, and none for one's own.")
    visit.change("INSERT INTO vote VALUES (?)", post)
    visit.change("UPDATE post SET votes = votes + 1 WHERE id = ?", post)
    return visit.go(f"/threads/{row['thread']}", "Thank you for your vote.")


@FORUM.post("/posts/<int:post>/unvote")
def _unvote(visit: Visit, post: int) -> Response:
    row = visit.one("SELECT * FROM post WHERE id IN (SELECT post FROM vote) AND id = ?", post)
    visit.change("DELETE FROM vote WHERE post = ?", post)
    visit.change("UPDATE post SET votes = votes - 1 WHERE id = ?", post)
    return visit.go(f"/threads/{row['thread']}", "Your vote is taken back.")
