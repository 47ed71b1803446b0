"""`sql`: the contracts, the reading-only engine, grading by execution, imported folders."""

import asyncio
import json
import sqlite3
import time
import tracemalloc
from contextlib import closing

import pytest
from envgym_environments.tool.sql.engine import Database, shown
from envgym_environments.tool.sql.folders import asks_for_order
from envgym_environments.tool.sql.grade import grade, references
from envgym_environments.tool.sql.world import SPEC, expert, sql_tasks

from envgym.env import Step, StopReason
from envgym.errors import Boundary, GraderFailure
from envgym.messages import Action
from envgym.registry import make
from envgym.rollout import Rollout
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.check_task import play


@pytest.mark.parametrize("complexity", [1, 3, 5])
def test_it_meets_the_environment_contract(complexity: int) -> None:
    task = sql_tasks(complexity=complexity)[complexity]
    report = check_env_sync(lambda: make(SPEC, task))
    assert not report.unreached


def test_its_tasks_are_solved_by_the_expert_and_not_by_doing_nothing() -> None:
    tasks = sql_tasks(200)
    check_tasks(tasks, splits=("train", "heldout"))
    check_task_sync(tasks[::4], lambda task: make(SPEC, task), expert, seeds=(0,))


def test_splits_share_no_database_and_both_have_every_complexity() -> None:
    tasks = sql_tasks(500)
    by_split = {name: tasks.split(name) for name in ("train", "heldout")}
    used = {name: {task.metadata["database"] for task in found} for name, found in by_split.items()}
    assert not used["train"] & used["heldout"]
    assert all({task.metadata["complexity"] for task in found} == {1, 2, 3, 4, 5} for found in by_split.values())


def test_other_seeds_and_indices_give_other_questions_and_the_set_may_be_endless() -> None:
    texts = {task.prompt for task in (*sql_tasks(60), *sql_tasks(60, seed=1))}
    assert len(texts) > 115
    assert sql_tasks(None)[10_000].prompt
    for wrong in ({"count": 0}, {"complexity": 6}):
        with pytest.raises(ValueError, match="must be"):
            sql_tasks(**wrong)


async def _play(*calls: Action, index: int = 0, **options: int) -> list[Step]:
    env = make(SPEC, index, **options)
    try:
        return [await env.reset(seed=0), *[await env.step(call) for call in calls]]
    finally:
        await env.close()


def test_a_database_is_explored_over_several_turns_within_a_budget() -> None:
    steps = asyncio.run(
        _play(Action.call("tables"), Action.call("query", sql="SELECT 1"), Action.call("tables"), looks=2)
    )
    name, _, rest = steps[1].text.splitlines()[0].partition(" (")
    assert rest.endswith(" rows)")
    assert steps[2].text == "1\n1"
    assert steps[3].text == "error: no looks are left; call submit"
    described = asyncio.run(_play(Action.call("describe", table=name.upper()), Action.call("describe", table="no")))
    assert f"CREATE TABLE {name}" in described[1].text
    assert described[2].text == f"error: no table 'no'; the tables are: {_names(steps[1].text)}"


def _names(listed: str) -> str:
    return ", ".join(line.rpartition(" (")[0] for line in listed.splitlines())


def test_a_given_schema_leaves_only_the_answer_and_the_expert_gives_it_at_once() -> None:
    tasks = sql_tasks(100)
    for task in (tasks[7], tasks[48]):
        assert not check_env_sync(lambda task=task: make(SPEC, task, given=True)).unreached
    check_task_sync(tasks[::20], lambda task: make(SPEC, task, given=True), expert, seeds=(0,))
    env = make(SPEC, tasks[7], given=True)
    first, refused = asyncio.run(_play(Action.call("tables"), index=7, given=True))
    assert [tool.name for tool in env.tools] == ["submit"]
    assert first.text.endswith(tasks[7].prompt)
    assert all(line.startswith("CREATE TABLE ") for line in first.text.splitlines()[:-2])
    assert refused.stop is None
    assert refused.text.startswith("error: ")


