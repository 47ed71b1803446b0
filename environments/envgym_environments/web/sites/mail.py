"""A mail client: folders, search, reading, writing, answering, forwarding, attachments, moving and deleting many."""

import sqlite3

import numpy as np
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import TODAY, date, email, person, pick, product, some

__all__ = ["FOLDERS", "MAIL"]

FOLDERS = ("Inbox", "Archive", "Travel", "Receipts", "Sent", "Trash")
_ME = "robin.vale@post.example"
_TALK = (
    ("Lunch on {day}?", "Shall we meet at {time}? I will be at the {place}."),
    ("Minutes of {day}", "We agreed on {number} points. The next meeting is at {time}."),
    ("Keys for the {place}", "The code of the door is {code}. Please do not pass it on."),
    ("Photos from the {place}", "There are {number} of them. The album's word is {code}."),
    ("Your parcel", "It waits at the {place} until {time}. The number is {code}."),
    ("Train to {town}", "We leave at {time} from platform {number}. The booking is {code}."),
)
_PLACES = ("library", "harbour", "station", "old mill", "market", "museum")
_TOWNS = ("Ghent", "Porto", "Graz", "Riga", "Lyon", "Split")

MAIL = Site(
    name="mail",
    title="Postbox",
    me=_ME,
    search="/search",
    nav={"Write": "/write", "Inbox": "/folders/Inbox", "Folders": "/", "Contacts": "/contacts"},
    schema="""
CREATE TABLE contact (name TEXT PRIMARY KEY, address TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE message (id INTEGER PRIMARY KEY, folder TEXT NOT NULL, sender TEXT NOT NULL, recipient TEXT NOT NULL,
  day TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL, answers INTEGER, starred INTEGER NOT NULL DEFAULT 0);
CREATE INDEX folders ON message (folder);
CREATE TABLE attachment (id INTEGER PRIMARY KEY, message INTEGER NOT NULL REFERENCES message ON DELETE CASCADE,
  name TEXT NOT NULL, content BLOB NOT NULL);
""",
    templates={
        "home": """<ul>{% for one in folders %}<li><a href="/folders/{{ one }}">{{ one }}</a>
<span class="soft">{{ counts.get(one, 0) }} messages</span></li>{% endfor %}</ul>""",
        "list": """<label>Filter these rows <input data-filter="#messages"></label>
<form method="post" action="/bulk"><table id="messages"><thead><tr><th><label><input type="checkbox" data-all="message"> All</label></th>
<th>Subject</th><th>From</th><th>To</th><th>Day</th></tr></thead><tbody>{% for row in list.rows %}
<tr data-entry="{{ row.id }}"><td><input type="checkbox" name="message" value="{{ row.id }}" aria-label="Select message {{ row.id }}">
{{ "starred" if row.starred else "" }}</td><td><a href="/messages/{{ row.id }}">{{ row.subject }}</a></td><td>{{ row.sender }}</td>
<td>{{ row.recipient }}</td><td>{{ row.day }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, args) }}
<p class="row">{{ pick("Move selected to", "Move selected to", folders) }}<button>Move</button></p></form>""",
        "message": """<p>From {{ m.sender }} to {{ m.recipient }}, {{ m.day }}. In <a href="/folders/{{ m.folder }}">{{ m.folder }}</a>.
{{ "Starred." if m.starred else "" }}</p><pre>{{ m.body }}</pre>
{% for f in files %}<p>Attachment: <a href="/attachments/{{ f.id }}">{{ f.name }}</a></p>{% endfor %}
<p><a href="/write?answer={{ m.id }}">Answer</a> | <a href="/write?forward={{ m.id }}">Forward</a></p>
{{ act("/messages/" ~ m.id ~ "/star", "Take the star away" if m.starred else "Star this message") }}
{{ act("/messages/" ~ m.id ~ "/delete", "Delete this message") }}
<form class="row" method="post" action="/messages/{{ m.id }}/move">{{ pick("Move to", "Move to", folders, m.folder) }}<button>Move</button></form>""",
        "attachment": """<p>Of <a href="/messages/{{ f.message }}">this message</a>.</p><pre>{{ text }}</pre>""",
        "write": """<form method="post" action="/write" enctype="multipart/form-data"><input type="hidden" name="answers" value="{{ answers }}">
<input type="hidden" name="forwards" value="{{ forwards }}">
{{ text("To", "To", to) }}{{ text("Subject", "Subject", subject) }}{{ area("Message", "Message", body) }}
{{ file("Attachment", "Attachment") }}<button>Send message</button></form>""",
        "contacts": """<table><thead><tr><th>Name</th><th>Address</th></tr></thead><tbody>{% for row in rows %}
<tr data-entry="{{ row.name }}"><td>{{ row.name }}</td><td>{{ row.address }}</td></tr>{% endfor %}</tbody></table>
<h2>A new contact</h2><form class="row" method="post" action="/contacts">{{ text("Name", "Name") }}{{ text("Address", "Address") }}
<button>Add contact</button></form>""",
    },
)


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """15 contacts and 120 messages: letters of people, receipts of shops, some sent, some in folders."""
    people = {name: email(name, rng) for name in sorted({person(rng) for _ in range(15)})}
    db.executemany("INSERT INTO contact VALUES (?,?)", people.items())
    shops = [f"orders@{word}.example" for word in ("copperpot", "fernhill", "blueboat", "readmore")]
    for day in sorted(date(rng, -200, -1) for _ in range(120)):
        sender, recipient, folder = (
            pick(rng, list(people.values())),
            _ME,
            pick(rng, ("Inbox", "Inbox", "Inbox", "Archive")),
        )
        if rng.random() < 0.3:
            sender, folder = pick(rng, shops), pick(rng, ("Inbox", "Inbox", "Receipts"))
            thing, code = product(rng), int(rng.integers(10_000, 99_999))
            subject, body = f"Your order {code}", f"1 x {thing}\nTotal: {int(rng.integers(9, 300))}.50\nThank you!"
        else:
            subject, body = (
                part.format(day=pick(rng, ("Monday", "Tuesday", "Friday", "Sunday")), place=pick(rng, _PLACES),
                            time=f"{int(rng.integers(8, 20))}:{pick(rng, ('00', '15', '30'))}", town=pick(rng, _TOWNS),
                            number=int(rng.integers(2, 14)), code=f"{pick(rng, 'ABCDEFGH')}{int(rng.integers(1000, 9999))}")
                for part in pick(rng, _TALK)
            )  # fmt: skip
            if rng.random() < 0.12:
                sender, recipient, folder = _ME, sender, "Sent"
        db.execute("INSERT INTO message (folder, sender, recipient, day, subject, body, starred) VALUES (?,?,?,?,?,?,?)",
                   (folder, sender, recipient, day, subject, body, int(rng.random() < 0.1)))  # fmt: skip
    for number in some(rng, range(1, 121), 4):
        db.execute("UPDATE message SET folder = 'Trash' WHERE id = ? AND folder = 'Inbox'", (number,))


