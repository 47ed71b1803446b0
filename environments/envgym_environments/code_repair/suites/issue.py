"""What a model reads of a broken project in any language, at the same three levels as for Python packages.

"full" names failing tests and what the runner says of them, "short" is what somebody in a hurry writes, "symptom"
has the runner's words without its tests. What would name the place is taken out of the words. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from envgym_environments.code_repair.issue import covered, hidden_names, mistakes

__all__ = ["issue_of_suite", "told_by_people"]

_SHOWN = 5
_LINE = 200
_SYMPTOMS = 3
_UNSAID = ("failed", "error", "Failed", "not run")
"""What a runner says that says nothing of the world."""
_PLACE = re.compile(r"^\S+:\d+(:\d+)?:? *")
"""Where a test stands, before its words."""


def issue_of_suite(metadata: Mapping[str, Any]) -> str:
    """The prompt of a task from what its metadata says of the failures, at the level of ``metadata["issue"]``."""
    hidden = hidden_names(metadata)
    errors = [covered(error, hidden)[:_LINE] for error in _errors(metadata)]
    match metadata["issue"]:
        case "full":
            return _full(metadata, errors)
        case "short":
            return _short(metadata, errors, hidden)
        case "symptom":
            return _symptom(metadata, errors)
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")


def told_by_people(metadata: Mapping[str, Any], notes: Sequence[str]) -> str:
    """The prompt of a real repair: the failures, and what those who made it wrote. notes: may be empty."""
    said = ["", "Those who repaired it wrote:", "", *notes] if notes else []
    end = f"The code is in {_sources(metadata)}. The tests are right. {_REPAIR}"
    lines = _failures(metadata, f"{metadata['package']} does not do what it should:", _errors(metadata))
    return "\n".join([*lines, *said, "", end, "", _command(metadata)])


_REPAIR = "Repair it, so that these tests pass again and no other test breaks."


def _full(metadata: Mapping[str, Any], errors: Sequence[str]) -> str:
    several = int(metadata["bugs"]) > 1
    where = f"{mistakes(metadata)} in that code" if several else "The mistake is in one place of that code"
    end = f"The code is in {_sources(metadata)}. {where}; the tests are right. {_REPAIR}"
    return "\n".join([*_failures(metadata, "Since the last change,", errors), "", end, "", _command(metadata)])


def _short(metadata: Mapping[str, Any], errors: Sequence[str], hidden: Sequence[str]) -> str:
    failing = metadata["fail_to_pass"]
    what = (
        f"{len(failing)} tests of {metadata['package']} fail"
        if len(failing) > 1
        else f"A test of {metadata['package']} fails"
    )
    named = next((test for test in failing if not any(name in test for name in hidden)), "")
    said = next((error for error in errors if error not in _UNSAID), "")
    lines = [f"{what} since the last change{f', {named} for one' * bool(named)}{f': {said}' * bool(said)}"]
    lines += [f"{mistakes(metadata)}. Please fix {_sources(metadata)}.", "", _command(metadata)]
    return "\n".join(lines)


def _symptom(metadata: Mapping[str, Any], errors: Sequence[str]) -> str:
    said = (_PLACE.sub("", error) for error in errors if error not in _UNSAID)
    seen = list(dict.fromkeys(error for error in said if error))[:_SYMPTOMS]
    lines = [f"Something in {metadata['package']} {metadata['version']} no longer works. What is reported:", ""]
    lines += [f"- {error}" for error in seen] or ["- a result is wrong"]
    end = (
        f"{mistakes(metadata)} somewhere in {_sources(metadata)} ({metadata['language']}). Find and repair it "
        "without changing what else the code does; its tests will decide."
    )
    return "\n".join([*lines, "", end, "", _command(metadata)])


def _failures(metadata: Mapping[str, Any], since: str, errors: Sequence[str]) -> list[str]:
    failing = metadata["fail_to_pass"]
    lines = [
        f"{since} {len(failing)} of the {metadata['tests']} tests of {metadata['package']} "
        f"{metadata['version']} ({metadata['language']}) fail{'s' if len(failing) == 1 else ''}:",
        "",
    ]
    lines += [f"- {test}\n  {line[:_LINE]}" for test, line in list(zip(failing, errors, strict=True))[:_SHOWN]]
    return lines + ([f"- and {len(failing) - _SHOWN} more"] if len(failing) > _SHOWN else [])


def _errors(metadata: Mapping[str, Any]) -> list[str]:
    return [str(metadata["errors"].get(test, "")) for test in metadata["fail_to_pass"]]


def _sources(metadata: Mapping[str, Any]) -> str:
    return ", ".join(metadata["suite"]["source"])


def _command(metadata: Mapping[str, Any]) -> str:
    suite = metadata["suite"]
    return f"The whole suite is run by: {' && '.join([*suite['build'], suite['test'].replace(' {tests}', '')])}"
