"""Refactoring over several files, checked on the syntax tree and by tests, told at three levels of specificity.

Forms: "rename" (a function or class gets another name everywhere, hidden tests too), "parameter" (a parameter does,
in its function and wherever a caller names it), "move" (a function goes to a module of its own, and whoever imports
it imports it there), "extract" (statements of a function become one) and "inline" (a function goes, its expression
stands wherever it was called). Checks say of each file what the package has afterwards, and what it does not keep;
only where all hold do the tests run. (RefactorBench: handcrafted multi-file refactorings, three instructions each,
judged by tests on the syntax tree. These are made and judged mechanically.)
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgym.sandbox import Sandbox
from envgym.task import evenly
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.describe import overlay
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.assemble import read_text
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.kinds.extracts import (
    Part,
    extract_asked,
    extract_checks,
    extract_holds,
    extracted,
    part_of,
    parts,
)
from envgym_environments.code_repair.kinds.inlines import (
    inlinable,
    inline_asked,
    inline_checks,
    inline_holds,
    inlined,
)
from envgym_environments.code_repair.kinds.moves import dotted, imported_from, moved, needs, target_of
from envgym_environments.code_repair.kinds.parameters import (
    in_f_strings,
    named_by_callers,
    parameters,
    times_named,
    with_parameter,
)
from envgym_environments.code_repair.kinds.references import clashes, defines, names_in, python_files, renamed
from envgym_environments.code_repair.runner import Layout, run_tests
from envgym_environments.code_repair.trials import Trials

__all__ = ["Refactoring", "holds", "judge_refactoring"]

_MOST_WANTED = 40
_MOST_CHARACTERS = 12_000


class Refactoring:
    """See `contract.Kind`."""

    name = "refactor"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Functions and classes that can be changed in one of the forms, in text order."""
        layout = baseline.layout
        texts = python_files(tree, layout)
        tests = {path: text for path in layout.tests if (text := read_text(tree, path)) is not None}
        everywhere = texts | tests
        found: list[Place] = []
        for path, text in texts.items():
            for node in ast.parse(text).body:
                if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("__"):
                    continue
                if not self._covering(baseline, path, node):
                    continue
                found += _names(texts, everywhere, path, node.name)
                if _movable(texts, path, node, layout):
                    found.append({"form": "move", "path": path, "name": node.name})
                for part in parts(text, node.name):
                    found.append(
                        {"form": "extract", "path": path, "name": node.name, "first": part.first, "last": part.last}
                    )
                if inlinable(texts, tests, path, node.name, layout.source_root):
                    found.append({"form": "inline", "path": path, "name": node.name})
        return found

    def _covering(self, baseline: Baseline, path: str, node: ast.FunctionDef | ast.ClassDef) -> tuple[str, ...]:
        return baseline.covering(path, node.body[0].lineno, node.end_lineno or node.lineno)

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """The answer's state passes every test of the suite as it stands afterwards."""
        text = str(read_text(tree, place["path"]))
        named = (ast.FunctionDef, ast.ClassDef)
        node = next(one for one in ast.parse(text).body if isinstance(one, named) and one.name == place["name"])
        wanted = list(evenly(self._covering(baseline, place["path"], node), _MOST_WANTED))
        answer, tests = _after(tree, baseline.layout, place)
        if any(len(one) > 20 * _MOST_CHARACTERS for one in answer.values()):
            return Verdict.CRASHES
        async with await base.fork() as fork:
            for path, after in {**answer, **tests}.items():
                await fork.write(path, after.encode())
            limit_s = 30.0 + 10.0 * baseline.suite_s
            report = await run_tests(
                fork, baseline.layout, timeout_s=limit_s, test_timeout_s=1.0 + baseline.suite_s
            )
        if not report.ok or set(report.passing) != set(baseline.tests):
            return Verdict.NOT_RESTORED
        return {"fail_to_pass": wanted, "pass_to_pass": [], "tests": len(baseline.tests)}

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """Nothing is changed beforehand; the answer is the refactored files."""
        answer, tests = _after(tree, layout, place)
        checks = _checks(tree, layout, place, answer)
        count = sum(names_in(text, place["name"]) for text in python_files(tree, layout).values())
        return Draft(
            name="-".join(
                str(place[part]).strip("_").lower() for part in ("form", "name", "word") if part in place
            ),
            prompt=_prompt(tree, place, seen, layout, sorted(answer)),
            before={},
            answer=answer,
            goal={"checks": checks, "tests": tests},
            writes=(),
            size={"files": float(len(answer)), "references": float(count), "checks": float(len(checks))},
        )


