"""What databases are about: tables, columns and references of ten domains, in a notation that is read here.

A line is one table: ``name: > parent, column kind arguments``. Kinds are those of `envgym_environments.words`
and `int LO HI`, `real LO HI`, `pick a|b|c`, `date`. A column marked ``?`` may be left out, so that two
databases of one domain differ; `draw_schema` then writes all names in one of several habits.
"""

import re
from dataclasses import dataclass

import numpy as np

from envgym_environments.words import pick, some

__all__ = ["DOMAINS", "Column", "Schema", "Table", "draw_schema"]


@dataclass(frozen=True, slots=True)
class Column:
    """name: as in the database. kind: what is drawn, with its arguments. parent: the table that it refers to."""

    name: str
    kind: str
    arguments: tuple[str, ...] = ()
    parent: str = ""

    @property
    def sql_type(self) -> str:
        """Its type in SQL."""
        return {"int": "INTEGER", "key": "INTEGER", "real": "REAL"}.get(self.kind, "TEXT")

    @property
    def numeric(self) -> bool:
        """Whether sums and averages mean something."""
        return self.kind in ("int", "real")

    @property
    def words(self) -> str:
        """The name as one says it."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).replace("_", " ").lower()


@dataclass(frozen=True, slots=True)
class Table:
    """A table: `one` is what a row is, `columns` begin with the key."""

    name: str
    one: str
    columns: tuple[Column, ...]

    @property
    def key(self) -> Column:
        """The primary key."""
        return self.columns[0]

    @property
    def label(self) -> Column:
        """The column that names a row for people, else the key."""
        return next((c for c in self.columns if c.kind in ("person", "title", "product", "company")), self.key)

    @property
    def a(self) -> str:
        """One row, with its article."""
        return f"{'an' if self.one[0] in 'aeo' else 'a'} {self.one}"

    @property
    def many(self) -> str:
        """Several rows, in words."""
        one = self.one
        if one == "aircraft":
            return one
        return f"{one[:-1]}ies" if one.endswith("y") else f"{one}{'es' if one.endswith(('s', 'ch', 'x')) else 's'}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one database, parents before children."""

    domain: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table of a name."""
        return next(table for table in self.tables if table.name == name)


DOMAINS = {
    "shop": """
        customer: full_name person, city town, ?segment pick retail|wholesale|online, joined date
        product: title product, category pick kitchen|outdoor|office|sport|music, price real 3 400, ?stock int 0 300
        order: > customer, ordered date, status pick paid|shipped|returned|cancelled, ?shipping real 0 25
        order_line: > order, > product, quantity int 1 9, ?discount int 0 30
        review: > customer, > product, stars int 1 5, ?written date""",
    "library": """
        author: name person, ?country town, born int 1900 1995
        book: > author, title title, genre pick novel|essay|poetry|history|art, pages int 60 900, ?copies int 1 9
        member: full_name person, city town, since date, ?level pick child|adult|senior
        loan: > book, > member, taken date, days int 1 60, ?fine real 0 20""",
    "hospital": """
        doctor: name person, specialty pick cardiology|surgery|neurology|paediatrics|oncology, salary int 5000 21000
        patient: full_name person, city town, birth_year int 1930 2020, ?blood pick A|B|AB|O
        visit: > doctor, > patient, day date, fee real 20 600, ?urgency pick low|middle|high
        prescription: > visit, drug pick ibuprofen|amoxicillin|metformin|insulin|aspirin, dose int 5 500""",
    "school": """
        teacher: name person, subject pick algebra|biology|music|history|physics, hired date, ?salary int 2500 6500
        course: > teacher, title title, credits int 1 8, ?room int 100 399
        student: full_name person, town town, year int 1 6
        enrolment: > student, > course, grade int 1 100, ?term pick spring|autumn|winter""",
    "airline": """
        airport: city town, country pick Spain|Japan|Kenya|Chile|Norway|Turkey, ?runways int 1 6
        aircraft: model pick A320|A350|B737|B787|E190, seats int 70 400, built int 1995 2025
        flight: > airport, > aircraft, day date, distance int 150 9000, delay int 0 240, ?price real 30 1500
        passenger: full_name person, ?home town, miles int 0 200000
        booking: > flight, > passenger, class pick economy|business|first, paid real 20 4000""",
    "music": """
        artist: name person, country pick Brazil|France|India|Mali|Korea|Ireland, ?formed int 1960 2022
        album: > artist, title title, genre pick jazz|rock|folk|techno|soul, released date, ?price real 4 35
        track: > album, title title, seconds int 60 720, ?plays int 0 90000
        playlist_entry: > track, listener person, added date, rating int 1 10""",
    "company": """
        department: title pick sales|research|legal|finance|support|design, floor int 1 12, budget int 20000 900000
        employee: > department, full_name person, salary int 28000 160000, hired date, ?city town
        project: > department, title title, cost int 1000 400000, ?state pick planned|running|done|stopped
        assignment: > employee, > project, hours int 2 400, ?role pick lead|member|adviser""",
    "cinema": """
        director: name person, born int 1930 1995, ?country town
        film: > director, title title, genre pick drama|comedy|thriller|war, minutes int 70 220, gross int 1 900
        theatre: name company, city town, seats int 40 900
        showing: > film, > theatre, day date, sold int 0 900, ?price real 5 22""",
    "farm": """
        farm: owner person, region town, hectares real 2 600
        field: > farm, crop pick wheat|maize|barley|beet|rape|oats, area real 1 90, ?soil pick clay|sand|loam
        harvest: > field, day date, tonnes real 1 400, ?moisture int 5 30
        machine: > farm, model product, bought date, hours int 0 9000""",
    "estate": """
        agent: name person, office town, ?since date
        property: > agent, address town, rooms int 1 9, price int 60000 2400000, ?kind pick flat|house|loft|villa
        viewing: > property, visitor person, day date, interest int 1 10
        offer: > property, bidder person, amount int 50000 2500000, ?state pick open|accepted|refused""",
}

_HABITS = ("plain", "plural", "camel", "prefix", "upper")


def draw_schema(rng: np.random.Generator, complexity: int) -> Schema:
    """A database's schema: more complexity, more tables (2 to all of them) and columns."""
    domain = pick(rng, sorted(DOMAINS))
    habit = pick(rng, _HABITS)
    lines = [line.strip() for line in DOMAINS[domain].strip().splitlines()]
    kept = _with_parents(lines, int(rng.integers(len(lines))), most=max(2, min(complexity + 1, len(lines))))
    names = {line.partition(":")[0]: _spelled(line.partition(":")[0], habit, table=True) for line in kept}
    return Schema(domain, tuple(_table(rng, line, names, habit) for line in kept))