MAIL.fill = _fill


@MAIL.get("/")
def _home(visit: Visit) -> Response:
    counts = {row[0]: row[1] for row in visit.all("SELECT folder, COUNT(*) FROM message GROUP BY folder")}
    return visit.show("home", title="Folders", folders=FOLDERS, counts=counts)


@MAIL.get("/folders/<folder>")
def _folder(visit: Visit, folder: str) -> Response:
    listed = visit.paged("SELECT * FROM message WHERE folder = ? ORDER BY id DESC", folder)
    return visit.show("list", title=folder, list=listed, args={}, folders=FOLDERS)


@MAIL.get("/search")
def _search(visit: Visit) -> Response:
    words = visit.arg("q").split()[:8]
    where = (
        " AND ".join(["(subject || ' ' || body || ' ' || sender || ' ' || recipient) LIKE ?"] * len(words)) or "1"
    )
    listed = visit.paged(f"SELECT * FROM message WHERE {where} ORDER BY id DESC", *(f"%{word}%" for word in words))
    return visit.show("list", title="Search", list=listed, args={"q": visit.arg("q")}, folders=FOLDERS)


@MAIL.get("/contacts")
def _contacts(visit: Visit) -> Response:
    return visit.show("contacts", title="Contacts", rows=visit.all("SELECT * FROM contact ORDER BY name"))


@MAIL.post("/contacts")
def _add(visit: Visit) -> Response:
    name, address = visit.field("Name", most=80), _address(visit.field("Address", most=120))
    if visit.all("SELECT 1 FROM contact WHERE name = ?", name):
        raise Refused(f"there is a contact {name!r} already.")
    visit.change("INSERT INTO contact VALUES (?,?)", name, address)
    return visit.go("/contacts", "The contact is added.")