def _names(texts: Mapping[str, str], everywhere: Mapping[str, str], path: str, name: str) -> list[Place]:
    """Where names are exchanged: that of a thing which more than one file names, and those of its parameters."""
    users = [other for other, one in texts.items() if names_in(one, name)]
    if len(users) < 2 or clashes(everywhere, name, path):
        return []
    words = [word for word in named_by_callers(texts, path, name) if not in_f_strings(everywhere, name, word)]
    words_too: list[Place] = [{"form": "parameter", "path": path, "name": name, "word": word} for word in words]
    return [{"form": "rename", "path": path, "name": name}, *words_too]


def _movable(texts: Mapping[str, str], path: str, node: ast.stmt, layout: Layout) -> bool:
    if not isinstance(node, ast.FunctionDef) or target_of(path, node.name) in texts or layout.package == path:
        return False
    if needs(texts[path], node.name) is None:
        return False
    home = dotted(path, layout.source_root)
    return any(
        module == home
        for other, text in texts.items()
        if other != path
        for _, module in imported_from(text, other, node.name, layout.source_root)
    )


def _new_name(name: str) -> str:
    """What it is called afterwards: no word of the package's own, so that it cannot be there already."""
    return f"{name}Renamed" if name[:1].isupper() else f"{name}_renamed"


def _after(tree: Path, layout: Layout, place: Place) -> tuple[dict[str, str], dict[str, str]]:
    """(the package's files, the tests) that differ afterwards. Raises ValueError where the place is not there."""
    texts, name, home = python_files(tree, layout), str(place["name"]), str(place["path"])
    if home not in texts or not defines(texts[home], name):
        raise ValueError(f"there is no {name} in {home}")
    if place["form"] == "move":
        return moved(texts, home, name, target_of(home, name), layout.source_root), {}
    if place["form"] == "extract":
        return {home: extracted(texts[home], name, _part(texts[home], place))}, {}
    if place["form"] == "inline":
        return inlined(texts, home, name, layout.source_root), {}
    tests = {path: text for path in layout.tests if (text := read_text(tree, path)) is not None}
    both = [
        {path: after for path, text in some.items() if (after := _again(place, path, text)) != text}
        for some in (texts, tests)
    ]
    return both[0], both[1]


def _part(text: str, place: Place) -> Part:
    return part_of(text, str(place["name"]), int(place["first"]), int(place["last"]))


def _again(place: Place, path: str, text: str) -> str:
    """A file after its names were exchanged."""
    name = str(place["name"])
    if place["form"] == "rename":
        return renamed(text, name, _new_name(name))
    word = str(place["word"])
    return with_parameter(text, name, word, _new_name(word), home=path == str(place["path"]))


def _checks(tree: Path, layout: Layout, place: Place, answer: Mapping[str, str]) -> list[dict[str, Any]]:
    name, home, root = str(place["name"]), str(place["path"]), layout.source_root
    if place["form"] == "move":
        target = target_of(home, name)
        found: list[dict[str, Any]] = [
            {"check": "defined", "path": target, "name": name},
            {"check": "not defined", "path": home, "name": name},
        ]
        found += [
            {"check": "imported from", "path": path, "name": name, "module": dotted(target, root), "root": root}
            for path in sorted(answer)
            if path not in (home, target)
        ]
        return found
    texts = python_files(tree, layout)
    match place["form"]:
        case "parameter":
            return _parameter_checks(place, answer)
        case "extract":
            return extract_checks(texts[home], home, name, _part(texts[home], place), answer[home])
        case "inline":
            return inline_checks(texts, home, name, answer)
    found = [{"check": "defined", "path": home, "name": _new_name(name)}]
    for path in sorted(answer):
        count = names_in(answer[path], _new_name(name))
        found += [
            {"check": "not named", "path": path, "name": name},
            {"check": "named", "path": path, "name": _new_name(name), "times": count},
        ]
    return found


