"""An issue tracker: issues with labels, milestones, assignees, comments and files; a board; changes to many at once."""

import sqlite3

import numpy as np
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import TODAY, date, person, pick, some

__all__ = ["LABELS", "MILESTONES", "PRIORITIES", "PROJECTS", "SORTS", "TRACKER"]

PROJECTS = ("Atlas", "Beacon", "Cobalt", "Drift")
LABELS = ("bug", "docs", "feature", "performance", "security", "ui")
MILESTONES = ("none", "1.0", "1.1", "2.0")
PRIORITIES = ("low", "normal", "high", "urgent")
SORTS = {"Newest": "id DESC", "Oldest": "id", "Title": "title, id", "Most comments": "comments DESC, id"}
_WHAT = ("Crash when saving {}", "{} shows the wrong date", "Slow start with {}", "Document the use of {}",
         "{} ignores its setting", "Add a shortcut for {}", "{} fails without a network", "Wrong total in {}")  # fmt: skip
_PART = ("the calendar", "the export", "large files", "the side bar", "the search", "two accounts", "the report",
         "dark mode", "the importer", "keyboard input", "the print view", "attachments", "the map", "offline mode")  # fmt: skip
_SAY = ("I can reproduce this.", "Only on the second try.", "A fix is on its way.", "Please add the version.",
        "Same here.", "This was better last year.", "Moved to the next milestone.")  # fmt: skip

