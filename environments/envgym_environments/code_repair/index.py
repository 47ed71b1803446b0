"""The index of a task set: what is needed to make the same set again, without a line of any package's code.

It names each package (version, hash, recipe), each mistake (file, operator, digest of the edit) and what was
measured (tests by number, error lines, certificates). `rebuild` fetches the packages, finds the mistakes again with
the operators of this version, and gives the same tasks byte by byte; where an operator no longer makes an edit, it
says which. Nothing is run.
"""

import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envgym.task import Task
from envgym_environments.code_repair.certify import Certificate, certificate_of, with_certificate
from envgym_environments.code_repair.describe import Part, assemble, is_local
from envgym_environments.code_repair.kinds.index import asked_again, is_of_a_kind, row_of
from envgym_environments.code_repair.kinds.ml.recipe import ml_packages
from envgym_environments.code_repair.operators import Mutation, candidates
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import Package, packages, source_tree

__all__ = ["read_index", "rebuild", "write_index"]

_FORMAT = "envgym code-repair index 1"
_FACTS = ("distance", "interacting", "issue", "seed", "tests", "suite_s")


def _spans(numbers: Sequence[int]) -> str:
    """Numbers as "0-3,7", in their order."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _numbers(spans: str) -> list[int]:
    """The inverse of `_spans`."""
    found: list[int] = []
    for span in filter(None, spans.split(",")):
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class _Table:
    """Values in the order of their first use, each with its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, value: str) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def _row(task: Task, tests: _Table, errors: _Table, certificates: _Table) -> dict[str, Any]:
    if is_of_a_kind(task):
        return row_of(task)
    data: dict[str, Any] = dict(task.metadata)
    row: dict[str, Any] = {
        "bugs": [
            [place["path"], operator, place["line"], digest]
            for place, operator, digest in zip(
                data["gold"]["bugs"], data["operators"], data["digests"], strict=True
            )
        ],
        "fail": _spans([tests.number(name) for name in data["fail_to_pass"]]),
        "pass": _spans([tests.number(name) for name in data["pass_to_pass"]]),
        "errors": [errors.number(data["errors"][name]) for name in data["fail_to_pass"]],
        "depths": [data["depths"][name] for name in data["fail_to_pass"]],
        **{name: data[name] for name in _FACTS},
    }
    certificate = certificate_of(task)
    if certificate is not None:
        plain = certificate.model_copy(update={"seconds": 0.0, "digest": ""})
        row |= {"certificate": certificates.number(plain.model_dump_json()), "seconds": certificate.seconds}
    return row


