"""Copies of tests that must fail: a test with another literal, in languages whose tests are found by a grammar.

A copy compares with what right code does not give, so that it fails before its end; where it comes to its end it
says a word, and fails. Code fools it only by what fools the test itself: values that equal everything, assertions
that hold. Text in, text out: nothing is run.
"""

import re
from collections.abc import Mapping

import numpy as np

from envgym_environments.code_repair.suites.bodies import LEFT, RIGHT, Body
from envgym_environments.code_repair.suites.suite import Language

__all__ = ["copied", "copy_of"]

_NAMED: Mapping[Language, str] = {
    "go": r"(?<=func ){}\b", "rust": r"(?<=fn ){}\b", "java": r"(?<=void ){}\b", "c++": r"(?<=,)\s*{}\b",
}  # fmt: skip
"""Where a test says its own name."""
_BEFORE: Mapping[Language, str] = {"rust": "    #[test]\n    ", "java": "    "}
_NESTED = re.compile(r"\.(?:Run|test|step)\(")
"""What begins tests inside a test, which may pass for themselves."""
_PANICS = re.compile(r"#\s*\[\s*should_panic[^\]]*\][^}]*$")


def copied(body: Body, text: str, language: Language) -> bool:
    """Whether a test can have such a copy: a literal of it is compared, and it does not have to fail."""
    if body.behind is None or not body.compared or _NESTED.search(text[body.at : body.behind]):
        return False
    return language != "rust" or not _PANICS.search(text[max(0, body.at - 400) : body.at])


def copy_of(text: str, body: Body, language: Language, name: str, word: str, rng: np.random.Generator) -> str:
    """A test of `text` under another name, as it can stand behind the test itself."""
    assert body.behind is not None
    change = body.compared[int(rng.integers(len(body.compared)))]
    end, at = body.end, change.at - body.end.at
    said = _unless_failed(end.new, language).replace(LEFT, word[:5]).replace(RIGHT, word[5:])
    if 0 <= at < len(end.old):  # the end is written around the whole body
        body_text = end.old[:at] + change.new + end.old[at + len(change.old) :]
        edits = [(end.at, end.old, said.replace(end.old, body_text, 1))]
    else:
        edits = sorted([(end.at, end.old, said), (change.at, change.old, change.new)], reverse=True)
    found = text[body.at : body.behind]
    for place, old, new in edits:
        inside = place - body.at
        found = found[:inside] + new + found[inside + len(old) :]
    found = _renamed(found, body.name, language, name)
    return f"\n\n{_BEFORE.get(language, '')}{found}\n"


def _unless_failed(end: str, language: Language) -> str:
    """In Go and googletest a test goes on behind a failure: then the word is not said."""
    if language == "go":
        return re.sub(r"(\w+)\.Fatal\(", r"if \1.Failed() {\n\1.FailNow()\n}\n\1.Fatal(", end, count=1)
    if language == "c++":
        return re.sub(r"FAIL\(\) << (.*);", r'FAIL() << (::testing::Test::HasFailure() ? "" : \1);', end, count=1)
    return end


def _renamed(text: str, old: str, language: Language, name: str) -> str:
    if language in _NAMED:
        new = f" {name}" if language == "c++" else name
        return re.sub(_NAMED[language].format(re.escape(old)), new, text, count=1)
    return text.replace(old, f"'{name}'", 1)
