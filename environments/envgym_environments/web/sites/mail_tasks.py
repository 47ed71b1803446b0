"""What is asked of the mail client: to write, answer, forward, tidy up, and to find something out."""

import re
import sqlite3

import numpy as np

from envgym_environments.web.sites.goals import Do, Goal, check, choose, click, fill, give, pick, press, tries
from envgym_environments.web.sites.mail import FOLDERS, MAIL
from envgym_environments.words import TODAY, some

__all__ = ["MAIL"]

_DAY = TODAY.isoformat()
_SEND = "INSERT INTO message (folder, sender, recipient, day, subject, body, answers) VALUES ('Sent',?,?,?,?,?,?)"
_WORDS = ("Yes, that is fine.", "I am late.", "Please call me.", "Thank you very much.", "See you there.",
          "I have to think about it.", "Bring the blue folder.")  # fmt: skip
_PAPERS = ("agenda", "contract", "directions", "guests", "minutes", "recipe", "timetable")


def _unique(db: sqlite3.Connection, rng: np.random.Generator, where: str = "1") -> sqlite3.Row:
    """A message that its sender and subject tell from all others."""
    rows: list[sqlite3.Row] = db.execute(
        f"SELECT * FROM message m WHERE sender != ?1 AND {where} AND (SELECT COUNT(*) FROM message n WHERE "
        "n.sender = m.sender AND n.subject LIKE m.subject) = 1 ORDER BY id", (MAIL.me,)
    ).fetchall()  # fmt: skip
    return pick(rng, rows)


def _to(row: sqlite3.Row) -> tuple[Do, ...]:
    return fill(f"Search {MAIL.title}", f"{row['sender']} {row['subject']}"), press("Search"), click(row["subject"])


def _said(row: sqlite3.Row) -> str:
    return f"the message '{row['subject']}' from {row['sender']}"


def _words(rng: np.random.Generator) -> str:
    return " ".join(some(rng, _WORDS, 2))


