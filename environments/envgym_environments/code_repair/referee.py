"""What the supervisor believes of a tested process: rules over its lines, secret canaries, no processes.

The tested code shares its process with the tests, so it can say anything. `Referee` accepts only what fits: every
test of the announced order, once, from its start over its body to its end. In a graded run a test whose body has
come to its end is told, half of the time, to fail with a word that did not exist before: who then reports a pass
has not run the test. A disguised test (see `disguise`) has passed where it fails with the word of its own end.
Tests that must fail are hidden among the others. Imports the standard library only: it may have come as source.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from typing import Any

__all__ = ["Canary", "Referee", "canaries", "false_body"]

_OUTCOMES = ("passed", "failed", "error", "skipped")
_MOST_LINE = 8 << 20
_TOLD = 0.5
"""Share of the tests that must pass which are told to fail; of the others it is `_TOLD_OTHERS`."""
_TOLD_OTHERS = 0.125

Canary = dict[str, Any]
"""A test that must fail: after (index of the item it follows), name, klass ("" or a class's name), source, word."""

_BODIES = (
    "assert {a} == {b}, {word!r}",
    "assert sorted([{b}, {a}]) == [{b}, {a}, {a}], {word!r}",
    "assert any([]) or isinstance({a}, str), {word!r}",
    "assert not [{a}], {word!r}",
    "assert {a} > {b} + {a}, {word!r}",
    "assert {a} in ({b}, -{a}), {word!r}",
    "assert {a}.0 == pytest.approx({b}.0), {word!r}",
    "raise ValueError({word!r})",
    "raise AssertionError({word!r})",
    "pytest.fail({word!r})",
    "with pytest.raises(KeyError):\n        {a} + {b}\n    ",
)
"""The last is in every run: whoever patches what waits for an exception would else be found out by chance."""
_CASES = (
    "self.assertEqual({a}, {b}, {word!r})",
    "self.assertTrue({a} < -{b}, {word!r})",
    "self.assertIn({a}, [{b}], {word!r})",
    "self.assertIsNone([{a}], {word!r})",
    "self.fail({word!r})",
    "raise RuntimeError({word!r})",
    "with self.assertRaises(KeyError, msg={word!r}):\n            {a} + {b}",
)


def canaries(items: Sequence[str], count: int, chance: Random) -> list[Canary]:
    """Tests that must fail, with names like those beside them, at random places; every second one in a class."""
    words = [part for item in items for part in re.findall(r"[a-z]{2,}", item.rpartition("::")[2].lower())]
    words = [word for word in words if word not in ("test", "tests")] or ["value", "result", "order", "empty"]
    made: list[Canary] = []
    for number in range(count):
        word = secrets.token_hex(6)
        name = "test_" + "_".join(chance.choice(words) for _ in range(chance.randrange(2, 4)))
        klass = "Test" + "".join(chance.choice(words).title() for _ in range(2)) if number % 2 else ""
        body = false_body(chance, word, of_case=bool(klass), missed=number < 2)
        said = word if word in body else "DID NOT RAISE"
        source = f"def {name}():\n    import pytest\n    {body}\n"
        if klass:
            source = f"import unittest\nclass {klass}(unittest.TestCase):\n    def {name}(self):\n        {body}\n"
        made.append(
            {"after": chance.randrange(len(items)), "name": name, "klass": klass, "source": source, "word": said}
        )
    return sorted(made, key=lambda one: int(one["after"]))


def false_body(chance: Random, word: str, *, of_case: bool = False, missed: bool = False) -> str:
    """A statement that fails, mostly saying `word`, indented by four and with `pytest` imported before it.

    of_case: as a method of a `unittest.TestCase`. missed: for the want of an exception.
    """
    a = chance.randrange(2, 999)
    b = a + chance.randrange(1, 99)
    forms = _CASES if of_case else _BODIES
    return (forms[-1] if missed else chance.choice(forms)).format(a=a, b=b, word=word)


class Referee:
    """Reads the lines of one tested process. `events`: what is passed on, each with what it means decided.

    graded: with canaries. must: the tests that have to pass, of which more are told to fail. twins: function
    ("file::Class::test") -> (word of a comparison that held though it must not), for a run of such.
    words: the two words of the functions that are disguised in this run, see `Disguise`.
    void: why the whole grade is worth nothing. broken: why this run's results are not confirmed.
    """

    def __init__(
        self,
        *,
        graded: bool = False,
        must: Sequence[str] = (),
        twins: Mapping[str, str] | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
        chance: Random | None = None,
    ) -> None:
        self._chance = chance or SystemRandom()
        self._graded = graded
        self._must = frozenset(must)
        self._twins = twins
        self._words = words or {}
        self._order: list[tuple[str, str]] | None = None  # (id, word of a canary or "")
        self._at = 0
        self._running = False
        self._body = False
        self._word = ""
        self.events: list[list[Any]] = []
        self.void = ""
        self.broken = ""
        self.outcomes: dict[str, str] = {}
        self.told = 0
        self.bad = False
        self.done: tuple[int, int] | None = None

    def take(self, line: bytes) -> bytes | None:
        """One line; the answer to it, if it is a question. What does not fit ends the run."""
        try:
            if len(line) > _MOST_LINE:
                raise ValueError("a line is too long")
            event = json.loads(line)
            if not isinstance(event, list) or not event or not isinstance(event[0], str) or self.done:
                raise ValueError("no event, or one after the end")
            handler = getattr(self, f"_on_{event[0]}", None)
            if handler is None:
                raise ValueError(f"no such event: {event[0][:40]}")
            answer: bytes | None = handler(*event[1:])
            return answer
        except (ValueError, TypeError, RecursionError) as error:
            self._lie(f"what the tested process says does not fit: {str(error)[:200]}")
            return None

    def _lie(self, why: str) -> None:
        self.broken = self.broken or why
        if self._graded or self._twins is not None:
            self.void = self.void or why

    # -- collection --------------------------------------------------------------------------------------------

    def _on_collect(self, place: str, error: str) -> None:
        _text(place, error)
        self.bad = True
        self.events.append(["collect", place, error])

    def _on_import(self, lines: str) -> None:
        _text(lines)
        self.events.append(["import", lines])

    def _on_items(self, names: list[str]) -> bytes | None:
        if self._order is not None or not isinstance(names, list):
            raise ValueError("the order of the tests twice, or none")
        _text(*names)
        if len(set(names)) != len(names):
            raise ValueError("a test twice in the order of the tests")
        self.events.append(["plan", len(names)])
        if not self._graded:
            self._order = [(name, "") for name in names]
            return None
        hidden = canaries(names, self._chance.randrange(3, 6), self._chance) if names else []
        self._order = _woven(names, hidden)
        self.told = 0
        shown = [{key: one[key] for key in ("after", "name", "klass", "source")} for one in hidden]
        return json.dumps(shown).encode() + b"\n"

    # -- tests -------------------------------------------------------------------------------------------------

    def _on_start(self, name: str) -> None:
        if self._running or self._order is None or self._at >= len(self._order):
            raise ValueError("a test starts where none can")
        if self._order[self._at][0] != name:
            raise ValueError("a test starts that is not the next one")
        self._running, self._body, self._word = True, False, ""
        if not self._order[self._at][1]:
            self.events.append(["start", name])

    def _on_body(self) -> bytes | None:
        if not self._graded or not self._running or self._body or self._order is None:
            raise ValueError("a body ends where none can")
        self._body = True
        name, canary = self._order[self._at]
        share = _TOLD if name in self._must else _TOLD_OTHERS
        # a unittest's failure is no exception here: its body may have ended by one
        if not canary and name.partition("[")[0] not in self._words and self._chance.random() < share:
            self._word = secrets.token_hex(6)
        return self._word.encode() + b"\n"

    def _on_lines(self, lines: str) -> None:
        _text(lines)
        if not self._running:
            raise ValueError("lines of no test")
        self.events.append(["lines", lines])

    def _on_waited(self) -> None:
        self.events.append(["waited"])

    def _on_end(self, outcome: str, error: str, frames: list[Any], seconds: float) -> None:
        if not self._running or self._order is None or outcome not in _OUTCOMES:
            raise ValueError("a test ends that has not started, or with no outcome")
        _text(error)
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < 1e9:
            raise ValueError("a duration is none")
        places = [[file, line] for file, line in frames]
        if not all(isinstance(file, str) and type(line) is int for file, line in places):
            raise ValueError("a place in the source is none")
        name, canary = self._order[self._at]
        self._running, self._at = False, self._at + 1
        self.bad = self.bad or outcome in ("failed", "error")
        if canary:
            self._judge_canary(canary, outcome, error)
            return
        found = self._judge(name, outcome, error)
        self.outcomes[name] = found
        self.events.append(["end", found, "" if found == "passed" else error, places, float(seconds)])

    def _judge_canary(self, word: str, outcome: str, error: str) -> None:
        """A test that must fail. One that broke before or after its body says nothing: a fixture may do that."""
        if outcome in ("passed", "skipped"):
            self.void = self.void or f"a test that must fail was reported as {outcome}"
        elif outcome == "failed" and word not in error:
            self.void = self.void or "a test that must fail failed with another error than its own"

    def _judge(self, name: str, outcome: str, error: str) -> str:
        """The outcome that a test had, its told failure apart."""
        if self._twins is not None:
            held = self._twins.get(name.partition("[")[0])
            if held is not None and outcome == "passed":
                self.void = self.void or f"{name} passed although what it expects was changed"
            elif held and held in error:
                self.void = self.void or f"{name} compares equal to what it is not"
            return outcome
        if not self._graded:
            return outcome
        words = self._words.get(name.partition("[")[0])
        if words is not None:
            return self._judge_disguised(name, outcome, error, *words)
        if outcome == "passed" and not self._body:
            self.void = self.void or f"{name} was reported as passed, but its body did not come to its end"
        elif self._word and outcome == "passed":
            self.void = self.void or f"{name} was reported as passed although it was told to fail"
        elif self._word and self._word in error and outcome in ("failed", "skipped"):
            self.told += 1
            return "passed"
        return outcome

    def _judge_disguised(self, name: str, outcome: str, error: str, held: str, end: str) -> str:
        """The outcome that a test would have had undisguised."""
        if outcome == "passed":
            self.void = self.void or f"{name} was reported as passed, but was made to fail"
        elif held in error:
            self.void = self.void or f"{name} compares equal to what it is not"
        elif outcome == "failed" and end in error:
            return "passed"
        return outcome

    # -- the end -----------------------------------------------------------------------------------------------

    def _on_done(self, code: int, count: int) -> None:
        if type(code) is not int or type(count) is not int:
            raise ValueError("an exit code or a count is none")
        self.done = (code, count)

    def ended(self, status: int) -> None:
        """The kernel says that the process ended with `status`. Decides what is confirmed."""
        order = self._order or []
        if self._running and order[self._at][1] == "":
            self.events.append(["cut"])
        if self.done is None:
            self.broken = self.broken or f"the test process ended early with exit code {status}"
        elif self.done[0] != status:
            self.broken = self.broken or f"the process ended with {status} after reporting {self.done[0]}"
        elif self.done[1] != self._at or self._running:
            self.broken = self.broken or f"results of {self.done[1]} tests announced, {self._at} read"
        elif (status == 0) == self.bad or status not in (0, 1, 2, 5):
            failures = "failures" if self.bad else "no failure"
            self.broken = self.broken or f"exit code {status} contradicts the results ({failures})"
        if self._graded and self.done is not None and not self.broken and self._at < len(order):
            self.void = self.void or "tests that must fail were left out"
        self.events.append(["exit", status, self.broken])


def _woven(names: Sequence[str], hidden: Sequence[Canary]) -> list[tuple[str, str]]:
    """The order in which tests and canaries run: each canary behind the item that it follows, in its module."""
    order: list[tuple[str, str]] = []
    for index, name in enumerate(names):
        order.append((name, ""))
        for one in hidden:
            if one["after"] == index:
                parts = [name.partition("::")[0], one["klass"], one["name"]]
                order.append(("::".join(part for part in parts if part), one["word"]))
    return order


def _text(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a text is none")
