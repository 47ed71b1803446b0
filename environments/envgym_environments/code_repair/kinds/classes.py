"""Class-level generation: a class of a real package is removed, and has to be written again inside its repository.

Where the package can be imported without it, the class is gone ("removed"); where it cannot, its methods lose their
bodies ("hollow"). The package's own tests decide, as in a repair. (RepoClassBench: classes with dependencies across
files, described in words, judged by the repository's tests.)
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from envgym.sandbox import Sandbox
from envgym.task import evenly
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.assemble import read_text
from envgym_environments.code_repair.kinds.class_issue import class_issue
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.places import covered_sources
from envgym_environments.code_repair.runner import Layout, TestReport, run_tests

__all__ = ["ClassGeneration", "hollow", "removed"]

_LINES = (6, 200)
_MOST_CHARACTERS = 15_000
_MOST_GUARDS = 60
_FAILING_MOST = 400


class ClassGeneration:
    """See `contract.Kind`. A class is tried as removed first, then as hollow; ``seen["state"]`` says which."""

    name = "class"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Classes of at least two methods whose bodies some tests run, and not too many."""
        found: list[Place] = []
        for path, source in covered_sources(tree, baseline.layout, list(baseline.covers)):
            for node in _classes(source):
                covering = _covering(baseline, path, node)
                if 0 < len(covering) <= min(plan.most_covering, _FAILING_MOST):
                    found.append({"form": "class", "path": path, "class": node.name})
        return found

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """Without the class, twice, tests that run it fail; the same ones each time."""
        source = str(read_text(tree, place["path"]))
        node = _named(source, place["class"])
        found: Seen | Verdict = Verdict.BREAKS_IMPORT
        for state, text in (("removed", removed(source, node)), ("hollow", hollow(source, node))):
            if found is Verdict.BREAKS_IMPORT and text is not None:
                found = await self._tried(base, baseline, place, node, text, plan)
            if not isinstance(found, Verdict):
                return {"state": state, **found}
        return found

    async def _tried(
        self, base: Sandbox, baseline: Baseline, place: Place, node: ast.ClassDef, text: str, plan: Plan
    ) -> Seen | Verdict:
        runs: list[TestReport] = []
        for _ in range(plan.repetitions):
            async with await base.fork() as fork:
                await fork.write(place["path"], text.encode())
                runs.append(
                    await run_tests(
                        fork,
                        baseline.layout,
                        selection=baseline.tests,
                        timeout_s=30.0 + 10.0 * baseline.suite_s,
                        test_timeout_s=1.0 + baseline.suite_s,
                    )
                )
        first = runs[0]
        if first.collection_errors:
            return Verdict.BREAKS_IMPORT
        if first.timed_out or first.doubt:
            return Verdict.CRASHES
        if any(one.failing != first.failing for one in runs):
            return Verdict.FLAKY
        covering = set(_covering(baseline, place["path"], node))
        failing = [test for test in first.failing if test in covering]
        if not failing:
            return Verdict.SURVIVED
        others = [test for test in baseline.tests if test not in set(failing)]
        return {
            "fail_to_pass": failing,
            "pass_to_pass": list(evenly(others, _MOST_GUARDS)),
            "errors": {test: first.errors.get(test, "") for test in failing},
            "tests": len(baseline.tests),
        }

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The class out, and described; the answer puts the file back."""
        path = str(place["path"])
        source = read_text(tree, path)
        if source is None:
            raise ValueError(f"there is no {path} in {tree}")
        node = _named(source, place["class"])
        text = removed(source, node) if seen["state"] == "removed" else hollow(source, node)
        if text is None:
            raise ValueError(f"class {node.name} of {path} cannot be made hollow")
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        used = sorted(_users(tree, layout, node.name, besides=path))
        return Draft(
            name=f"{node.name.strip('_').lower()}",
            prompt=class_issue(node, place, seen, layout, used),
            before={path: text},
            answer={path: source},
            size={
                "lines": float(_end(node) - _start(node) + 1),
                "methods": float(len(methods)),
                "files_that_use_it": float(len(used)),
            },
        )


def _classes(source: str) -> Iterator[ast.ClassDef]:
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
        low, high = _LINES
        lines = source.split("\n")[_start(node) - 1 : _end(node)]
        if methods >= 2 and low <= len(lines) <= high and sum(map(len, lines)) <= _MOST_CHARACTERS:
            yield node


def _named(source: str, name: str) -> ast.ClassDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise ValueError(f"there is no class {name} at the top of this module")


def _start(node: ast.ClassDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _covering(baseline: Baseline, path: str, node: ast.ClassDef) -> tuple[str, ...]:
    """The tests that run a line of a method's body: the lines of the class itself run at import."""
    found: set[str] = set()
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {*baseline.covering(path, method.body[0].lineno, _end(method))}
    return tuple(test for test in baseline.tests if test in found)


def removed(source: str, node: ast.ClassDef) -> str:
    """The module without the class, its decorators and the empty lines behind it."""
    lines = source.split("\n")
    end = _end(node)
    while end < len(lines) - 1 and not lines[end].strip():
        end += 1
    return "\n".join([*lines[: _start(node) - 1], *lines[end:]])


def hollow(source: str, node: ast.ClassDef | ast.Module) -> str | None:
    """The module with every method of the class, or these functions, reduced to docstring and NotImplementedError.

    None where a method stands on one line.
    """
    lines = source.split("\n")
    for method in reversed(node.body):
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = method.body[1:] if ast.get_docstring(method, clean=False) is not None else method.body
        if body and body[0].lineno == method.lineno:
            return None
        first = body[0].lineno if body else _end(method) + 1
        if body and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([first, *(one.lineno for one in body[0].decorator_list)])
        indent = " " * method.body[0].col_offset
        lines[first - 1 : _end(method)] = [f"{indent}raise NotImplementedError"]
    return "\n".join(lines)


def _users(tree: Path, layout: Layout, name: str, *, besides: str) -> set[str]:
    """The package's files that name the class."""
    top = tree / layout.package
    found: set[str] = set()
    for place in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
        path = place.relative_to(tree).as_posix()
        if path == besides or path in layout.tests:
            continue
        try:
            nodes = ast.walk(ast.parse(place.read_bytes()))
        except (SyntaxError, ValueError):
            continue
        if any(
            (isinstance(one, ast.Name) and one.id == name)
            or (isinstance(one, ast.Attribute) and one.attr == name)
            or (isinstance(one, ast.alias) and one.name == name)
            for one in nodes
        ):
            found.add(path)
    return found