def test_a_constant_that_is_right_by_chance_is_not_an_answer() -> None:
    task = next(task for task in sql_tasks(200) if "COUNT(*) FROM" in str(task.metadata["sql"]))
    env = make(SPEC, task)

    async def play() -> Step:
        await env.reset(seed=0)
        found = (await env.step(Action.call("query", sql=str(task.metadata["sql"])))).text.splitlines()[1]
        end = await env.step(Action.call("submit", sql=f"SELECT {found}"))
        await env.close()
        return end

    end = asyncio.run(play())
    assert (end.stop, end.reward, end.channels["seen"]) == (StopReason.SUBMITTED, 0.0, 1.0)


@pytest.fixture
def database():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"r{n % 3}") for n in range(300)])
        connection.commit()
        made = Database(connection.serialize(), instructions=200_000)
    yield made
    made.close()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM t",
        "DROP TABLE t",
        "INSERT INTO t VALUES (1, 'x')",
        "UPDATE t SET a = 1",
        "PRAGMA query_only = 0",
        "ATTACH '/dev/shm/x' AS x",
        "VACUUM INTO '/dev/shm/x'",
        "SELECT random()",
        "SELECT * FROM t ORDER BY RANDOM()",
        "SELECT load_extension('x')",
        "SELECT current_timestamp",
        "SELECT 1; DROP TABLE t",
        "CREATE TEMP TABLE x (a)",
        "SELECT zeroblob(1000000000)",
        "SELECT trim()",
        "SELECT format('%5000d', 1)",
        "SELECT printf('%.*c', 100000000, 'x')",
        "SELECT 1 \x00",
        "",
        "SELEC",
        "BEGIN",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT COUNT(*) FROM t a, t b, t c, t d",
    ],
)
def test_nothing_is_written_and_work_and_size_are_bounded(database: Database, sql: str) -> None:
    assert database.query(sql).error
    assert database.query("SELECT COUNT(*), SUM(a) FROM t").rows == ((300, 44850),)


_NEWER = [
    (call, answer)
    for at, call, answer in (
        ((3, 42), "datetime('subsec')", "2025-06-30 12:00:00.000"),
        ((3, 43), "timediff('now', x'6e6f77')", "+0000-00-00 00:00:00.000"),
    )
    if sqlite3.sqlite_version_info >= at
]


def _bytes(rows: int) -> str:
    wide = ", ".join(["zeroblob(20000)"] * 20)
    return f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {rows}) SELECT {wide} FROM c"


@pytest.mark.parametrize("foreign", [False, True])
def test_a_result_is_bounded_in_bytes_whatever_its_rows_and_columns(foreign: bool, tmp_path) -> None:
    with closing(sqlite3.connect(tmp_path / "wide.sqlite")) as connection:
        connection.execute(f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(400))})")
        source = tmp_path / "wide.sqlite" if foreign else connection.serialize()
    with closing(Database(source)) as database:
        tracemalloc.start()
        try:
            large = database.query(_bytes(2000), most=2000)
            assert tracemalloc.get_traced_memory()[1] < 100_000_000
        finally:
            tracemalloc.stop()
        assert large.error == "the result is too large: more than 64000000 bytes"
        assert len(database.query(_bytes(100), most=2000).rows) == 100
        assert database.query(f"SELECT {', '.join('1' * 600)}").error.startswith("too many columns")
        assert len(database.query("SELECT * FROM wide").columns) == 400
        assert "too big" in database.query(f"SELECT {', '.join(['hex(zeroblob(499000))'] * 512)}").error
        wanted = references("SELECT 1", [database])
        assert grade(_bytes(2000), wanted, [database], ordered=False) == {
            "reward": 0.0, "executes": 0.0, "seen": 0.0, "width": 0.0, "rows": 0.0
        }  # fmt: skip
        with pytest.raises(GraderFailure, match="the result is too large"):
            references(_bytes(2000), [database])


