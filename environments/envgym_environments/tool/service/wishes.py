"""Whether a user says yes: only to a change that was said, that they want, to things that are theirs.

What a user wants is what they say and what the case's right calls do. A yes needs an act of these and a thing of
these in the agent's words, and none that is foreign to them; "Shall I proceed?" alone gets none. Kinds of acts and
the shapes of names are all that is read: a proposal with the right order and the wrong reason still gets a yes.
"""

import re
from collections.abc import Iterator

from envgym_environments.tool.service.desk import Case

__all__ = ["WHAT", "objection"]

_CHANGE = r"\bmodif|\bchang|\bupdat|\bswitch|\bedit|\badd(?:s|ed|ing)?\b|\bset\b|\bmark|\bupgrad|\bdowngrad|\bremov"
_ACTS = {
    "book": r"\bbook|\breserve\b",
    "cancel": r"\bcancel",
    "modify": _CHANGE,
    "update": _CHANGE,
    "return": r"\breturn|\brefund",
    "exchange": r"\bexchang|\bswap|\breplac",
    "send": r"\bsend|\bissu|\boffer|\bgive",
    "create": r"\bcreat|\badd(?:s|ed|ing)?\b|\bmake|\bschedul|\bplan|\benter",
    "move": r"\bmov|\brenam|\bdelet|\breschedul|\bpostpon",
    "copy": r"\bcop[iy]",
    "append": r"\bappend|\badd(?:s|ed|ing)?\b|\bwrit",
    "invite": r"\binvit",
    "forward": r"\bforward|\bsend",
    "label": r"\blabel|\bmark|\btag",
}
"""The words of an act, by the first word of the tools that do it."""

_THING = re.compile(
    r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+|(?<!\w)/(?:[./-]{0,64}+\w++)++"
    r"|\b(?=\w*[a-z])(?=\w*\d)(?!\d+[a-z]{1,3}\b)\w+|\b\d{7,}\b"
)
"""A name as machines give it: an address, a path, letters with digits, a long number; no amount, 2nd or 64gb.

What is said may be long: no part of it is read again from each place, so the names of addresses have the lengths
that mail allows."""

_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
"""A day that they spoke of is a thing of theirs; one that they did not is told of a thing, and not foreign."""

WHAT = "What exactly would you do? I say yes to a change when I know what it is."


def objection(case: Case, text: str) -> str:
    """Why the user does not say yes to a proposal; "" where they do."""
    low, mine = text.lower(), set(_THING.findall(" ".join(_words(case)).lower()))
    named = set(_THING.findall(low))
    if foreign := sorted(named - mine):
        return f"No. I did not ask for anything with {foreign[0]}."
    named |= set(_DAY.findall(low)) & set(_DAY.findall(" ".join(_words(case))))
    acts = any(re.search(_ACTS[act], low) for act in _wanted(case))
    if not acts or not (named or any(_holds(low, leaf) for leaf in _leaves(case))):
        return WHAT
    return ""


def _wanted(case: Case) -> set[str]:
    """Acts of the right calls, and those that the user speaks of."""
    said = " ".join([case.opening, *case.wants]).lower()
    return {call.name.partition("_")[0] for call in case.gold} & _ACTS.keys() | {
        act for act, words in _ACTS.items() if re.search(words, said)
    }


def _words(case: Case) -> Iterator[str]:
    yield from (case.opening, *case.wants, *case.facts.values(), *case.recalls.values(), *case.tell)
    yield from _leaves(case)


def _leaves(case: Case) -> Iterator[str]:
    """Every value of the right calls, as text."""
    waiting: list[object] = [call.arguments for call in case.gold]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        else:
            yield str(one)


def _holds(low: str, leaf: str) -> bool:
    """Whether a value stands in a text; a digit or a yes would stand anywhere."""
    return (
        len(leaf) > 1
        and leaf not in ("no", "yes")
        and bool(re.search(rf"(?<!\w){re.escape(leaf.lower())}(?!\w)", low))
    )