def _parameter_checks(place: Place, answer: Mapping[str, str]) -> list[dict[str, Any]]:
    name, home, word = str(place["name"]), str(place["path"]), str(place["word"])
    head = parameters(answer[home], name)
    found: list[dict[str, Any]] = [{"check": "parameters", "path": home, "name": name, "words": head}]
    for path in sorted(answer):
        of = {"path": path, "name": name}
        times = times_named(answer[path], name, _new_name(word))
        found.append({"check": "says no", "word": word, **of})
        found.append({"check": "says", "word": _new_name(word), "times": times, **of})
    return found


def holds(check: Mapping[str, Any], text: str | None) -> bool:
    """Whether a file is as a check says; one that is not there or does not parse never is."""
    try:
        ast.parse(text or "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if text is None:
        return False
    match check["check"]:
        case "statements" | "no statements" | "calls":
            return extract_holds(check, text)
        case "functions" | "expression":
            return inline_holds(check, text)
        case _:
            return _named_so(check, text)


def _named_so(check: Mapping[str, Any], text: str) -> bool:
    """Whether a module names and defines what a check says."""
    name = str(check["name"])
    if "word" in check:
        times = times_named(text, name, check["word"])
        return times == 0 if check["check"] == "says no" else times >= int(check["times"])
    match check["check"]:
        case "defined":
            return defines(text, name)
        case "not defined":
            return not defines(text, name)
        case "not named":
            return names_in(text, name) == 0
        case "named":
            return names_in(text, name) >= int(check["times"])
        case "parameters":
            return parameters(text, name) == list(check["words"])
        case "imported from":
            found = imported_from(text, check["path"], name, check["root"])
            return bool(found) and all(module == check["module"] for _, module in found)
        case other:
            raise ValueError(f"check is {other!r}; it must be one that `Refactoring` makes")


def _prompt(tree: Path, place: Place, seen: Seen, layout: Layout, files: Sequence[str]) -> str:
    name, home = str(place["name"]), str(place["path"])
    if place["form"] == "move":
        target = target_of(home, name)
        asked = f"Move the function `{name}` from {home} to the new module {target}."
        more = "Whoever imports it from the old module imports it from the new one; there it can still be imported."
        vague = f"`{name}` should live by itself, in {target}, and be imported from there throughout the package."
    elif place["form"] == "parameter":
        word, new = str(place["word"]), _new_name(str(place["word"]))
        asked = f"Rename the parameter `{word}` of `{name}` in {home} to `{new}`."
        more = (
            "Callers that name it use the new word; the old one is not taken any more. The rest of the head stays."
        )
        vague = f"`{name}` should call its parameter `{new}`, not `{word}`; bring the package along."
    elif place["form"] == "extract":
        text = str(read_text(tree, home))
        asked, more, vague = extract_asked(text, home, name, _part(text, place))
    elif place["form"] == "inline":
        asked, more, vague = inline_asked(home, name)
    else:
        asked = f"Rename `{name}` of {home} to `{_new_name(name)}`."
        more = "No file may name it as before, not even as an alias or in `__all__`."
        vague = f"The name `{name}` misleads. Call it `{_new_name(name)}` throughout the package."
    match seen["issue"]:
        case "full":
            lines = [asked, more, "", "Files that change:", *(f"- {path}" for path in files)]
        case "short":
            lines = [asked, more]
        case "symptom":
            lines = [vague]
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")
    ends = "Tests follow by themselves; nothing" if place["form"] in ("rename", "parameter") else "Nothing"
    return "\n".join([*lines, "", f"The package's code is in {layout.package}. {ends} else may change."])


async def judge_refactoring(trials: Trials, changed: Any, verdict: Any) -> tuple[dict[str, float], bool]:
    """See `judges.Judge`. checks: the share that holds; only with all of them do the tests decide."""
    goal: Any = trials.task.metadata["goal"]
    paths = {str(check["path"]) for check in goal["checks"]}
    texts = {path: changed[path] if path in changed else await trials.source(path) for path in sorted(paths)}
    kept = [holds(check, texts[str(check["path"])]) for check in goal["checks"]]
    share = sum(kept) / len(kept)
    if share < 1.0:
        return {"checks": share}, True
    task = trials.task
    assert task.world is not None
    laid: dict[str, str] = dict(task.world.files)
    for path, text in goal["tests"].items():
        laid |= overlay(path, text)
    world = task.world.model_copy(update={"files": laid})
    graded = Trials(task.model_copy(update={"world": world}), trials.backend, trials.memo)
    channels, repeats = await verdict(graded, changed)
    return {**channels, "checks": share}, repeats
