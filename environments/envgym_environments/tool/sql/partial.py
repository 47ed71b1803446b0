"""Reasoning-SQL's partial rewards for `sql`, each a scorer for a reward plan: syntax, schema linking, n-grams.

Execution is the environment's own reward, on two databases. Needs the extra ``sql``; the formulas are in
`envgym_environments.sql_rewards`.
"""

from envgym.task import Task
from envgym_environments.sql_rewards import ngram_similarity
from envgym_environments.sql_rewards import schema_linking as linking
from envgym_environments.tool.sql.engine import Database
from envgym_environments.tool.sql.world import sources

__all__ = ["ngram", "schema_linking", "syntax"]


def syntax(task: Task, submission: str) -> float:
    """1.0 where the query runs on the database that was seen."""
    database = Database(sources(task)[0])
    try:
        return float(not database.query(submission, most=1).error)
    finally:
        database.close()


def schema_linking(task: Task, submission: str) -> float:
    """The Jaccard index of the tables and columns that the query and the reference name."""
    return linking(submission, str(task.metadata["sql"]))


def ngram(task: Task, submission: str) -> float:
    """The Jaccard index of the pairs of tokens of the query and the reference."""
    return ngram_similarity(submission, str(task.metadata["sql"]))
