"""What a person of tau2's tasks knows, taken apart: each thing is said when it is asked for, and not before.

A task tells it in prose, to whom shall play the person: "You are Emma Kim. Your user id is emma_kim_9957." What
services ask for (name, id, email, zip code, address) is found by its shape; every other sentence is told by the
words it is made of, and one of the form "If the agent asks X, say Y" is Y, told by the words of X.
"""

import re
from collections.abc import Iterable

__all__ = ["facts_of", "recalled", "recalls_of"]

_CAPITAL = r"[A-Z][\w'-]*"
_AM = r"(?:[Yy]our? (?:name is|are)|[Yy]ou're|called)"
_IDENTITY = "identi|verif|authenti"
_SLOTS = (
    ("user id", f"user id|username|account|{_IDENTITY}", r"\b([a-z]+_[a-z]+_\d+)\b"),
    ("email", f"email|e-mail|{_IDENTITY}", r"([\w.+-]+@[\w-]+(?:\.[\w-]+)+)"),
    ("zip code", f"zip|postal|postcode|{_IDENTITY}", r"(?<![\w#])(\d{5})(?!\w)"),
    ("name", f"name|who you are|who am i|{_IDENTITY}", rf"{_AM} ({_CAPITAL} {_CAPITAL})"),
    ("address", "address|live|city|located", r"(?:live|living|residing|reside|from) (?:in )?([A-Z#\d][^.]*)"),
)  # fmt: skip
"""What it is called, the words that ask for it, and how it looks."""

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|\Z)|\n|\Z)", re.DOTALL)
_CONDITION = re.compile(r"(?is)if (?:and only if )?(.+?), (?:then )?(.+)")
_TOLD = re.compile(
    r"(?i)^(?:you )?(?:say|mention|tell|state|reply|answer)(?: (?:to )?(?:the )?(?:service )?agent)?(?: that)? "
)
_COMMON = """
    a able about agent all also am an and any are as ask asks at be been but by can code could confirm did do
    does else find for from get give had has have help her him his how if in into is it its just know let like
    live living made make many may me might more much my name need new no not now number of ok on or our out
    please provide residing say says service share should so some still sure tell thank thanks that the their
    them then there these they this those to us user want wanted was we well were what when where which who whom
    why will with would yes you your yours zip zipcode
"""
_STOP = frozenset(_COMMON.split())


def facts_of(known: str) -> dict[str, str]:
    """What is known by its shape: the words that ask for it, and the answer."""
    found: dict[str, str] = {}
    for what, keys, shape in _SLOTS:
        values = list(dict.fromkeys(re.findall(shape, known)))
        if values:
            found[keys] = f"My {what} is {' and '.join(value.strip(' ,') for value in values)}."
    return found


def recalls_of(known: str, others: Iterable[str]) -> dict[str, str]:
    """Sentences by their words: of what is known what no fact tells, and all of the others."""
    bare = known
    for _, _, shape in _SLOTS:
        bare = re.sub(shape, " ", bare)
    left = _stems(bare)
    found: dict[str, str] = {}
    for text, least in ((known, left), *((other, None) for other in others)):
        for sentence in (one[0].strip() for one in _SENTENCE.finditer(text)):
            condition = _CONDITION.fullmatch(sentence)
            words = _stems(condition[1] if condition else sentence)
            words = words if least is None else words & least
            if words:
                said = _TOLD.sub("", condition[2]) if condition else sentence
                found["|".join(sorted(words))] = said[:1].upper() + said[1:]
    return found


def recalled(recalls: dict[str, str], asked: str) -> list[str]:
    """The sentences that share the most words with a question; none where they share none."""
    words = _stems(asked)
    shared = [(len(words & set(key.split("|"))), said) for key, said in recalls.items()]
    most = max((count for count, _ in shared), default=0)
    return [said for count, said in shared if most and count == most]


def _stems(text: str) -> set[str]:
    """Words that mean something, by their first five letters: cancel, cancelled and cancellation are one."""
    return {word[:5] for word in re.findall(r"[a-z0-9_]+", text.lower()) if word not in _STOP and len(word) > 2}