TRACKER = Site(
    name="tracker",
    title="Tracker",
    me="Robin Vale",
    search="/issues",
    nav={
        "All issues": "/issues",
        "Assigned to me": "/issues?assignee=Robin+Vale&state=open",
        "Board": "/board",
        "Projects": "/",
    },
    schema="""
CREATE TABLE member (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE issue (id INTEGER PRIMARY KEY, project TEXT NOT NULL, title TEXT NOT NULL, body TEXT NOT NULL,
  author TEXT NOT NULL, day TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'open', priority TEXT NOT NULL DEFAULT 'normal',
  assignee TEXT NOT NULL DEFAULT '', milestone TEXT NOT NULL DEFAULT 'none');
CREATE TABLE label (issue INTEGER NOT NULL REFERENCES issue, label TEXT NOT NULL, PRIMARY KEY (issue, label)) WITHOUT ROWID;
CREATE TABLE comment (id INTEGER PRIMARY KEY, issue INTEGER NOT NULL REFERENCES issue, author TEXT NOT NULL,
  day TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX comments ON comment (issue);
CREATE TABLE attachment (id INTEGER PRIMARY KEY, issue INTEGER NOT NULL REFERENCES issue, author TEXT NOT NULL,
  day TEXT NOT NULL, name TEXT NOT NULL, content BLOB NOT NULL);
""",
    templates={
        "home": """<ul>{% for row in rows %}<li><a href="/issues?project={{ row.project }}">{{ row.project }}</a>
<span class="soft">{{ row.open }} open of {{ row.number }}</span></li>{% endfor %}</ul>""",
        "issues": """<p><a href="/new">New issue</a></p><form class="row" action="/issues">{{ text("Words", "q", args.q, "search") }}
{{ pick("Project", "project", projects, args.project, "All") }}{{ pick("State", "state", ["open", "closed"], args.state, "All") }}
{{ pick("Label", "label", labels, args.label, "All") }}{{ pick("Milestone", "milestone", milestones, args.milestone, "All") }}
{{ pick("Assignee", "assignee", members, args.assignee, "Anybody") }}{{ pick("Priority", "priority", priorities, args.priority, "All") }}
{{ pick("Sort by", "sort", sorts, args.sort) }}<button>Apply</button></form>
<form method="post" action="/bulk"><table><thead><tr><th><label><input type="checkbox" data-all="issue"> All</label></th>
<th>Issue</th><th>Project</th><th>State</th><th>Priority</th><th>Assignee</th><th>Milestone</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><input type="checkbox" name="issue" value="{{ row.id }}"
aria-label="Select issue {{ row.id }}"></td><td><a href="/issues/{{ row.id }}">#{{ row.id }} {{ row.title }}</a></td>
<td>{{ row.project }}</td><td>{{ row.state }}</td><td>{{ row.priority }}</td><td>{{ row.assignee or "-" }}</td>
<td>{{ row.milestone }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, args) }}
<p class="row">{{ pick("With the selected", "With the selected", ["close", "reopen"]) }}<button>Do it</button></p></form>""",
        "issue": """<p>{{ i.project }}, by {{ i.author }} on {{ i.day }}. State: {{ i.state }}. Priority: {{ i.priority }}.
Assignee: {{ i.assignee or "nobody" }}. Milestone: {{ i.milestone }}. Labels: {% for l in has %}<span class="tag">{{ l }}</span>
{% else %}none{% endfor %}</p><pre>{{ i.body }}</pre>
{% if i.state == "open" %}{{ act("/issues/" ~ i.id ~ "/state", "Close issue", {"to": "closed"}) }}
{% else %}{{ act("/issues/" ~ i.id ~ "/state", "Reopen issue", {"to": "open"}) }}{% endif %}
<form class="row" method="post" action="/issues/{{ i.id }}/edit">{{ pick("Priority", "Priority", priorities, i.priority) }}
{{ pick("Assignee", "Assignee", members, i.assignee, "nobody") }}{{ pick("Milestone", "Milestone", milestones, i.milestone) }}
<button>Save</button></form>
<form class="row" method="post" action="/issues/{{ i.id }}/label">{{ pick("Label", "Label", labels) }}
<button name="do" value="add">Add label</button><button name="do" value="remove">Remove label</button></form>
<h2>Files</h2>{% for f in files %}<p><a href="/files/{{ f.id }}">{{ f.name }}</a> by {{ f.author }}, {{ f.day }}</p>
{% else %}<p class="soft">None.</p>{% endfor %}
<form class="row" method="post" action="/issues/{{ i.id }}/attach" enctype="multipart/form-data">{{ file("File", "File") }}
<button>Attach file</button></form>
<h2>Comments</h2>{% for c in comments %}<article><p><b>{{ c.author }}</b> {{ c.day }}</p><pre>{{ c.text }}</pre></article>
{% else %}<p class="soft">None.</p>{% endfor %}
<form method="post" action="/issues/{{ i.id }}/comment">{{ area("Your comment", "Your comment") }}<button>Send comment</button></form>""",
        "file": """<p>Of <a href="/issues/{{ f.issue }}">issue #{{ f.issue }}</a>, by {{ f.author }} on {{ f.day }}.</p><pre>{{ text }}</pre>""",
        "board": """<form class="row" action="/board">{{ pick("Project", "project", projects, project) }}<button>Show board</button></form>
<div class="board">{% for m in milestones %}<section class="column" aria-label="Milestone {{ m }}" data-column="{{ m }}"><h2>{{ m }}</h2>
{% for row in rows if row.milestone == m %}<article class="card" draggable="true" aria-label="Card #{{ row.id }}" data-card="{{ row.id }}"
data-entry="{{ row.id }}"><a href="/issues/{{ row.id }}" draggable="false">#{{ row.id }} {{ row.title }}</a>
<p class="more">Priority: {{ row.priority }}. Assignee: {{ row.assignee or "nobody" }}.</p>
<form method="post" action="/issues/{{ row.id }}/plan">{{ pick("Milestone of #" ~ row.id, "Milestone", milestones, m) }}
<button class="small">Plan #{{ row.id }}</button></form></article>{% endfor %}</section>{% endfor %}</div>""",
        "new": """<form method="post" action="/new">{{ pick("Project", "Project", projects) }}{{ text("Title", "Title") }}
{{ area("Description", "Description") }}{{ pick("Priority", "Priority", priorities, "normal") }}
{{ pick("Label", "Label", labels, "", "none") }}<button>Create issue</button></form>""",
    },
)


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """90 issues of four projects with comments, by eight members."""
    members = sorted({TRACKER.me, *(person(rng) for _ in range(7))})
    db.executemany("INSERT INTO member VALUES (?)", [(name,) for name in members])
    titles = some(
        rng, [(what.format(part)[:1].upper() + what.format(part)[1:]) for what in _WHAT for part in _PART], 90
    )
    for number, (day, title) in enumerate(zip(sorted(date(rng, -500, -1) for _ in titles), titles, strict=True), 1):
        state, who = pick(rng, ("open", "open", "closed")), pick(rng, ("", *members))
        body = f"Seen on {pick(rng, ('Linux', 'Windows', 'a phone'))}. {pick(rng, _SAY)}"
        db.execute("INSERT INTO issue VALUES (?,?,?,?,?,?,?,?,?,?)", (number, pick(rng, PROJECTS), title, body,
                   pick(rng, members), day, state, pick(rng, PRIORITIES), who, pick(rng, MILESTONES)))  # fmt: skip
        for label in some(rng, LABELS, int(rng.integers(0, 3))):
            db.execute("INSERT INTO label VALUES (?,?)", (number, label))
        for _ in range(int(rng.integers(0, 4))):
            comment = (number, pick(rng, members), date(rng), pick(rng, _SAY))
            db.execute("INSERT INTO comment (issue, author, day, text) VALUES (?,?,?,?)", comment)


