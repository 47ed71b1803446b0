"""tau2's tasks over tau2's databases, read where they lie, played by desks of our own: retail, airline, mock.

A task's gold actions are replayed by our tools to know the right database; ``communicate_info`` must be told, and
``env_assertions`` must hold. What of it counts is the task's ``reward_basis``, with ACTION: each gold action was
called. The user is scripted from the task's own words (`scenario`: the reason for the call, then of the rest what
is asked for), or played by an actor, as tau2 does. ``nl_assertions`` need a judge: they are kept in the task's
metadata for one (see `envgym.rewards`), and are not graded without.
"""

import gzip
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from envgym.messages import ToolCall
from envgym.task import Task, TaskSet
from envgym_environments.tool.service.airline import Airline
from envgym_environments.tool.service.desk import Act, Case, Desk, Refused, replayed
from envgym_environments.tool.service.retail import Retail
from envgym_environments.tool.service.scenario import facts_of, recalls_of
from envgym_environments.tool.service.to_do import ToDo

__all__ = ["DOMAINS", "Domain", "tau2_case", "tau2_policy", "tau2_tasks"]


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain that is played: the tables of its database, which tell it, desk, the look that finds a user."""

    tables: frozenset[str]
    desk: Any
    look: Callable[[dict[str, Any], str], ToolCall] | None = None


def _by_email(db: dict[str, Any], user: str) -> ToolCall:
    return ToolCall(name="find_user_id_by_email", arguments={"email": db["users"][user]["email"]})


def _by_id(db: dict[str, Any], user: str) -> ToolCall:
    return ToolCall(name="get_user_details", arguments={"user_id": user})


DOMAINS = {
    "retail": Domain(frozenset({"users", "orders", "products"}), Retail, _by_email),
    "airline": Domain(frozenset({"users", "reservations", "flights"}), Airline, _by_id),
    "mock": Domain(frozenset({"users", "tasks"}), ToDo),
}
_CALLS = ("gold", "looks", "before", "holds")
_BASES = ("DB", "ENV_ASSERTION", "COMMUNICATE", "ACTION", "NL_ASSERTION")
_NO_BASIS = ("DB", "COMMUNICATE")
"""What counts of a task that says nothing: the default of tau2's data model (`EvaluationCriteria.reward_basis`)."""


def tau2_tasks(path: Path, *, judged: bool = False) -> TaskSet:
    """The tasks of a folder with ``tasks.json``, ``db.json`` (or ``db.json.gz``) and perhaps ``split_tasks.json``.

    judged: take those, too, of which a part can be graded by a judge only (NL_ASSERTION in their basis, with
    assertions); else they are left out, and a warning says how many. A basis that names NL_ASSERTION beside others
    where there is no assertion needs no judge, as tau2's own evaluator gives 1.0 for none. A split "test" of tau2's
    is "heldout" here. Raises ValueError for a folder that is none, for a domain whose tables are of none that is
    played, and where all would be left out.
    """
    tasks, splits = path / "tasks.json", path / "split_tasks.json"
    db = next((path / name for name in ("db.json", "db.json.gz") if (path / name).is_file()), None)
    if not tasks.is_file() or db is None:
        raise ValueError(
            f"{path} is no folder of a domain of tau2 that is played: it needs tasks.json and db.json, as "
            f"{', '.join(DOMAINS)} have"
        )
    tables = json.loads(_raw(db)).keys()
    name = next((name for name, domain in DOMAINS.items() if domain.tables == tables), None)
    if name is None:
        raise ValueError(
            f"{db} has the tables {', '.join(sorted(tables)) or 'none'}; of tau2's domains only "
            f"{', '.join(DOMAINS)} are played"
        )
    known = json.loads(splits.read_bytes()) if splits.is_file() else {}
    heldout = {str(one) for one in known.get("test", ())}
    entries = json.loads(tasks.read_bytes())
    found = [_task(entry, number, db, name, heldout) for number, entry in enumerate(entries)]
    kept = found if judged else [task for task in found if not _needs_judge(task)]
    if left := len(found) - len(kept):
        told = (
            f"{tasks}: {left} of {len(found)} tasks have NL_ASSERTION in their reward_basis, with assertions "
            "(which only a judge can grade) or with nothing else to grade, and are left out; judged=True takes "
            "them, for a plan of rewards that has one"
        )
        if not kept:
            raise ValueError(told)
        warnings.warn(told, stacklevel=3)
    return TaskSet(kept)


def _needs_judge(task: Task) -> bool:
    """Whether there are assertions that count, or nothing else that is graded at all."""
    return bool(task.metadata["judged"]) or task.metadata["reward_basis"] == ["NL_ASSERTION"]


def _task(entry: dict[str, Any], number: int, db: Path, name: str, heldout: set[str]) -> Task:
    try:
        case, data = _case(entry, name)
        criteria = entry["evaluation_criteria"] or {}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{db.with_name('tasks.json')}, entry {number}: no task of tau2: {error!r}") from error
    return Task(
        id=f"tau2/{name}/{entry['id']}",
        prompt=case.opening,
        split="heldout" if str(entry["id"]) in heldout else "train",
        seed=number,
        metadata={
            "service": name,
            "db": str(db),
            "data": data,
            "case": msgspec.to_builtins(_plain(case)),
            "nl_assertions": criteria.get("nl_assertions") or [],
            "reward_basis": [*(case.basis or ())],
            "judged": [*case.judged],
        },
    )


