"""The scripted user: says what they want, answers what is asked, says yes to what they want, then goodbye.

It reads an agent's words by what they hold, never by a model, so that the same words always get the same answer. A
user that is played by a policy takes its place as a second actor of the episode (see `world`).
"""

import re

from envgym_environments.tool.service.desk import Case
from envgym_environments.tool.service.scenario import recalled
from envgym_environments.tool.service.wishes import WHAT, objection

__all__ = ["GOODBYE", "agrees", "answer_of", "told", "told_of"]

GOODBYE = "Thank you, that is all. Goodbye."
_MORE = re.compile(r"anything else|something else|else i can|goodbye")
_DONE = re.compile(r"all done|is (now )?done|all set")
_CONFIRM = re.compile(
    r"confirm|proceed|shall i|should i|do you want me|would you like me|is that (right|ok)|\byes\b"
)

_YES = re.compile(r"\b(yes|yeah|yep|correct|ok|okay|sure|go ahead|please do)\b")
_NO = re.compile(r"\b(no|not|never|cannot|wait|stop)\b|n['\u2019]t\b")


def agrees(said: str) -> bool:
    """Whether a user who speaks freely says yes. With a no in it it is none: the agent has to ask again."""
    low = said.lower()
    return bool(_YES.search(low)) and not _NO.search(low)


def answer_of(case: Case, stated: int, text: str) -> tuple[str, int, bool]:
    """What the user answers, how many of the case's wants they have stated now, and whether it was a yes."""
    low = text.lower()
    proposal = "?" in text and _CONFIRM.search(low)  # "its label is done then, shall I proceed?" ends nothing
    if _MORE.search(low) or (_DONE.search(low) and not proposal):
        return (GOODBYE, stated, False) if stated >= len(case.wants) else (case.wants[stated], stated + 1, False)
    if "?" in text:
        asked = _asked(case, low)
        if proposal:
            why = objection(case, text)
            if why != WHAT or not asked:  # "confirm your name" wants the name, no yes
                return why or "Yes, please.", stated, not why
        return asked or "I do not know. I told you what I want.", stated, False
    return "Please go on.", stated, False


def _asked(case: Case, low: str) -> str:
    """What is known of what a question names: facts by their words, then what shares the rest of its words."""
    found, rest = [], low
    for keys, said in case.facts.items():
        if re.search(rf"\b(?:{keys})", low):
            found.append(said)
            rest = re.sub(rf"\b(?:{keys})\w*", " ", rest)
    return " ".join([*found, *recalled(case.recalls, rest)])


def told(case: Case, said: list[str]) -> float:
    """The share of what had to be told that was: each text or one of its forms, in some message; 1.0 of none."""
    found = told_of(case, said)
    return sum(found) / len(found) if found else 1.0


def told_of(case: Case, said: list[str]) -> list[bool]:
    """Of each text that must be told, whether it was."""
    if not case.tell:
        return []
    words = [text.lower().replace(",", "") for text in said]
    return [any(form.lower() in text for form in tell.split("|") for text in words) for tell in case.tell]