def test_queries_repeat_exactly_because_the_day_is_the_worlds(database: Database) -> None:
    found = database.query("SELECT date('now'), date('now', '-1 year'), strftime('%Y'), date(), date('2020-02-01')")
    assert found.rows == (("2025-06-30", "2024-06-30", "2025", "2025-06-30", "2020-02-01"),)
    assert shown(database.query("SELECT NULL AS x, 1.5, 'a' WHERE 0")) == "x | 1.5 | 'a'\n(no rows)"


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("datetime(CAST('now' AS BLOB))", "2025-06-30 12:00:00"), ("date(x'4e6f77')", "2025-06-30"),
        ("date(x'6e6f770041')", "2025-06-30"), ("date('now' || char(0))", "2025-06-30"),
        ("strftime('%Y', x'6e6f77')", "2025"), ("strftime('now', '2020-01-02')", "now"),
        ("datetime('now', 'localtime')", "2025-06-30 12:00:00"), ("datetime('now', 'UTC')", "2025-06-30 12:00:00"),
        ("datetime('2020-01-02', x'6c6f63616c74696d65', '+1 hour')", "2020-01-02 01:00:00"),
        ("datetime(1700000000, 'unixepoch', 'localtime')", "2023-11-14 22:13:20"),
        ("strftime('%H', '2020-01-02 03:00', 'utc')", "03"), ("date('2020-01-02', 'nonsense')", None),
        *_NEWER,
    ],
)  # fmt: skip
def test_no_way_of_asking_for_the_clock_gives_the_hosts_or_its_time_zone(
    database: Database, monkeypatch, call: str, answer: str | None
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert database.query(f"SELECT {call}").rows == ((answer,),)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "call",
    [
        "instr('abc', 'c')",
        "instr(NULL, 'a')",
        "instr(1.0, '.')",
        "instr(x'0102', x'02')",
        "replace('aaa', 'a', 'bb')",
        "replace('a', '', 'b')",
        "replace('a', NULL, 'b')",
        "replace(2.5, '.', ',')",
        "trim('  a b ')",
        "ltrim('xxa', 'x')",
        "rtrim('axyx', 'xy')",
        "trim(NULL)",
        "trim(12, '1')",
        "printf('%.2f', 1.005)",
        "format('%05d|%s', 3, 'x')",
        "strftime('%Y-%m', '2021-03-04')",
        "julianday('2000-01-01')",
        "datetime('2020-01-31', '+1 month')",
    ],
)
def test_the_replaced_functions_give_what_sqlite_gives(database: Database, call: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        if call.startswith("format"):
            call = call if sqlite3.sqlite_version_info >= (3, 38) else call.replace("format", "printf")
        wanted = connection.execute(f"SELECT {call}").fetchall()
    assert list(database.query(f"SELECT {call}").rows) == wanted


@pytest.mark.parametrize(
    ("sql", "ordered", "reward"),
    [
        ("SELECT a FROM t WHERE a < 3", False, 1.0),
        ("SELECT a * 1.0 AS other FROM t WHERE a < 3 ORDER BY a DESC", False, 1.0),
        ("SELECT a FROM t WHERE a < 3 ORDER BY a DESC", True, 0.0),
        ("SELECT a, b FROM t WHERE a < 3", False, 0.0),
        ("SELECT a FROM t WHERE a < 4", False, 0.0),
        ("SELECT b FROM t WHERE a < 3", False, 0.0),
        ("SELECT x FROM t", False, 0.0),
    ],
)
def test_queries_are_the_same_when_their_rows_are(
    database: Database, sql: str, ordered: bool, reward: float
) -> None:
    wanted = references("SELECT a FROM t WHERE a < 3", [database])
    channels = grade(sql, wanted, [database], ordered=ordered)
    assert channels["reward"] == reward
    with pytest.raises(GraderFailure, match="the reference does not run"):
        references("SELECT nothing FROM t", [database])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("12345678901", "12345678901.0", True), ("3", "3.0", True), ("-0.0", "0", True), ("1e999", "1e999", True),
        ("9007199254740993", "9007199254740993", True), ("9007199254740993", "9007199254740992.0", False),
        ("12345678901", "12345678902.0", False), ("12345678901", "12345678901.4", False),
        ("0.1 + 0.2", "0.3", True), ("12345678901.1 + 0.2", "12345678901.3", True), ("0.1", "0.1001", False),
        ("'3'", "3", False), ("'3'", "'3.0'", False), ("x'33'", "'3'", False), ("NULL", "NULL", True),
        ("NULL", "0", False), ("NULL", "''", False), ("1e-12", "2e-12", False), ("1.0/3", "0.333333333333", True),
    ],
)  # fmt: skip
def test_cells_are_compared_as_sqlites_users_expect(database, one: str, other: str, equal: bool) -> None:
    wanted = references(f"SELECT {one}", [database])
    assert grade(f"SELECT {other}", wanted, [database], ordered=False)["reward"] == equal
    assert (
        grade(f"SELECT {one}", references(f"SELECT {other}", [database]), [database], ordered=True)["seen"] == equal
    )


