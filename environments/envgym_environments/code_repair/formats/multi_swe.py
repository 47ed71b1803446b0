"""Multi-SWE-bench and Multi-SWE-RL: pull requests in seven languages, a row each.

Their rows hold what each test said before and after; how tests are run is in the image, as ``/home/run.sh``. The
image also holds both patches: empty files are laid over them. Of JavaScript and TypeScript the names of the listed
tests tell how ids are spelled, and the log of a run which runner wrote it.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import JsonValue

from envgym_environments.code_repair.formats.contract import Item, refused
from envgym_environments.code_repair.formats.spelling import as_language, command, language_of, suite_of
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.suites.reader_node_log import spelling_of
from envgym_environments.code_repair.worlds import image_world

__all__ = ["MULTI_SWE", "MultiSwe"]

_FIXED = ("f2p_tests", "s2p_tests", "n2p_tests")
_READERS = {
    "go": "swebench-go",
    "rust": "swebench-cargo",
    "java": "maven-log",
    "c": "ctest-log",
    "c++": "ctest-log",
}
"""Languages with one runner each, which prints one line a test that says its name and outcome."""

_NODE = ("javascript", "typescript")

_GIVEN_AWAY = ("/home/fix.patch", "/home/test.patch", "/home/fix-run.sh", "/home/test-run.sh")
_RULES = Rules(only_listed=True)
_NUMBER = re.compile(r"(.*)[-_#](\d{1,15})")


class MultiSwe:
    """Implements `TaskFormat`. The statement is that of the issues that a pull request resolves."""

    name = "multi-swe"
    kind: Literal["rows", "folders"] = "rows"
    summary = "Multi-SWE-bench and Multi-SWE-RL: pull requests with the outcome of each test before and after"

    def claims(self, values: Mapping[str, JsonValue]) -> int:
        """See `TaskFormat`."""
        return 4 if {"org", "repo", "number", "fix_patch"} <= values.keys() else 0

    def fields(self, item: Item) -> dict[str, Any]:
        """See `TaskFormat`."""
        org, repo, number = item.text("org"), item.text("repo"), item.number("number")
        gold, tests = item.text("fix_patch"), item.text("test_patch", "")
        language = as_language(item.text("lang", "") or item.text("language", "")) or language_of(gold)
        base = item.table("base")
        commit = base.get("sha", "")
        if not isinstance(commit, str):
            raise refused(item.where, "base.sha", commit, "a text")
        fixed, kept = _fixed(item), _names(item, "p2p_tests") or _kept(item)
        reader = spelling_of((*fixed, *kept)) if language in _NODE else _READERS.get(language, "")
        return {
            "id": item.text("instance_id", f"{org}__{repo}-{number}"),
            "statement": _statement(item),
            "repo": f"{org}/{repo}",
            "base_commit": commit,
            "language": language,
            "created_at": item.word("created_at"),
            "hints": item.text("hints", ""),
            "gold_patch": gold,
            "test_patch": tests,
            "fail_to_pass": fixed,
            "pass_to_pass": kept,
            "split": item.text("split", item.split or "train"),
            "world": image_world(
                f"mswebench/{org}_m_{repo}:pr-{number}".lower(), f"/home/{repo}", files=_GIVEN_AWAY
            ),
            "suite": suite_of(language, command(["bash /home/run.sh"]), reader, patches=(gold, tests)),
            "rules": _RULES,
        }

    def item(self, record: RepairRecord) -> dict[str, JsonValue]:
        """See `TaskFormat`."""
        org, _, repo = record.repo.rpartition("/")
        found = _NUMBER.fullmatch(record.id)
        number = int(found[2]) if found else 0
        row: dict[str, JsonValue] = {
            "org": org or "none",
            "repo": repo or "none",
            "number": number,
            "instance_id": record.id,
            "state": "closed",
            "title": record.statement.partition("\n")[0],
            "body": record.statement.partition("\n")[2],
            "base": {"label": "", "ref": "", "sha": record.base_commit},
            "resolved_issues": _issues(record.statement, number),
            "lang": record.language,
            "hints": record.hints,
            "created_at": record.created_at,
            "fix_patch": record.gold_patch,
            "test_patch": record.test_patch,
            "f2p_tests": _states(record.fail_to_pass, "FAIL"),
            "s2p_tests": {},
            "n2p_tests": {},
            "p2p_tests": _states(record.pass_to_pass, "PASS"),
            "run_result": _result(record.pass_to_pass, record.fail_to_pass),
            "test_patch_result": _result(record.pass_to_pass, record.fail_to_pass),
            "fix_patch_result": _result((*record.pass_to_pass, *record.fail_to_pass), ()),
            "split": record.split,
        }
        return row


def _issues(statement: str, number: int) -> list[JsonValue]:
    title, _, body = statement.partition("\n")
    return [{"number": number, "title": title, "body": body}]


def _result(passed: tuple[str, ...], failed: tuple[str, ...]) -> dict[str, JsonValue]:
    """What a run said; the data set's own program reads no row without them."""
    return {
        "passed_count": len(passed),
        "failed_count": len(failed),
        "skipped_count": 0,
        "passed_tests": list(passed),
        "failed_tests": list(failed),
        "skipped_tests": [],
    }