def write_index(tasks: Iterable[Task], path: Path, *, recipe: Sequence[Package] | None = None) -> None:
    """Write the index of tasks of the factory. recipe: where their packages are listed (None: of this project).

    path: one that ends in ".xz" is compressed, to about a tenth.
    Raises ValueError for a task that is not of the factory, or whose package the recipe does not have.
    """
    known = {one.sha256: one for one in (*(packages() if recipe is None else recipe), *ml_packages())}
    groups: dict[str, list[Task]] = {}
    listed = list(tasks)
    for task in listed:
        package = known.get(str(task.metadata.get("sha256")))
        if is_local(task):
            raise ValueError(
                f"task {task.id!r} is of a tree of a machine (--source), which nothing can fetch again: keep its "
                "file, and the cache that it stands on"
            )
        if package is None or not ("digests" in task.metadata or is_of_a_kind(task)):
            raise ValueError(
                f"task {task.id!r} is not of the factory, or of a package that the recipe does not have"
            )
        if "written_by" in task.metadata or "issue_by" in task.metadata:
            raise ValueError(
                f"task {task.id!r} holds what a language model wrote, which no index can make again; keep its file"
            )
        groups.setdefault(f"{package.sha256} {json.dumps(task.metadata['layout'])}", []).append(task)
    lines = [json.dumps({"format": _FORMAT, "count": len(listed)})]
    for group in groups.values():
        tests, errors, certificates = _Table(), _Table(), _Table()
        rows = [_row(task, tests, errors, certificates) | _rate(task) for task in group]
        head = {
            "package": known[str(group[0].metadata["sha256"])].model_dump(mode="json"),
            "layout": group[0].metadata["layout"],
            "tests": list(tests.numbers),
            "errors": list(errors.numbers),
            "certificates": [json.loads(one) for one in certificates.numbers],
            "count": len(rows),
        }
        lines += [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in (head, *rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def read_index(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(head, rows) of each package; a file that ends in ".xz" is compressed.

    Raises ValueError naming the file and what is wrong with it.
    """
    try:
        first, *lines = [json.loads(line) for line in _text(path).split("\n")[:-1]]
        if first["format"] != _FORMAT:
            raise ValueError(f"its format is {first['format']!r}; this version reads {_FORMAT!r}")
        found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        while lines:
            head, rows = lines[0], lines[1 : lines[0]["count"] + 1]
            if len(rows) != head["count"]:
                raise ValueError(f"{head['package']['name']} has {len(rows)} tasks, but announces {head['count']}")
            found.append((head, rows))
            lines = lines[1 + len(rows) :]
        count = sum(len(rows) for _, rows in found)
        if count != first["count"]:
            raise ValueError(f"it has {count} tasks, but announces {first['count']}")
    except (ValueError, KeyError, TypeError, IndexError, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is not an index of code-repair tasks: {error}") from error
    return found


def rebuild(
    path: Path, *, cache: Path | None = None, progress: Callable[[str], None] = lambda line: None
) -> list[Task]:
    """The tasks of an index. progress: gets a line per package.

    Raises ValueError when the index is damaged or a mistake cannot be made again, InfrastructureFailure when a
    package cannot be had.
    """
    tasks: list[Task] = []
    for head, rows in read_index(path):
        package, layout = Package.model_validate(head["package"]), Layout.model_validate(head["layout"])
        tree = source_tree(package, cache=cache)
        files: dict[str, tuple[str, dict[str, Mutation]]] = {}
        for row in rows:
            if "kind" in row:
                tasks.append(_as_rated(asked_again(package, layout, tree, row), row))
                continue
            parts = [_part(package, tree, place, files) for place in row["bugs"]]
            task = assemble(package, layout, tree, parts, _facts(head, row))
            if "certificate" in row:
                raw = head["certificates"][row["certificate"]] | {"seconds": row["seconds"]}
                task = with_certificate(task, Certificate.model_validate(raw))
            tasks.append(_as_rated(task, row))
        progress(f"{package.slug}: {len(rows)} tasks")
    return tasks


def _rate(task: Task) -> dict[str, Any]:
    """What solvers made of it (see `difficulty`), where any has tried."""
    return {name: task.metadata[name] for name in ("pass_rate",) if name in task.metadata}


def _as_rated(task: Task, row: Mapping[str, Any]) -> Task:
    if "pass_rate" not in row:
        return task
    return task.model_copy(update={"metadata": {**task.metadata, "pass_rate": row["pass_rate"]}})


def _part(
    package: Package, tree: Path, place: Sequence[Any], files: dict[str, tuple[str, dict[str, Mutation]]]
) -> Part:
    path, operator, line, digest = place
    if path not in files:
        source = (tree / path).read_bytes().decode("utf-8", "replace")
        files[path] = source, {mutation.digest: mutation for mutation in candidates(source)}
    source, known = files[path]
    if digest not in known:
        raise ValueError(
            f"{package.slug}: {operator} at line {line} of {path} (edit {digest}) is not made by the operators of "
            "this version; rebuild with the version that wrote the index"
        )
    return Part(path, source, known[digest])


def _facts(head: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What `describe.make_task` measured, in its order."""
    failing = [head["tests"][number] for number in _numbers(row["fail"])]
    lines = [head["errors"][number] for number in row["errors"]]
    return {
        "distance": row["distance"],
        "interacting": row["interacting"],
        "issue": row["issue"],
        "seed": row["seed"],
        "fail_to_pass": failing,
        "pass_to_pass": [head["tests"][number] for number in _numbers(row["pass"])],
        "errors": dict(zip(failing, lines, strict=True)),
        "depths": dict(zip(failing, row["depths"], strict=True)),
        "tests": row["tests"],
        "suite_s": row["suite_s"],
    }