def _parents(line: str) -> list[str]:
    return [part.strip()[2:] for part in line.partition(":")[2].split(",") if part.strip().startswith("> ")]


def _with_parents(lines: list[str], first: int, *, most: int) -> list[str]:
    """Whole families, as a table without what it refers to is none; a lone table gets one that refers to it."""
    by_name = {line.partition(":")[0]: line for line in lines}
    order = [*lines[first:], *lines[:first]]
    chosen: set[str] = set()
    for line in order:
        family, waiting = set(), [line]
        while waiting:
            one = waiting.pop()
            family.add(one)
            waiting += [by_name[name] for name in _parents(one)]
        if not chosen or len(chosen | family) <= most:
            chosen |= family
    if len(chosen) == 1:
        name = next(iter(chosen)).partition(":")[0]
        child = next((line for line in lines if name in _parents(line)), None)
        if child is not None:
            chosen |= {child, *(by_name[parent] for parent in _parents(child))}
    return [line for line in lines if line in chosen]


def _table(rng: np.random.Generator, line: str, names: dict[str, str], habit: str) -> Table:
    raw, _, rest = line.partition(":")
    columns = [Column(_spelled(f"{raw}_id", habit), "key")]
    parts = [part.strip() for part in rest.split(",")]
    optional = [part for part in parts if part.startswith("?")]
    kept = some(rng, optional, int(rng.integers(len(optional) + 1)))
    for part in parts:
        if part in optional and part not in kept:
            continue
        if part.startswith("> "):
            columns.append(Column(_spelled(f"{part[2:]}_id", habit), "key", (), names[part[2:]]))
            continue
        name, kind, *arguments = part.lstrip("?").split(" ")
        given = tuple(arguments[0].split("|")) if kind == "pick" else tuple(arguments)
        columns.append(Column(_spelled(name, habit), kind, given))
    return Table(names[raw], raw.replace("_", " "), tuple(columns))


_RESERVED = {"order", "class"}


def _spelled(name: str, habit: str, *, table: bool = False) -> str:
    """A name in one of the habits of people who make databases; never a word of SQL itself."""
    match habit:
        case "plural" if table:
            return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
        case "camel":
            head, *tail = name.split("_")
            name = head + "".join(word.capitalize() for word in tail)
        case "prefix" if table:
            return f"tbl_{name}"
        case "upper":
            name = name.capitalize() if table else name
    return f"{name}_" if name.lower() in _RESERVED else name