def test_an_order_counts_where_the_query_itself_asks_for_one() -> None:
    for sql, asked in (
        ("SELECT a FROM t ORDER\n BY a", True),
        ("SELECT a FROM t UNION SELECT b FROM u order by 1", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY b LIMIT 3)", False),
        ("SELECT rank() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'x order by (' FROM t -- order by a", False),
        ("SELECT ')' FROM (SELECT 1) ORDER BY 1", True),
    ):
        assert asks_for_order(sql) is asked, sql


def test_a_large_answer_is_compared_whole(database) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT i FROM n"
    wanted = references(many, [database])
    assert grade(f"SELECT * FROM ({many}) ORDER BY i DESC", wanted, [database], ordered=False)["reward"] == 1.0
    assert grade(f"SELECT max(i, 2) FROM ({many})", wanted, [database], ordered=False)["reward"] == 0.0


@pytest.mark.parametrize("kind", ["spider", "bird"])
def test_a_folder_of_a_peer_is_played_as_it_lies(kind: str, tmp_path) -> None:
    home = tmp_path / ("database" if kind == "spider" else "dev_databases") / "pets"
    home.mkdir(parents=True)
    with closing(sqlite3.connect(home / "pets.sqlite")) as connection:
        connection.executescript(
            "CREATE TABLE pet (id INTEGER, kind TEXT); INSERT INTO pet VALUES (1, 'cat'), (2, 'dog')"
        )
    entry = {"db_id": "pets", "question": "How many pets are there?"}
    entry |= {"query": "SELECT count(*) FROM pet"} if kind == "spider" else {"SQL": "SELECT COUNT(*) FROM pet;"}
    entry |= {} if kind == "spider" else {"evidence": "pets are in pet", "difficulty": "simple"}
    (tmp_path / "dev.json").write_text(json.dumps([entry]))
    (tmp_path / "tables.json").write_text("[]")
    tasks = sql_tasks(path=str(tmp_path))
    assert [task.split for task in tasks] == ["heldout"]
    assert ("Hint: pets are in pet" in tasks[0].prompt) == (kind == "bird")
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    check_env_sync(lambda: make(SPEC, tasks[0]))
    (tmp_path / "dev.json").write_text(json.dumps([entry | {"db_id": "birds"}]))
    with pytest.raises(ValueError, match=r"birds/birds.sqlite"):
        sql_tasks(path=str(tmp_path))
    key = "query" if kind == "spider" else "SQL"
    (tmp_path / "dev.json").write_text(json.dumps([entry, entry | {key: "SELECT wings FROM pet"}]))
    _check_that_the_broken_task_is_named(str(tmp_path))


