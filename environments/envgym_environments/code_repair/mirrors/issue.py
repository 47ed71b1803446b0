"""A group of failing tests and its smallest repair as a `Task`: what the model reads, and the answer apart from it.

The text is made of the tests' names and errors and of what people wrote about the change; the change itself is
never in it. ``metadata["gold"]`` holds the change as one patch of one or more files.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from envgym.task import Task, evenly
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.filtering.licences import sources_of_tree
from envgym_environments.code_repair.mirrors.classify import sources_of
from envgym_environments.code_repair.mirrors.groups import Group, Survey
from envgym_environments.code_repair.mirrors.hunks import Hunk, apply_hunks
from envgym_environments.code_repair.mirrors.notes import relevant
from envgym_environments.code_repair.mirrors.releases import stated_licence
from envgym_environments.code_repair.mirrors.stage import Stage
from envgym_environments.code_repair.mirrors.trees import Pair
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.runner import Layout

__all__ = ["Asked", "asked", "gold_patch", "mirror_task", "notes_for", "sources_in"]

_SHOWN = 5
_LINE = 240
_MOST_GUARDS = 300


def _prompt(pair: Pair, layout: Layout, tests: Sequence[str], errors: Sequence[str], notes: Sequence[str]) -> str:
    count = len(tests)
    title = f"{pair.package.name} {pair.old_name}" if pair.kind == "release" else pair.package.name
    lines = [f"{title} does not do what it should: {count} test{'s fail' if count != 1 else ' fails'}.", ""]
    lines += [f"- {test}\n  {error[:_LINE]}" for test, error in list(zip(tests, errors, strict=True))[:_SHOWN]]
    if count > _SHOWN:
        lines.append(f"- and {count - _SHOWN} more")
    if notes and pair.kind == "release":
        lines += ["", "The release notes of the version in which they pass hold:", ""]
        lines += [f"- {note}" for note in notes]
    elif notes:
        lines += ["", "Those who repaired it wrote:", "", *notes]
    lines += [
        "",
        f"The package's code is in {layout.package}; the tests are right. Repair the code, so that these tests "
        "pass and no other test breaks.",
    ]
    return "\n".join(lines)


def gold_patch(code: Mapping[str, str], gold: Sequence[Hunk]) -> str:
    """The repair of a base state as one unified diff."""
    after = apply_hunks(code, gold)
    return make_patch({path: code.get(path) for path in after}, after)


def _gold(code: Mapping[str, str], gold: Sequence[Hunk]) -> dict[str, JsonValue]:
    """The answer in the shape of the factory's: places with their wrong and right text, and one patch.

    A place counts in the file as the places before it have left it, so they are restored in their order.
    """
    places: list[JsonValue] = []
    shift: Counter[str] = Counter()
    for hunk in gold:
        wrong, right = "".join(hunk.removed), "".join(hunk.added)
        line = 1 + hunk.first + shift[hunk.path]
        shift[hunk.path] += len(hunk.added) - len(hunk.removed)
        places.append({"path": hunk.path, "line": line, "column": 0, "wrong": wrong, "right": right})
    (first, *_) = places
    assert isinstance(first, dict)
    return {
        **first,
        "patch": gold_patch(code, gold),
        "bugs": places,
        "hunks": [hunk.digest for hunk in gold],
        "lines": sum(hunk.size for hunk in gold),
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """What a task asks for, in its order: all of it that was measured, none of it code.

    layout: with the files and deselected tests of this task. passing: the guards, a share of those kept. errors: of
    each failing test. count: tests that count. suite_s: of the later state.
    """

    layout: Layout
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    errors: Mapping[str, str]
    count: int
    suite_s: float


def asked(stage: Stage, group: Group, found: Survey) -> Asked:
    """What the task of a group asks for.

    Tests that it neither repairs nor keeps are deselected: they fail for other reasons, or do not repeat. Files
    without any other test are left out; perhaps they cannot even be collected.
    """
    counted = {*group.tests, *group.kept}
    deselect = (*stage.layout.deselect, *(name for name in group.names if name not in counted))
    files = {name.partition("::")[0] for name in counted}
    tests = tuple(file for file in stage.layout.tests if file in files)
    deselect = tuple(dict.fromkeys(name for name in deselect if name.partition("::")[0] in files))
    return Asked(
        layout=stage.layout.model_copy(update={"tests": tests, "deselect": deselect}),
        failing=group.tests,
        passing=tuple(evenly(group.kept, _MOST_GUARDS)),
        errors={test: found.failing[test] for test in group.tests},
        count=len(counted),
        suite_s=round(found.suite_s, 3),
    )


def notes_for(pair: Pair, tree: Path, tests: Sequence[str], errors: Sequence[str]) -> tuple[str, ...]:
    """What people wrote about the repair of these tests, as far as its words tell."""
    if pair.kind == "commit":
        return tuple(pair.notes)
    return tuple(relevant(pair.notes, " ".join((*tests, *errors, *sources_in(tree, tests)))))


def sources_in(tree: Path, tests: Sequence[str]) -> list[str]:
    """The source of these tests."""
    paths = {test.partition("::")[0] for test in tests}
    texts = {path: (tree / path).read_bytes().decode("utf-8", "replace") for path in paths}
    return sources_of(texts, tests)


def mirror_task(pair: Pair, stage: Stage, gold: Sequence[Hunk], told: Asked, notes: Sequence[str] = ()) -> Task:
    """The task of a repair. Its id depends on both states, the tests and the repair."""
    key = "\x1f".join((*told.failing, *(hunk.digest for hunk in gold)))
    digest = hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
    metadata: dict[str, JsonValue] = {
        "package": pair.package.name,
        "version": pair.old_name,
        "sha256": pair.package.sha256,
        "sources": sources_of_tree(
            stage.tree,
            origin=f"{pair.kind} {pair.slug}",
            sha256=pair.package.sha256,
            licence=pair.package.licence or stated_licence(pair.old),
        ),
        "layout": told.layout.model_dump(mode="json"),
        "module": gold[0].path,
        "line": gold[0].first + 1,
        "bugs": len(gold),
        "operator": f"{pair.kind}-mirror",
        "fail_to_pass": list(told.failing),
        "pass_to_pass": list(told.passing),
        "errors": dict(told.errors),
        "tests": told.count,
        "suite_s": told.suite_s,
        "gold": _gold(stage.code, gold),
        "provenance": {
            "kind": pair.kind,
            **pair.provenance,
            "bridged": [f"{hunk.path}:{hunk.digest}" for hunk in stage.bridged],
        },
    }
    return Task(
        id=f"code-repair/{pair.slug}/{pair.kind}-mirror-{digest}",
        prompt=_prompt(pair, told.layout, told.failing, list(told.errors.values()), notes),
        world=package_world(stage.tree),
        split=pair.package.split,
        metadata=metadata,
    )