def _states(names: tuple[str, ...], before: str) -> dict[str, JsonValue]:
    return {name: {"run": before, "test": before, "fix": "PASS"} for name in names}


def _fixed(item: Item) -> tuple[str, ...]:
    """The tests that the repair made pass: three lists by what they were before, or one, or what the runs said.

    The first rows that were published have ``fixed_tests`` only, and rows of one's own runs may have no list.
    """
    listed = tuple(dict.fromkeys(name for field in _FIXED for name in _names(item, field)))
    before = set(_passed(item, "test_patch_result"))
    said = tuple(name for name in _passed(item, "fix_patch_result") if name not in before)
    return listed or _names(item, "fixed_tests") or said


def _kept(item: Item) -> tuple[str, ...]:
    """The tests that passed before and after, by what the runs said."""
    after = set(_passed(item, "fix_patch_result"))
    return tuple(name for name in _passed(item, "test_patch_result") if name in after)


def _passed(item: Item, field: str) -> tuple[str, ...]:
    """The tests that passed in one run."""
    found = item.table(field).get("passed_tests", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise refused(item.where, f"{field}.passed_tests", found, "a list of names")
    return tuple(found)


def _names(item: Item, field: str) -> tuple[str, ...]:
    """The tests of an object by name, without those that fail with the repair.

    Parquet has no objects with free names, and holds them in columns. (An earlier version of the data set's own
    code sorted failing tests into some of these objects.)
    """
    found = item.table(field)
    columns = found.get("name")
    if isinstance(columns, list) and {"fix", "run", "test"} & found.keys():
        if not all(isinstance(one, str) for one in columns):
            raise refused(item.where, f"{field}.name", columns, "a list of names")
        ends = found.get("fix")
        after = ends if isinstance(ends, list) and len(ends) == len(columns) else ["PASS"] * len(columns)
        return tuple(name for name, end in zip(columns, after, strict=True) if end == "PASS")
    ends = {name: one.get("fix", "PASS") if isinstance(one, dict) else "PASS" for name, one in found.items()}
    return tuple(name for name, end in ends.items() if end == "PASS")


def _statement(item: Item) -> str:
    issues = item.values.get("resolved_issues")
    if isinstance(issues, dict) and isinstance(issues.get("title"), list):  # as Parquet holds it
        titles, bodies = issues["title"], issues.get("body") or []
        issues = [
            {"title": title, "body": bodies[n] if isinstance(bodies, list) and n < len(bodies) else ""}
            for n, title in enumerate(titles)  # type: ignore[arg-type]  # it is a list
        ]
    if not issues:
        return "\n".join(part for part in (item.text("title", ""), item.text("body", "")) if part)
    if not isinstance(issues, list) or not all(isinstance(one, dict) for one in issues):
        raise refused(item.where, "resolved_issues", issues, "a list of objects")
    texts = []
    for one in issues:
        title, body = one.get("title") or "", one.get("body") or ""  # type: ignore[union-attr]
        if not isinstance(title, str) or not isinstance(body, str):
            raise refused(item.where, "resolved_issues", one, "with a title and a body that are texts")
        texts.append(f"{title}\n{body}" if body else title)
    return "\n\n".join(texts)


MULTI_SWE = MultiSwe()