def _address(text: str) -> str:
    name, at, host = text.partition("@")
    if not (name and at and "." in host) or " " in text:
        raise Refused(f"{text[:80]!r} is no address.")
    return text


@MAIL.get("/messages/<int:message>")
def _message(visit: Visit, message: int) -> Response:
    row = visit.one("SELECT * FROM message WHERE id = ?", message)
    files = visit.all("SELECT * FROM attachment WHERE message = ? ORDER BY id", message)
    return visit.show("message", title=row["subject"], m=row, folders=FOLDERS, files=files)


@MAIL.get("/attachments/<int:attachment>")
def _attachment(visit: Visit, attachment: int) -> Response:
    row = visit.one("SELECT * FROM attachment WHERE id = ?", attachment)
    return visit.show("attachment", title=row["name"], f=row, text=row["content"].decode("utf-8", "replace"))


@MAIL.post("/messages/<int:message>/star")
def _star(visit: Visit, message: int) -> Response:
    visit.one("SELECT 1 FROM message WHERE id = ?", message)
    visit.change("UPDATE message SET starred = 1 - starred WHERE id = ?", message)
    return visit.go(f"/messages/{message}", "Saved.")


@MAIL.post("/messages/<int:message>/move")
def _move(visit: Visit, message: int) -> Response:
    visit.one("SELECT 1 FROM message WHERE id = ?", message)
    folder = visit.choice("Move to", FOLDERS)
    visit.change("UPDATE message SET folder = ? WHERE id = ?", folder, message)
    return visit.go(f"/messages/{message}", f"Moved to {folder}.")


@MAIL.post("/messages/<int:message>/delete")
def _delete(visit: Visit, message: int) -> Response:
    folder = visit.value("SELECT folder FROM message WHERE id = ?", message)
    if folder == "Trash":
        visit.change("DELETE FROM message WHERE id = ?", message)
        return visit.go("/folders/Trash", "Deleted for good.")
    visit.change("UPDATE message SET folder = 'Trash' WHERE id = ?", message)
    return visit.go(f"/folders/{folder}", "Moved to Trash.")


@MAIL.post("/bulk")
def _bulk(visit: Visit) -> Response:
    chosen = [int(one) for one in visit.request.form.getlist("message") if one.isdecimal() and len(one) < 10]
    folder = visit.choice("Move selected to", FOLDERS)
    if not chosen:
        raise Refused("nothing is selected.")
    for message in chosen:
        visit.change("UPDATE message SET folder = ? WHERE id = ?", folder, message)
    return visit.go(f"/folders/{folder}", f"{len(chosen)} messages were moved.")


@MAIL.get("/write")
def _write(visit: Visit) -> Response:
    names = {"to": "", "subject": "", "body": "", "answers": "", "forwards": ""}
    if (number := visit.number("answer")) is not None:
        row = visit.one("SELECT * FROM message WHERE id = ?", number)
        names |= {"to": row["sender"], "subject": f"Re: {row['subject']}", "answers": str(number)}
    elif (number := visit.number("forward")) is not None:
        row = visit.one("SELECT * FROM message WHERE id = ?", number)
        names |= {
            "subject": f"Fwd: {row['subject']}",
            "forwards": str(number),
            "body": f"From {row['sender']}, {row['day']}:\n{row['body']}",
        }
    return visit.show("write", title="Write", **names)


@MAIL.post("/write")
def _send(visit: Visit) -> Response:
    to, subject, body = (
        _address(visit.field("To", most=120)),
        visit.field("Subject", most=200),
        visit.field("Message"),
    )
    answers, forwards = (
        visit.amount(name, 1, 10**8) if visit.optional(name) else None for name in ("answers", "forwards")
    )
    given = visit.file("Attachment")
    number = visit.change("INSERT INTO message (folder, sender, recipient, day, subject, body, answers) VALUES (?,?,?,?,?,?,?)",
                          "Sent", _ME, to, TODAY.isoformat(), subject, body, answers)  # fmt: skip
    attach = "INSERT INTO attachment (message, name, content)"
    visit.change(
        f"{attach} SELECT ?, name, content FROM attachment WHERE message = ? ORDER BY id", number, forwards
    )
    if given is not None:
        visit.change(f"{attach} VALUES (?,?,?)", number, *given)
    return visit.go(f"/messages/{number}", "Your message is sent.")