@MAIL.kind("write")
def _write(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Write to somebody whose address is among the contacts."""
    contact = pick(rng, db.execute("SELECT * FROM contact ORDER BY name").fetchall())
    subject, text = pick(rng, ("Tomorrow", "The garden", "A question", "Our trip", "Good news")), _words(rng)
    return Goal(
        f"Write to {contact['name']}, whose address is among your contacts, with the subject '{subject}' and exactly "
        f"these words: {text}",
        (click("Contacts"), click("Write"), fill("To", contact["address"]), fill("Subject", subject),
         fill("Message", text), press("Send message")),
        ((_SEND, (MAIL.me, contact["address"], _DAY, subject, text, None)),),
    )  # fmt: skip


@MAIL.kind("answer")
def _answer(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Answer a message."""
    row, text = _unique(db, rng), _words(rng)
    return Goal(
        f"Answer {_said(row)} with exactly these words: {text}",
        (*_to(row), click("Answer"), fill("Message", text), press("Send message")),
        ((_SEND, (MAIL.me, row["sender"], _DAY, f"Re: {row['subject']}", text, row["id"])),),
    )


@MAIL.kind("forward")
def _forward(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Pass a message on to somebody."""
    row = _unique(db, rng, "sender LIKE 'orders@%'")
    contact = pick(rng, db.execute("SELECT * FROM contact ORDER BY name").fetchall())
    body = f"From {row['sender']}, {row['day']}:\n{row['body']}"
    return Goal(
        f"Forward {_said(row)} to {contact['name']}, whose address is among your contacts. Leave its text as it is.",
        (click("Contacts"), *_to(row), click("Forward"), fill("To", contact["address"]), press("Send message")),
        ((_SEND, (MAIL.me, contact["address"], _DAY, f"Fwd: {row['subject']}", body, None)),),
    )


@MAIL.kind("attach")
def _attach(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Answer a message with a file of one's own."""
    row, text = _unique(db, rng, "sender NOT LIKE 'orders@%'"), _words(rng)
    files = {f"{name}.txt": f"{name}\n{_words(rng)}\n".encode() for name in some(rng, _PAPERS, 3)}
    name = pick(rng, list(files))
    number = db.execute("SELECT MAX(id) + 1 FROM message").fetchone()[0]
    return Goal(
        f"Answer {_said(row)} with exactly these words, and attach your file {name}: {text}",
        (*_to(row), click("Answer"), fill("Message", text), give("Attachment", name), press("Send message")),
        ((_SEND, (MAIL.me, row["sender"], _DAY, f"Re: {row['subject']}", text, row["id"])),
         ("INSERT INTO attachment (message, name, content) VALUES (?,?,?)", (number, name, files[name]))),
        files=files,
    )  # fmt: skip


@MAIL.kind("move")
def _move(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Move a message into a folder and star it."""
    row = _unique(db, rng, "starred = 0 AND folder = 'Inbox'")
    folder = pick(rng, [one for one in FOLDERS[1:4] if one != row["folder"]])
    return Goal(
        f"Star {_said(row)} and move it to the folder {folder}.",
        (*_to(row), press("Star this message"), choose("Move to", folder), press("Move")),
        (("UPDATE message SET starred = 1, folder = ? WHERE id = ?", (folder, row["id"])),),
    )


@MAIL.kind("tidy")
def _tidy(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Move all that a sender wrote from the inbox into a folder."""
    for _ in tries():
        sender = pick(
            rng, db.execute("SELECT DISTINCT sender FROM message WHERE folder = 'Inbox' ORDER BY sender").fetchall()
        )[0]
        rows = db.execute("SELECT * FROM message WHERE sender = ? ORDER BY id DESC LIMIT 20", (sender,)).fetchall()
        chosen = [row for row in rows if row["folder"] == "Inbox"]
        total = db.execute("SELECT COUNT(*) FROM message WHERE (subject || body || sender || recipient) LIKE ?",
                           (f"%{sender}%",)).fetchone()[0]  # fmt: skip
        if 2 <= len(chosen) <= 7 and total <= 20:
            break
    folder = pick(rng, ("Archive", "Receipts", "Trash"))
    return Goal(
        f"Move every message from {sender} that is in the Inbox to the folder {folder}; leave what is elsewhere.",
        (fill(f"Search {MAIL.title}", sender), press("Search"), *(check(f"Select message {row['id']}") for row in chosen),
         choose("Move selected to", folder), press("Move")),
        tuple(("UPDATE message SET folder = ? WHERE id = ?", (folder, row["id"])) for row in chosen),
    )  # fmt: skip


@MAIL.kind("contact")
def _contact(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Add a sender to the contacts."""
    row = _unique(db, rng, "sender LIKE 'orders@%'")
    name = row["sender"].partition("@")[2].partition(".")[0].capitalize()
    return Goal(
        f"Add a contact named {name} with the address of the shop that sent '{row['subject']}'.",
        (fill(f"Search {MAIL.title}", row["subject"]), press("Search"), click("Contacts"), fill("Name", name),
         fill("Address", row["sender"]), press("Add contact")),
        (("INSERT INTO contact VALUES (?,?)", (name, row["sender"])),),
    )  # fmt: skip


@MAIL.kind("look-up")
def _look_up(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Something that stands in a message."""
    row = _unique(db, rng, "body LIKE '% is _____.%' AND sender NOT LIKE 'orders@%'")
    found = re.findall(r" is ([A-H]\d{4})\.", row["body"])[0]
    return Goal(
        f"Which code or word does {_said(row)} tell you? Answer with it alone.", _to(row), answer=str(found)
    )


@MAIL.kind("paid")
def _paid(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """What an order cost."""
    row = _unique(db, rng, "sender LIKE 'orders@%'")
    total = float(re.findall(r"Total: ([\d.]+)", row["body"])[0])
    return Goal(f"What was the total in {_said(row)}?", _to(row), answer=total)


@MAIL.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have all messages shown in which a word stands."""
    word = pick(rng, ("library", "harbour", "station", "museum", "parcel", "platform", "minutes", "album"))
    return Goal(
        f"Search for the word {word} and leave the list of what was found open.",
        (fill(f"Search {MAIL.title}", word), press("Search")),
        shows=f"/search?q={word}",
    )
