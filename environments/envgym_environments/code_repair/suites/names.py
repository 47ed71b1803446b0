"""Names for tests that did not exist before, made as the people of a file make theirs.

Nothing in such a name tells it from the others: it has as many words, written as they write them, drawn from their
names and from what their code speaks of, and no name that exists is a part of it. So who wants to know which tests
are new has to know the old ones, or to read them.
"""

import re
from collections.abc import Sequence

import numpy as np

__all__ = ["draw_name"]

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_PLAIN = re.compile(r"[a-z]{3,12}")
_COMMON = _WORD.findall(
    "after all before case count default each empty error first from given index into invalid key last list long "
    "many missing more name nested new none not once only order over path read result same set short single state "
    "text than twice type unknown update valid value when with without write zero"
)
_TRIES, _MOST_WORDS = 50, 7


def draw_name(names: Sequence[str], text: str, rng: np.random.Generator, *, lead: bool = True,
              taken: Sequence[str] = ()) -> str:  # fmt: skip
    """A name for a test among those of these names, in a file of this text.

    lead: it keeps the first word of one of them, by which a runner may know its tests; "test" is kept anyway.
    taken: texts that must not hold it.
    """
    own = sorted({word.lower() for name in names for word in _WORD.findall(name) if len(word) > 1} - {"test"})
    spoken = sorted({word for found in _WORD.findall(text) if _PLAIN.fullmatch(word := found.lower())} - {"test"})
    drawn = ""
    for tried in range(_TRIES):
        model = names[int(rng.integers(len(names)))]
        words = _WORD.findall(model) or ["test"]
        kept = words[:1] if lead or words[0].lower() == "test" else []
        count = min(max(2, len(words) - len(kept)), _MOST_WORDS) + tried // 10
        made = [_one([own, spoken, spoken, _COMMON], rng) for _ in range(count)]
        drawn = _written(model, names, kept, made)
        if not any(drawn in one for one in (text, *names, *taken)) and not any(
            one in drawn for one in names if one.lower() != "test"
        ):
            break
    return drawn


def _one(kinds: Sequence[Sequence[str]], rng: np.random.Generator) -> str:
    words = kinds[int(rng.integers(len(kinds)))] or _COMMON
    return str(words[int(rng.integers(len(words)))])


def _written(model: str, names: Sequence[str], kept: Sequence[str], words: Sequence[str]) -> str:
    """These words as the model has its own; where it has but one, as the others have theirs."""
    shown = model
    if not re.search(r"[\W_]", model.strip()) and not re.search(r"[a-z][A-Z]", model):
        shown = next((one for one in names if re.search(r"[\W_]|[a-z][A-Z]", one.strip())), "_")
    if re.search(r"\s", shown):
        return " ".join([*kept, *words])
    if "_" in shown or not re.search(r"[a-z][A-Z]", shown):
        joined = "_".join(words)
        return (
            f"{kept[0]}{'_' if model[len(kept[0]) :][:1] == '_' or '_' in shown else ''}{joined}"
            if kept
            else joined
        )
    small = not kept and model[:1].islower()
    capitals = [word.capitalize() for word in words]
    return "".join([*kept, words[0] if small else capitals[0], *capitals[1:]])
