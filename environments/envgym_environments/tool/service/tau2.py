"""tau2's retail tasks over tau2's retail database, read where they lie, played by this service's own tools.

A task's gold actions are replayed by our tools to know the right database; ``communicate_info`` must be told. The
user is scripted from the task's own words (reason for the call, then what is known), or played by an actor, as tau2
does. Conditions of ``nl_assertions`` need a judge, and are left out.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from envgym.messages import ToolCall
from envgym.task import Task, TaskSet
from envgym_environments.tool.service.desk import Case, Refused
from envgym_environments.tool.service.retail import Retail

__all__ = ["tau2_case", "tau2_tasks"]


def tau2_tasks(path: Path) -> TaskSet:
    """The tasks of a folder with ``tasks.json`` and ``db.json`` (and ``split_tasks.json``, where there is one).

    A split "test" of tau2's is "heldout" here. Raises ValueError for a folder that is none, and for a domain whose
    tables are not those of retail.
    """
    tasks, db, splits = path / "tasks.json", path / "db.json", path / "split_tasks.json"
    if not tasks.is_file() or not db.is_file():
        raise ValueError(f"{path} is no folder of tau2: it needs tasks.json and db.json")
    if not {"users", "orders", "products"} <= json.loads(db.read_bytes()).keys():
        raise ValueError(f"{db} has not the tables users, orders and products: only tau2's retail domain is played")
    known = json.loads(splits.read_bytes()) if splits.is_file() else {}
    heldout = {str(name) for name in known.get("test", ())}
    return TaskSet(
        [_task(entry, number, db, heldout) for number, entry in enumerate(json.loads(tasks.read_bytes()))]
    )


def _task(entry: dict[str, Any], number: int, db: Path, heldout: set[str]) -> Task:
    try:
        scenario, criteria = entry["user_scenario"]["instructions"], entry["evaluation_criteria"] or {}
        case = _case(scenario if isinstance(scenario, dict) else {"reason_for_call": scenario}, criteria)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{db.with_name('tasks.json')}, entry {number}: no task of tau2: {error!r}") from error
    return Task(
        id=f"tau2/retail/{entry['id']}",
        prompt=case.opening,
        split="heldout" if str(entry["id"]) in heldout else "train",
        seed=number,
        metadata={"service": "retail", "db": str(db), "case": msgspec.to_builtins(_plain(case))},
    )


def _case(says: dict[str, Any], criteria: dict[str, Any]) -> Case:
    calls = [ToolCall(name=one["name"], arguments=one["arguments"]) for one in criteria.get("actions") or ()]
    known = " ".join(str(says[key]) for key in ("known_info", "task_instructions") if says.get(key))
    return Case(
        opening=str(says["reason_for_call"]),
        owner="",
        facts={".": known} if known else {},
        gold=[call for call in calls if call.name in Retail.writes],
        looks=[call for call in calls if call.name in Retail.reads and not call.name.startswith("transfer")],
        tell=[str(text) for text in criteria.get("communicate_info") or ()],
        instructions=" ".join(str(value) for key, value in says.items() if value and key != "domain"),
    )


def _plain(case: Case) -> dict[str, Any]:
    """A case as JSON values: calls as their names and arguments."""
    kept = {
        name: getattr(case, name)
        for name in ("opening", "owner", "facts", "wants", "tell", "refuse", "instructions")
    }
    return kept | {
        name: [[call.name, call.arguments] for call in getattr(case, name)] for name in ("gold", "looks")
    }


@lru_cache(maxsize=4)
def _database(path: str) -> bytes:
    return msgspec.json.encode(json.loads(Path(path).read_bytes()))


def tau2_case(task: Task) -> tuple[bytes, Case]:
    """The database and the case of an imported task. Whoever the gold calls find is who calls."""
    kept: dict[str, Any] = dict(task.metadata["case"])  # type: ignore[arg-type]
    for name in ("gold", "looks"):
        kept[name] = [ToolCall(name=one, arguments=arguments) for one, arguments in kept[name]]
    db = _database(str(task.metadata["db"]))
    case = Case(**kept)
    desk = Retail(msgspec.json.decode(db))
    for call in case.looks:
        if call.name.startswith("find_"):
            try:
                case.owner = str(getattr(desk, call.name)(**call.arguments))
            except Refused:
                continue
    return db, case