LAYOUTS: dict[str, dict[str, tuple[str, str]]] = {  # file of questions -> where its database is, and its split
    "spider": {
        "dev.json": ("database", "heldout"), "test.json": ("test_database", "heldout"),
        "train_others.json": ("database", "train"), "train_spider.json": ("database", "train"),
    },
    "bird's dev": {"dev.json": ("dev_databases", "heldout")},
    "bird's train": {"train.json": ("train_databases", "train")},
    "bird's mini dev": {"mini_dev_sqlite.json": ("dev_databases", "heldout")},
}  # fmt: skip
BESIDE = {
    "spider": ("tables.json", "test_tables.json", "dev_gold.sql", "test_gold.sql", "train_gold.sql", "README.txt"),
    "bird's dev": ("dev_tables.json", "dev_tied_append.json", "dev.sql"),
    "bird's train": ("train_tables.json", "train_gold.sql"),
    "bird's mini dev": ("dev_tables.json", "mini_dev_mysql.json", "mini_dev_postgresql.json"),
}


@pytest.mark.parametrize("kind", list(LAYOUTS))
def test_all_files_of_a_published_folder_are_read_or_known_to_be_none(kind: str, tmp_path) -> None:
    """Spider ships ``test_database`` and ``test_tables.json``; of two databases of one name a file's own counts."""
    for home in {home for home, _ in LAYOUTS[kind].values()}:
        (tmp_path / home / "pets").mkdir(parents=True)
        with closing(sqlite3.connect(tmp_path / home / "pets" / "pets.sqlite")) as connection:
            connection.executescript("CREATE TABLE pet (id INTEGER)")
    entry = {"db_id": "pets", "question": "How many?", "query": "SELECT count(*) FROM pet"}
    for name in LAYOUTS[kind]:
        (tmp_path / name).write_text(json.dumps([entry | {"question": f"How many of {name}?"}]))
    for name in BESIDE[kind]:
        other = [entry | {"query": "SELECT `id` FROM pet LIMIT 0, 1"}] if "tables" not in name else [{"db_id": "a"}]
        (tmp_path / name).write_text(json.dumps(other))
    tasks = sql_tasks(path=str(tmp_path))
    found = {f"{task.id.partition('/')[0]}.json": task for task in tasks}
    assert len(found) == len(tasks)
    assert {
        name: (str(task.metadata["file"]).split("/")[-3], task.split) for name, task in found.items()
    } == LAYOUTS[kind]
    check_tasks(tasks)


def _check_that_the_broken_task_is_named(path: str) -> None:
    """The second task of a folder has a query that does not run: found before, and never a reward."""
    told = "'dev/1': the reference does not run .no such column: wings"
    with pytest.raises(ValueError, match=f"(?s)1 of the 2 tasks .*{told}"):
        sql_tasks(path=path, checked=True)
    tasks = sql_tasks(path=path)
    with pytest.raises(AssertionError, match=told):
        check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    job = play(tasks[1], lambda task: make(SPEC, task), expert, 0, Rollout())
    failure = (episode := asyncio.run(job)).failure
    assert failure is not None
    assert (failure.boundary, failure.kind, episode.reward) == (Boundary.GRADER, "GraderFailure", None)


def test_reasoning_sqls_partial_rewards_are_channels_of_a_plan() -> None:
    where = "envgym_environments.tool.sql.partial"
    plan = {
        "judged": "submission",
        "channels": {"execution": {"kind": "world", "weight": 3.0, "needed": True}}
        | {
            name: {"kind": "scorer", "function": f"{where}:{name}"}
            for name in ("syntax", "schema_linking", "ngram")
        },
    }
    task = sql_tasks(1, complexity=2)[0]

    async def submitted(sql: str) -> Step:
        env = make(SPEC, task, rewards=plan)
        await env.reset(seed=0)
        step = await env.step(Action.call("submit", sql=sql))
        await env.close()
        return step

    right = str(task.metadata["sql"])
    assert asyncio.run(submitted(right)).reward == 6.0
    near = asyncio.run(submitted(f"{right} LIMIT 0"))
    assert (near.channels["execution"], near.channels["syntax"], near.channels["schema_linking"]) == (0.0, 1.0, 1.0)
    assert 0.0 < near.channels["ngram"] < 1.0
    assert asyncio.run(submitted("SELECT")).channels["syntax"] == 0.0
