"""What a model reads: the same bug told at three levels of specificity, never with the place where it is.

"full" names failing tests and their exceptions; "short" is what somebody in a hurry writes; "symptom" says only
what a user of the package sees. (RefactorBench gives every task three instructions of different specificity.)
Names of the broken functions and modules are taken out of messages; "full" leaves what tests are called as it is,
"short" names none that is called after the place. Pure.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

__all__ = ["covered", "hidden_names", "issue_of", "mistakes"]

_SHOWN = 5
_LINE = 200


def issue_of(metadata: Mapping[str, Any]) -> str:
    """The prompt of a task from what its metadata says of the failures, at the level of ``metadata["issue"]``."""
    hidden = hidden_names(metadata)
    failing = list(metadata["fail_to_pass"])
    errors = [covered(str(metadata["errors"].get(test, "")), hidden)[:_LINE] for test in failing]
    match metadata["issue"]:
        case "full":
            return _full(metadata, failing, errors)
        case "short":
            return _short(metadata, failing, errors, hidden)
        case "symptom":
            return _symptom(metadata, errors)
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")


def _full(metadata: Mapping[str, Any], failing: Sequence[str], errors: Sequence[str]) -> str:
    lines = [
        f"Since the last change, {len(failing)} of the {metadata['tests']} tests of {metadata['package']} "
        f"{metadata['version']} fail{'s' if len(failing) == 1 else ''}:",
        "",
    ]
    for test, error in list(zip(failing, errors, strict=True))[:_SHOWN]:
        depth = metadata["depths"].get(test, 0)
        deep = f" (raised {depth} call{'s' * (depth != 1)} deep in the package)" if depth else ""
        lines.append(f"- {test}\n  {error}{deep}")
    if len(failing) > _SHOWN:
        lines.append(f"- and {len(failing) - _SHOWN} more")
    lines += [
        "",
        f"The package's code is in {metadata['layout']['package']}. {mistakes(metadata)}; the tests are right. "
        "Repair it, so that these tests pass again and no other test breaks.",
    ]
    return "\n".join(lines)


def _short(
    metadata: Mapping[str, Any], failing: Sequence[str], errors: Sequence[str], hidden: Sequence[str]
) -> str:
    kinds = Counter(_kind(error) for error in errors)
    kind, most = min(kinds.items(), key=lambda item: (-item[1], item[0]))
    what = f"{len(failing)} tests of" if len(failing) > 1 else "A test of"
    how = f"{'mostly ' * (most < len(failing))}with {kind}"
    names = [test.rpartition("::")[2] for test, error in zip(failing, errors, strict=True) if _kind(error) == kind]
    named = next((name for name in names if not any(part in name for part in hidden)), "")
    return (
        f"{what} {metadata['package']} fail{'s' * (len(failing) == 1)} since the last change, {how}"
        f"{f', {named} for one' * bool(named)}. {mistakes(metadata)}. Please fix {metadata['layout']['package']}."
    )


def _symptom(metadata: Mapping[str, Any], errors: Sequence[str]) -> str:
    seen: dict[str, str] = {}
    for error in errors:
        seen.setdefault(_kind(error), error)
    lines = [f"Something in {metadata['package']} {metadata['version']} no longer works. What users report:", ""]
    for kind, error in list(seen.items())[:3]:
        said = error.partition(":")[2].strip()
        if kind == "AssertionError":
            lines.append(f"- a result is wrong{f': {said}' if said else ''}")
        elif kind == "Failed":
            lines.append("- an exception that used to be raised is not raised any more")
        elif kind == "TestDeadline":
            lines.append("- a call does not come to an end")
        else:
            lines.append(f"- a call that used to work raises {kind}{f': {said}' if said else ''}")
    lines += [
        "",
        f"{mistakes(metadata)} somewhere in {metadata['layout']['package']}. Find and repair it without changing "
        "what else the package does; its tests will decide.",
    ]
    return "\n".join(lines)


def mistakes(metadata: Mapping[str, Any]) -> str:
    """How many there are, as the beginning of a sentence."""
    count = int(metadata["bugs"])
    return "There is one mistake" if count == 1 else f"There are {count} mistakes, independent of each other"


def _kind(error: str) -> str:
    return error.partition(":")[0].strip().rpartition(".")[2] or "an error"


def hidden_names(metadata: Mapping[str, Any]) -> list[str]:
    """What would name a bug's place: functions and modules, longest first."""
    names: set[str] = set()
    gold, layout = metadata["gold"], metadata.get("layout")
    whole = PurePosixPath(str(layout["package"])) if layout else None
    for place in gold["bugs"]:
        path = PurePosixPath(place["path"])
        names |= {str(path), path.name}
        if path != whole and path.stem != "__init__":
            names.add(path.stem)
    for function in metadata["functions"]:
        names |= {function, *re.split(r"\.|::", function)}
    return sorted((name for name in names if len(name) > 1), key=lambda name: (-len(name), name))


def covered(text: str, hidden: Sequence[str]) -> str:
    """A text without these names."""
    for name in hidden:
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", "...", text)
    return text
