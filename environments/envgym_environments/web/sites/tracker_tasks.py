"""What is asked in the tracker: to report, sort out, assign, close, and to find something out."""

import sqlite3
from urllib.parse import urlencode

import numpy as np

from envgym_environments.web.sites.goals import Do, Goal, check, choose, click, fill, give, pick, press, tries
from envgym_environments.web.sites.tracker import LABELS, MILESTONES, PRIORITIES, PROJECTS, SORTS, TRACKER
from envgym_environments.words import TODAY, some

__all__ = ["TRACKER"]

_DAY = TODAY.isoformat()
_WORDS = ("It happens every morning.", "The log is empty.", "Version 3.2 was fine.", "A restart helps.",
          "Customers ask for it.", "I will look at it on Monday.", "See the picture.")  # fmt: skip


_FILES = ("crash.log", "settings.txt", "steps.txt", "trace.log", "times.csv", "network.log")


def _words(rng: np.random.Generator) -> str:
    return " ".join(some(rng, _WORDS, 2))


def _issue(db: sqlite3.Connection, rng: np.random.Generator, where: str = "1") -> sqlite3.Row:
    rows: list[sqlite3.Row] = db.execute(f"SELECT * FROM issue WHERE {where} ORDER BY id").fetchall()
    return pick(rng, rows)


def _to(issue: sqlite3.Row) -> tuple[Do, ...]:
    return (
        fill(f"Search {TRACKER.title}", issue["title"]),
        press("Search"),
        click(f"#{issue['id']} {issue['title']}"),
    )


