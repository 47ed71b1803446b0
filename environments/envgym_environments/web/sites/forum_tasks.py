"""What is asked in the forum: to answer, start, follow, vote, correct, delete, and to find something out."""

import sqlite3

import numpy as np

from envgym_environments.web.sites.forum import BOARDS, FORUM, SORTS
from envgym_environments.web.sites.goals import Do, Goal, choose, click, fill, pick, press, tries
from envgym_environments.words import NOUNS, TODAY, some

__all__ = ["FORUM"]

_DAY = TODAY.isoformat()
_WORDS = ("Good point.", "I would wait for spring.", "Mine is ten years old.", "Does anybody else have this?",
          "I can bring one along.", "Thank you all!", "It rattles when it is cold.", "Where did you get it?")  # fmt: skip


def _words(rng: np.random.Generator) -> str:
    return " ".join(some(rng, _WORDS, 2))


def _threads(db: sqlite3.Connection, where: str) -> list[sqlite3.Row]:
    return db.execute(f"SELECT * FROM thread t WHERE {where} ORDER BY id").fetchall()


def _to(title: str) -> tuple[Do, ...]:
    """How one gets to a thread."""
    return fill(f"Search {FORUM.title}", title), press("Search"), click(title)


@FORUM.kind("reply")
def _reply(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Answer a thread."""
    thread, text = pick(rng, _threads(db, "NOT locked")), _words(rng)
    return Goal(
        f"Reply to the thread '{thread['title']}' with exactly these words: {text}",
        (*_to(thread["title"]), fill("Your reply", text), press("Send reply")),
        (("INSERT INTO post (thread, author, day, text) VALUES (?,?,?,?)", (thread["id"], FORUM.me, _DAY, text)),),
    )


@FORUM.kind("start")
def _start(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Start a thread."""
    board, title, text = pick(rng, BOARDS), f"A question about my {pick(rng, NOUNS).lower()}", _words(rng)
    number = db.execute("SELECT MAX(id) + 1 FROM thread").fetchone()[0]
    return Goal(
        f"Start a thread in the board {board} with the title '{title}' and exactly this text: {text}",
        (click("Boards"), click(board), click("Start a thread"), fill("Title", title), fill("Your post", text),
         press("Start thread")),
        (("INSERT INTO thread VALUES (?,?,?,?,?,0)", (number, board, title, FORUM.me, _DAY)),
         ("INSERT INTO post (thread, author, day, text) VALUES (?,?,?,?)", (number, FORUM.me, _DAY, text))),
    )  # fmt: skip


@FORUM.kind("vote-best")
def _vote_best(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Vote for the post of a thread that has the most votes."""
    for _ in tries():
        thread = pick(rng, _threads(db, "1"))
        posts = db.execute("SELECT * FROM post WHERE thread = ? ORDER BY id", (thread["id"],)).fetchall()
        votes = sorted((post["votes"] for post in posts), reverse=True)
        at = max(range(len(posts)), key=lambda place: posts[place]["votes"])
        if len(posts) >= 3 and votes[0] > votes[1] and posts[at]["author"] != FORUM.me:
            break
    return Goal(
        f"In the thread '{thread['title']}', vote for the post that already has the most votes.",
        (*_to(thread["title"]), press(f"Vote for #{at + 1}")),
        (("INSERT INTO vote VALUES (?)", (posts[at]["id"],)),
         ("UPDATE post SET votes = votes + 1 WHERE id = ?", (posts[at]["id"],))),
    )  # fmt: skip


@FORUM.kind("follow")
def _follow(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Follow all threads that a member started in a board."""
    for _ in tries():
        one = pick(rng, _threads(db, "author != 'robin_v' AND id NOT IN (SELECT thread FROM followed)"))
        rows = _threads(db, f"board = '{one['board']}' AND author = '{one['author']}'")
        if len(rows) <= 3 and not any(
            db.execute("SELECT 1 FROM followed WHERE thread = ?", (row["id"],)).fetchone() for row in rows
        ):
            break
    steps = [step for row in rows for step in (*_to(row["title"]), press("Follow this thread"))]
    return Goal(
        f"Follow every thread that {one['author']} has started in the board {one['board']}.",
        tuple(steps),
        tuple(("INSERT INTO followed VALUES (?)", (row["id"],)) for row in rows),
    )


def _own(db: sqlite3.Connection, rng: np.random.Generator, first: bool) -> tuple[sqlite3.Row, sqlite3.Row, int]:
    """A thread in which one wrote a single post, that post, and its number; first: it may be the thread's first."""
    rows = db.execute(
        "SELECT p.*, (SELECT COUNT(*) FROM post q WHERE q.thread = p.thread AND q.id <= p.id) AS place FROM post p "
        "WHERE author = ?1 AND (SELECT COUNT(*) FROM post q WHERE q.thread = p.thread AND q.author = ?1) = 1 "
        "AND (?2 OR place > 1) ORDER BY id",
        (FORUM.me, first),
    ).fetchall()
    post = pick(rng, rows)
    return _threads(db, f"id = {post['thread']}")[0], post, int(post["place"])


@FORUM.kind("edit")
def _edit(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Replace what one wrote."""
    thread, post, place = _own(db, rng, True)
    text = _words(rng)
    return Goal(
        f"Replace the text of your post in the thread '{thread['title']}' by exactly this: {text}",
        (
            click("My posts"),
            *_to(thread["title"]),
            click(f"Edit #{place}"),
            fill("Your post", text),
            press("Save changes"),
        ),
        (("UPDATE post SET text = ?, edited = 1 WHERE id = ?", (text, post["id"])),),
    )


@FORUM.kind("delete")
def _delete(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Delete what one wrote."""
    thread, post, place = _own(db, rng, False)
    return Goal(
        f"Delete your post in the thread '{thread['title']}'.",
        (*_to(thread["title"]), press(f"Delete #{place}")),
        (("DELETE FROM post WHERE id = ?", (post["id"],)),),
    )


@FORUM.kind("who")
def _who(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Find out who wrote the last post of a thread."""
    thread = pick(rng, _threads(db, "(SELECT COUNT(*) FROM post WHERE thread = t.id) >= 3"))
    author = db.execute(
        "SELECT author FROM post WHERE thread = ? ORDER BY id DESC LIMIT 1", (thread["id"],)
    ).fetchone()[0]
    return Goal(
        f"Who wrote the last post of the thread '{thread['title']}'? Answer with the member's name.",
        _to(thread["title"]),
        answer=str(author),
    )


@FORUM.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have a board shown in another order, of one author or of all."""
    board, sort = pick(rng, BOARDS), pick(rng, list(SORTS)[1:])
    return Goal(
        f"Show the threads of the board {board}, sorted by: {sort}. Leave the first page of that list open.",
        (click("Boards"), click(board), choose("Sort by", sort), press("Apply")),
        shows=f"/boards/{board}?sort={sort.replace(' ', '+')}",
    )