def _case(entry: dict[str, Any], name: str) -> tuple[Case, Any]:
    """The case of an entry, and what its database has besides.

    AttributeError: an assertion that a desk lacks. TypeError: a basis that is none of tau2's.
    """
    says, criteria = entry["user_scenario"]["instructions"], entry["evaluation_criteria"] or {}
    says = says if isinstance(says, dict) else {"reason_for_call": says}
    start, desk = entry.get("initial_state") or {}, DOMAINS[name].desk
    actions, basis = criteria.get("actions") or (), [*(criteria.get("reward_basis") or _NO_BASIS)]
    if unknown := set(basis) - set(_BASES):
        raise TypeError(f"reward_basis names {sorted(unknown)}; known: {', '.join(_BASES)}")
    calls = [_call(one) for one in actions]
    holds = [_call(one, "func_name") for one in criteria.get("env_assertions") or ()]
    for call in holds:
        getattr(desk, call.name)
    known, others = str(says.get("known_info") or ""), ("unknown_info", "task_instructions", "reason_for_call")
    history = start.get("message_history") or ()
    before = [_call(one, "func_name") for one in start.get("initialization_actions") or ()]
    before += [_call(one) for message in history for one in message.get("tool_calls") or ()]
    heard = [f"{one['role']}: {one['content']}" for one in history if one.get("content")]
    case = Case(
        opening="\n".join([*heard, str(says["reason_for_call"])]),
        owner="",
        facts=facts_of(known),
        recalls=recalls_of(known, [str(says[key]) for key in others if says.get(key)]),
        gold=[call for call in calls if call.name in desk.writes],
        looks=[call for call in calls if call.name in desk.reads and not call.name.startswith("transfer")],
        tell=[str(text) for text in criteria.get("communicate_info") or ()],
        instructions=" ".join(str(value) for key, value in says.items() if value and key != "domain"),
        before=before,
        holds=holds,
        compared="DB" in basis,
        basis=basis,
        acts=[Act(one["name"], one["arguments"], one.get("compare_args")) for one in actions]
        if "ACTION" in basis
        else [],
        judged=list(criteria.get("nl_assertions") or ()) if "NL_ASSERTION" in basis else [],
    )
    return case, (start.get("initialization_data") or {}).get("agent_data")


def _call(raw: dict[str, Any], name: str = "name") -> ToolCall:
    return ToolCall(name=raw[name], arguments=raw["arguments"])


def _plain(case: Case) -> dict[str, Any]:
    """A case as JSON values: calls as their names and arguments."""
    kept = {
        name: getattr(case, name)
        for name in ("opening", "owner", "facts", "recalls", "wants", "tell", "refuse", "instructions", "compared")
    } | {name: getattr(case, name) for name in ("basis", "acts", "judged")}
    return kept | {name: [[call.name, call.arguments] for call in getattr(case, name)] for name in _CALLS}


def _raw(db: Path) -> bytes:
    return gzip.decompress(db.read_bytes()) if db.suffix == ".gz" else db.read_bytes()


@lru_cache(maxsize=4)
def _database(path: str) -> bytes:
    return msgspec.json.encode(json.loads(_raw(Path(path))))


def tau2_policy(task: Task) -> str:
    """The policy that lies beside an imported task's database, ``policy.md`` or ``policy.txt``; "" without one."""
    db = task.metadata.get("db")
    files = [] if db is None else [Path(str(db)).with_name(f"policy.{ending}") for ending in ("md", "txt")]
    return next((file.read_text() for file in files if file.is_file()), "")


def tau2_case(task: Task) -> tuple[bytes, Case]:
    """The database and the case of an imported task; not to be changed, as who asks again gets the same."""
    wanted = ("service", "db", "data", "case")
    return _scene(msgspec.json.encode({name: task.metadata.get(name) for name in wanted}))


@lru_cache(maxsize=8)
def _scene(told: bytes) -> tuple[bytes, Case]:
    """Of what a task says of it; a database has megabytes, and is read and asked for every case anew."""
    metadata: dict[str, Any] = msgspec.json.decode(told)
    kept: dict[str, Any] = dict(metadata["case"])
    for name in _CALLS:
        kept[name] = [ToolCall(name=one, arguments=arguments) for one, arguments in kept[name]]
    kept["acts"] = [Act(**one) for one in kept.get("acts", ())]  # tasks that were written earlier have none
    case, domain = Case(**kept), DOMAINS[metadata["service"]]
    make, db = domain.desk, _database(metadata["db"])
    if metadata["data"] or case.before:
        start = _joined(msgspec.json.decode(db), metadata["data"] or {})
        db = msgspec.json.encode(replayed(make, start, case.before))
    _identify(case, make(msgspec.json.decode(db)), domain)
    return db, case


def _identify(case: Case, desk: Desk, domain: Domain) -> None:
    """Who calls; a look at them is added where tau2's gold actions change their things without one."""
    known = set()
    for call in case.looks:
        try:
            found = desk.learned(call, str(getattr(desk, call.name)(**call.arguments)))
        except (Refused, TypeError):  # a look of tau2's with other arguments finds nobody
            continue
        known |= {found} - {None}
        case.owner = found or case.owner
    for owner in dict.fromkeys(map(desk.owner, case.gold)):
        if owner is not None and owner not in known and owner in desk.db["users"] and domain.look is not None:
            case.looks.append(domain.look(desk.db, owner))
            case.owner = case.owner or owner


def _joined(table: Any, more: Any) -> Any:
    """A table with what another says of it: objects are joined, everything else is replaced."""
    if not isinstance(table, dict) or not isinstance(more, dict):
        return more
    return table | {key: _joined(table.get(key), value) for key, value in more.items()}
