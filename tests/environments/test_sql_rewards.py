"""Partial SQL rewards: what runs, what answers, what looks alike; nothing a query does reaches the database."""

import sqlite3
import tracemalloc

import pytest
from envgym_environments.sql_rewards import (
    REASONING_SQL,
    ngram_similarity,
    run_query,
    same_rows,
    schema_linking,
    sql_scores,
)

from envgym import GraderFailure

GOLD = "SELECT name FROM pets WHERE age > 2"


@pytest.fixture
def pets():
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE pets (name TEXT, age REAL); INSERT INTO pets VALUES ('Ada', 3), ('Bo', 4), ('Cy', 1);"
    )
    yield connection
    connection.close()


def test_a_right_query_in_other_words_has_all_of_execution(pets):
    scores = sql_scores(pets, "select p.name from pets as p where not p.age <= 2.0", GOLD)
    assert scores["execution"] == scores["syntax"] == scores["schema_linking"] == 1.0
    assert 0 < scores["ngram"] < 1
    assert sql_scores(pets, GOLD, GOLD) == dict.fromkeys(scores, 1.0)
    assert REASONING_SQL.total(dict.fromkeys(scores, 1.0)).reward == 6.0


def test_partial_rewards_by_hand(pets):
    wrong = sql_scores(pets, "SELECT age FROM pets", GOLD)
    assert (wrong["execution"], wrong["syntax"]) == (0.0, 1.0)
    assert wrong["schema_linking"] == pytest.approx(2 / 3)  # pets, .age of pets, .name, .age
    assert ngram_similarity("select a", "select b") == 0.0
    assert ngram_similarity("select a from t", "select b from t") == pytest.approx(1 / 5)
    assert schema_linking("SELECT (", GOLD) == 0.0
    broken = sql_scores(pets, "SELEC name", GOLD)
    assert (broken["execution"], broken["syntax"]) == (0.0, 0.0)


def test_the_order_counts_where_the_gold_query_asks_for_one(pets):
    ordered = f"{GOLD} ORDER BY age DESC"
    assert sql_scores(pets, f"{GOLD} ORDER BY age", ordered)["execution"] == 0.0
    assert sql_scores(pets, f"{GOLD} ORDER BY age", GOLD)["execution"] == 1.0
    assert same_rows([(1, 0.1 + 0.2)], [(1.0, 0.3)], ordered=True)
    assert not same_rows([(1,), (1,)], [(1,)], ordered=False)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM pets", "DROP TABLE pets", "ATTACH '/tmp/x.db' AS x", "PRAGMA writable_schema = 1",
        "INSERT INTO pets VALUES ('x', 1)", "SELECT 1; SELECT 2", "SELECT load_extension('x')", "",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT '\x00' FROM", "VACUUM INTO '/tmp/x.db'",
    ],
)  # fmt: skip
def test_nothing_a_query_does_reaches_the_database(pets, query):
    found = run_query(pets, query, steps=200_000)
    assert found.rows == ()
    assert sql_scores(pets, query, GOLD)["execution"] == 0.0
    assert pets.execute("SELECT count(*) FROM pets").fetchone() == (3,)


@pytest.mark.parametrize(
    "query", ["SELECT random()", "SELECT RANDOMBLOB(4)", "SELECT current_timestamp",
              "SELECT printf('%.*c', 100000000, 'x')", "SELECT hex(zeroblob(900000000))"]
)  # fmt: skip
def test_what_no_step_counts_and_what_is_another_each_time_gives_no_rows(pets, query):
    found = run_query(pets, query)
    assert found.error
    assert not found.rows


def test_a_result_of_too_many_bytes_is_no_answer_and_the_connections_own_bounds_come_back(pets):
    wide = ", ".join(["zeroblob(20000)"] * 20)
    large = f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 5000) SELECT {wide} FROM c"
    tracemalloc.start()
    try:
        scores = sql_scores(pets, large, GOLD)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert (scores["execution"], scores["syntax"]) == (0.0, 0.0)
    assert run_query(pets, large).error == "the result is too large: more than 64000000 bytes"
    with pytest.raises(GraderFailure, match="the result is too large"):
        sql_scores(pets, GOLD, large)
    many = f"SELECT {', '.join('1' * 600)}"
    assert "too many columns" in run_query(pets, many).error
    assert len(pets.execute(many).fetchone()) == 600


def test_the_clock_of_a_query_stands_still(pets):
    today = run_query(pets, "SELECT datetime('now'), strftime('%Y', '2024-03-05')").rows
    assert today == run_query(pets, "SELECT datetime(), strftime('%Y', '2024-03-05')").rows
    assert today[0][0].endswith("12:00:00")
    assert today[0][1] == "2024"


def test_a_gold_query_that_does_not_run_is_the_graders_fault(pets):
    with pytest.raises(GraderFailure, match="the gold query does not run"):
        sql_scores(pets, GOLD, "SELECT nothing FROM nowhere")