@TRACKER.kind("report")
def _report(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Create an issue with all that belongs to it."""
    project, priority, label, text = pick(rng, PROJECTS), pick(rng, PRIORITIES), pick(rng, LABELS), _words(rng)
    title = f"{pick(rng, ('Login', 'Sync', 'Undo', 'Zoom', 'Backup', 'Update'))} {pick(rng, ('is stuck', 'loses data', 'needs a test', 'is too slow'))}"
    number = db.execute("SELECT MAX(id) + 1 FROM issue").fetchone()[0]
    return Goal(
        f"Create an issue in the project {project} with the title '{title}', the description '{text}', "
        f"priority {priority} and the label {label}.",
        (click("All issues"), click("New issue"), choose("Project", project), fill("Title", title),
         fill("Description", text), choose("Priority", priority), choose("Label", label), press("Create issue")),
        (("INSERT INTO issue (id, project, title, body, author, day, priority) VALUES (?,?,?,?,?,?,?)",
          (number, project, title, text, TRACKER.me, _DAY, priority)),
         ("INSERT INTO label VALUES (?,?)", (number, label))),
    )  # fmt: skip


@TRACKER.kind("triage")
def _triage(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Give an issue an assignee, a priority and a milestone."""
    issue = _issue(db, rng, "state = 'open'")
    members = [row[0] for row in db.execute("SELECT name FROM member ORDER BY name")]
    who = pick(rng, [name for name in members if name != issue["assignee"]])
    priority = pick(rng, [one for one in PRIORITIES if one != issue["priority"]])
    milestone = pick(rng, MILESTONES)
    return Goal(
        f"Assign the issue '{issue['title']}' to {who}, with priority {priority} and milestone {milestone}.",
        (*_to(issue), choose("Priority", priority), choose("Assignee", who), choose("Milestone", milestone), press("Save")),
        (("UPDATE issue SET assignee = ?, priority = ?, milestone = ? WHERE id = ?",
          (who, priority, milestone, issue["id"])),),
    )  # fmt: skip


@TRACKER.kind("close")
def _close(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Close an issue and say why."""
    issue, text = _issue(db, rng, "state = 'open'"), _words(rng)
    return Goal(
        f"Comment on the issue '{issue['title']}' with exactly these words: {text} Then close it.",
        (*_to(issue), fill("Your comment", text), press("Send comment"), press("Close issue")),
        (("INSERT INTO comment (issue, author, day, text) VALUES (?,?,?,?)", (issue["id"], TRACKER.me, _DAY, text)),
         ("UPDATE issue SET state = 'closed' WHERE id = ?", (issue["id"],))),
    )  # fmt: skip


@TRACKER.kind("attach")
def _attach(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Give an issue a file of one's own."""
    issue = _issue(db, rng, "state = 'open'")
    files = {name: _log(name, rng) for name in some(rng, _FILES, 3)}
    name = pick(rng, list(files))
    return Goal(
        f"Attach your file {name} to the issue '{issue['title']}'.",
        (*_to(issue), give("File", name), press("Attach file")),
        (("INSERT INTO attachment (issue, author, day, name, content) VALUES (?,?,?,?,?)",
          (issue["id"], TRACKER.me, _DAY, name, files[name])),),
        files=files,
    )  # fmt: skip


def _log(name: str, rng: np.random.Generator) -> bytes:
    """What a file of somebody who reports an issue has in it."""
    said = ("started", "loaded", "waited", "retried", "failed", "stopped")
    rows = (f"{number},{pick(rng, said)},{int(rng.integers(1, 900))} ms\n" for number in range(1, 9))
    return f"{name}\n{''.join(rows)}".encode()


@TRACKER.kind("plan")
def _plan(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Move a card of the board to another column."""
    issue = _issue(db, rng, "state = 'open'")
    milestone = pick(rng, [one for one in MILESTONES if one != issue["milestone"]])
    number = issue["id"]
    return Goal(
        f"On the board of the project {issue['project']}, move the issue '{issue['title']}' to the milestone {milestone}.",
        (click("Board"), choose("Project", issue["project"]), press("Show board"),
         choose(f"Milestone of #{number}", milestone), press(f"Plan #{number}")),
        (("UPDATE issue SET milestone = ? WHERE id = ?", (milestone, number)),),
    )  # fmt: skip


@TRACKER.kind("close-many")
def _close_many(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Close all open issues of a project with a label."""
    for _ in tries():
        project, label = pick(rng, PROJECTS), pick(rng, LABELS)
        rows = db.execute(
            "SELECT id FROM issue WHERE project = ? AND state = 'open' AND id IN (SELECT issue FROM label WHERE label = ?) "
            "ORDER BY id", (project, label),
        ).fetchall()  # fmt: skip
        if 2 <= len(rows) <= 6:
            break
    return Goal(
        f"Close every open issue of the project {project} that has the label {label}.",
        (click("All issues"), choose("Project", project), choose("State", "open"), choose("Label", label), press("Apply"),
         *(check(f"Select issue {row['id']}") for row in rows), choose("With the selected", "close"), press("Do it")),
        tuple(("UPDATE issue SET state = 'closed' WHERE id = ?", (row["id"],)) for row in rows),
    )  # fmt: skip


@TRACKER.kind("label")
def _label(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Replace a label by another."""
    for _ in tries():
        issue = _issue(db, rng)
        has = [
            row[0] for row in db.execute("SELECT label FROM label WHERE issue = ? ORDER BY label", (issue["id"],))
        ]
        if has:
            break
    old, new = pick(rng, has), pick(rng, [one for one in LABELS if one not in has])
    return Goal(
        f"On the issue '{issue['title']}', replace the label {old} by {new}.",
        (*_to(issue), choose("Label", old), press("Remove label"), choose("Label", new), press("Add label")),
        (("DELETE FROM label WHERE issue = ? AND label = ?", (issue["id"], old)),
         ("INSERT INTO label VALUES (?,?)", (issue["id"], new))),
    )  # fmt: skip


def _filter(db: sqlite3.Connection, rng: np.random.Generator, least: int, most: int) -> tuple[dict[str, str], int]:
    """A filter on project, state and one thing more, that finds so many."""
    among = {"label": LABELS, "milestone": MILESTONES[1:], "priority": PRIORITIES}
    for _ in tries():
        name = pick(rng, list(among))
        chosen = {
            "project": pick(rng, PROJECTS),
            "state": pick(rng, ("open", "closed")),
            name: pick(rng, among[name]),
        }
        test = "id IN (SELECT issue FROM label WHERE label = ?)" if name == "label" else f"{name} = ?"
        sql = f"SELECT COUNT(*) FROM issue WHERE project = ? AND state = ? AND {test}"
        found = int(db.execute(sql, tuple(chosen.values())).fetchone()[0])
        if least <= found <= most:
            return chosen, found
    raise AssertionError("tries() raises at its end")


def _said(chosen: dict[str, str]) -> str:
    name, value = list(chosen.items())[-1]
    return f"{chosen['state']} issues of the project {chosen['project']} with the {name} {value}"


def _choices(chosen: dict[str, str]) -> tuple[Do, ...]:
    return (click("All issues"), *(choose(name.capitalize(), value) for name, value in chosen.items()))


@TRACKER.kind("count")
def _count(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """How many issues there are of some sort."""
    chosen, found = _filter(db, rng, 1, 30)
    return Goal(f"How many {_said(chosen)} are there?", (*_choices(chosen), press("Apply")), answer=found)


@TRACKER.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have a filtered, sorted list shown."""
    chosen, _ = _filter(db, rng, 2, 20)
    sort = pick(rng, list(SORTS)[1:])
    return Goal(
        f"Show the {_said(chosen)}, sorted by: {sort}. Leave that list open.",
        (*_choices(chosen), choose("Sort by", sort), press("Apply")),
        shows=f"/issues?{urlencode(chosen | {'sort': sort})}",
    )