TRACKER.fill = _fill


def _members(visit: Visit) -> list[str]:
    return [row[0] for row in visit.all("SELECT name FROM member ORDER BY name")]


def _lists(visit: Visit) -> dict[str, object]:
    return {"projects": PROJECTS, "labels": LABELS, "milestones": MILESTONES, "priorities": PRIORITIES,
            "members": _members(visit), "sorts": SORTS}  # fmt: skip


@TRACKER.get("/")
def _home(visit: Visit) -> Response:
    rows = visit.all("SELECT project, COUNT(*) AS number, SUM(state = 'open') AS open FROM issue GROUP BY project")
    return visit.show("home", title="Projects", rows=rows)


@TRACKER.get("/issues")
def _issues(visit: Visit) -> Response:
    equal = ("project", "state", "milestone", "assignee", "priority")
    args = {name: visit.arg(name) for name in ("q", *equal, "label", "sort")}
    where, given = ["1"], []
    for word in args["q"].split()[:8]:
        where.append("title LIKE ?")
        given.append(f"%{word}%")
    for name in equal:
        if args[name]:
            where.append(f"{name} = ?")
            given.append(args[name])
    if args["label"]:
        where.append("id IN (SELECT issue FROM label WHERE label = ?)")
        given.append(args["label"])
    order = SORTS.get(args["sort"], SORTS["Newest"])
    listed = visit.paged(
        "SELECT *, (SELECT COUNT(*) FROM comment WHERE issue = issue.id) AS comments FROM issue "
        f"WHERE {' AND '.join(where)} ORDER BY {order}", *given
    )  # fmt: skip
    return visit.show("issues", title="Issues", list=listed, args=args, **_lists(visit))


@TRACKER.get("/issues/<int:issue>")
def _issue(visit: Visit, issue: int) -> Response:
    row = visit.one("SELECT * FROM issue WHERE id = ?", issue)
    has = [one[0] for one in visit.all("SELECT label FROM label WHERE issue = ? ORDER BY label", issue)]
    comments = visit.all("SELECT * FROM comment WHERE issue = ? ORDER BY id", issue)
    files = visit.all("SELECT * FROM attachment WHERE issue = ? ORDER BY id", issue)
    title = f"#{issue} {row['title']}"
    return visit.show("issue", title=title, i=row, has=has, comments=comments, files=files, **_lists(visit))


@TRACKER.post("/issues/<int:issue>/attach")
def _attach(visit: Visit, issue: int) -> Response:
    visit.one("SELECT 1 FROM issue WHERE id = ?", issue)
    if (given := visit.file("File")) is None:
        raise Refused("choose a file first.")
    visit.change("INSERT INTO attachment (issue, author, day, name, content) VALUES (?,?,?,?,?)",
                 issue, TRACKER.me, TODAY.isoformat(), *given)  # fmt: skip
    return visit.go(f"/issues/{issue}", f"{given[0]} is attached.")


@TRACKER.get("/files/<int:file>")
def _file(visit: Visit, file: int) -> Response:
    row = visit.one("SELECT * FROM attachment WHERE id = ?", file)
    return visit.show("file", title=row["name"], f=row, text=row["content"].decode("utf-8", "replace"))


@TRACKER.get("/board")
def _board(visit: Visit) -> Response:
    project = visit.arg("project") if visit.arg("project") in PROJECTS else PROJECTS[0]
    rows = visit.all("SELECT * FROM issue WHERE project = ? AND state = 'open' ORDER BY id", project)
    return visit.show("board", title=f"Board of {project}", project=project, rows=rows, **_lists(visit))


@TRACKER.post("/issues/<int:issue>/plan")
def _plan(visit: Visit, issue: int) -> Response:
    row, milestone = visit.one("SELECT * FROM issue WHERE id = ?", issue), visit.choice("Milestone", MILESTONES)
    visit.change("UPDATE issue SET milestone = ? WHERE id = ?", milestone, issue)
    return visit.go(f"/board?project={row['project']}", f"#{issue} is planned for {milestone}.")


@TRACKER.post("/issues/<int:issue>/state")
def _state(visit: Visit, issue: int) -> Response:
    visit.one("SELECT 1 FROM issue WHERE id = ?", issue)
    visit.change("UPDATE issue SET state = ? WHERE id = ?", visit.choice("to", ("open", "closed")), issue)
    return visit.go(f"/issues/{issue}", "Saved.")


@TRACKER.post("/issues/<int:issue>/edit")
def _edit(visit: Visit, issue: int) -> Response:
    visit.one("SELECT 1 FROM issue WHERE id = ?", issue)
    who = visit.optional("Assignee")
    if who and who not in _members(visit):
        raise Refused(f"there is no member {who[:60]!r}.")
    visit.change("UPDATE issue SET priority = ?, assignee = ?, milestone = ? WHERE id = ?",
                 visit.choice("Priority", PRIORITIES), who, visit.choice("Milestone", MILESTONES), issue)  # fmt: skip
    return visit.go(f"/issues/{issue}", "Saved.")


@TRACKER.post("/issues/<int:issue>/label")
def _label(visit: Visit, issue: int) -> Response:
    visit.one("SELECT 1 FROM issue WHERE id = ?", issue)
    label = visit.choice("Label", LABELS)
    if visit.choice("do", ("add", "remove")) == "add":
        visit.change("INSERT OR IGNORE INTO label VALUES (?,?)", issue, label)
    else:
        visit.change("DELETE FROM label WHERE issue = ? AND label = ?", issue, label)
    return visit.go(f"/issues/{issue}", "Saved.")


@TRACKER.post("/issues/<int:issue>/comment")
def _comment(visit: Visit, issue: int) -> Response:
    visit.one("SELECT 1 FROM issue WHERE id = ?", issue)
    visit.change("INSERT INTO comment (issue, author, day, text) VALUES (?,?,?,?)",
                 issue, TRACKER.me, TODAY.isoformat(), visit.field("Your comment"))  # fmt: skip
    return visit.go(f"/issues/{issue}", "Your comment is there.")


@TRACKER.post("/bulk")
def _bulk(visit: Visit) -> Response:
    chosen = [int(one) for one in visit.request.form.getlist("issue") if one.isdecimal() and len(one) < 10]
    if not chosen:
        raise Refused("nothing is selected.")
    state = {"close": "closed", "reopen": "open"}[visit.choice("With the selected", ("close", "reopen"))]
    for issue in chosen:
        visit.change("UPDATE issue SET state = ? WHERE id = ?", state, issue)
    return visit.go("/issues", f"{len(chosen)} issues were changed.")


@TRACKER.get("/new")
def _new(visit: Visit) -> Response:
    return visit.show("new", title="New issue", **_lists(visit))


@TRACKER.post("/new")
def _create(visit: Visit) -> Response:
    label = visit.optional("Label")
    values = (visit.choice("Project", PROJECTS), visit.field("Title", most=120), visit.field("Description"),
              TRACKER.me, TODAY.isoformat(), visit.choice("Priority", PRIORITIES))  # fmt: skip
    issue = visit.change(
        "INSERT INTO issue (project, title, body, author, day, priority) VALUES (?,?,?,?,?,?)", *values
    )
    if label:
        visit.change("INSERT INTO label VALUES (?,?)", issue, visit.choice("Label", LABELS))
    return visit.go(f"/issues/{issue}", "The issue is created.")
