"""Between groups and records of whole paths, one per episode: what the record cannot say travels in its extra text.

`seal` makes the extra text of a record and `unseal` reads it: a patch from what the other tool's fields say to
what is true. `Regroup` puts episodes back into their groups, forks on their parents, shared turns once.
"""

import json
from typing import Any

from pydantic import ValidationError

from envgym.episode import Episode, Group
from envgym.episode_json import turn_to_json
from envgym.formats.contract import FormatError, Where
from envgym.formats.exact import Told, apply, check, difference, packed, path_head, told_episode
from envgym.wire import dumps, step_to_json

__all__ = ["SCHEMA", "Regroup", "Unsealed", "reason", "seal", "unseal"]

SCHEMA = 1
"""Version of the extra text; a reader refuses what it does not know."""

Unsealed = tuple[Episode, tuple[int, int, int]]
"""An episode with its own turns, and its place: group, index in the group, size of the group."""

_MISTAKES = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


def reason(error: Exception) -> str:
    """What is wrong with a value, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}; it is {repr(first.get('input'))[:120]}"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}" if error.args else "a key is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())[:400]


def seal(told: Told, said: Episode, record: Any) -> str:
    """The text that makes `told` of `said`, the episode (its whole path) that `record`'s own fields tell."""
    turns = [turn_to_json(turn, packed) for turn in told.turns[told.shared :]]
    if len(said.turns) == len(told.turns):
        own = [turn_to_json(turn, packed) for turn in said.turns[told.shared :]]
        turns_patch: Any = difference(own, turns)
    else:
        turns_patch = {"=": turns, "said": len(said.turns)}
    rest: dict[str, Any] = {
        "schema": SCHEMA,
        "record": check(record),
        "place": list(told.place),
        "path": len(told.turns),
        "shared": told.shared,
        "head": difference(path_head(said), path_head(told.episode)),
        "turns": turns_patch,
    }
    if told.episode.parent is None:
        rest["root"] = difference(step_to_json(said.root), step_to_json(told.root))
    return dumps(rest).decode()


def unseal(said: Episode, text: str, where: Where, record: Any) -> Unsealed:
    """The episode that `seal` told. What somebody edited in the record since is read as it is now.

    Raises FormatError where the text is damaged, or no longer fits the record.
    """
    try:
        rest = json.loads(text)
        schema = rest.get("schema") if isinstance(rest, dict) else None
    except _MISTAKES as error:
        raise FormatError(where, f"its key 'envgym' is no JSON: {reason(error)}; it is {text[:80]!r}") from error
    if schema != SCHEMA:
        raise FormatError(where, f"its key 'envgym' has schema {schema!r}; this version of envgym reads {SCHEMA}")
    try:
        strict = check(record) == rest["record"]
        head = apply(path_head(said), rest["head"], strict=strict)
        turns = _own_turns(said, rest, strict)
        root = apply(step_to_json(said.root), rest["root"], strict=strict) if "root" in rest else None
        g, k, n = rest["place"]
        return told_episode(head, root, turns), (int(g), int(k), int(n))
    except _MISTAKES as error:
        raise FormatError(
            where,
            f"its key 'envgym' does not fit the rest of it ({reason(error)}); put back what was changed, or remove "
            "the key to import the record without it",
        ) from error


def _own_turns(said: Episode, rest: dict[str, Any], strict: bool) -> list[dict[str, Any]]:
    patch = rest["turns"]
    expected = patch["said"] if isinstance(patch, dict) and "=" in patch else rest["path"]
    if len(said.turns) != expected:
        raise ValueError(f"it tells {len(said.turns)} turns, but was written with {expected}")
    if isinstance(patch, dict) and "=" in patch:
        return list(patch["="])
    told = [turn_to_json(turn, packed) for turn in said.turns[rest["shared"] :]]
    own: list[dict[str, Any]] = apply(told, patch, strict=strict)
    return own


class Regroup:
    """Collects episodes until their group is whole; the one group that is open is all it holds."""

    def __init__(self) -> None:
        self._open: list[Episode] = []
        self._place: tuple[int, int] | None = None  # group, size
        self._where: Where | None = None

    def add(self, episode: Episode, place: tuple[int, int, int], where: Where) -> list[Group]:
        """Take one more episode; the groups that are whole now (none, one or two)."""
        group, index, size = place
        done = []
        if self._place != (group, size) or index == 0:
            done += self.rest()
        self._open.append(episode)
        self._place, self._where = (group, size), self._where or where
        if len(self._open) == size:
            done += self.rest()
        return done

    def rest(self) -> list[Group]:
        """The group that is still open, at the end of a file."""
        members, where = self._open, self._where
        self._open, self._place, self._where = [], None, None
        if not members or where is None:
            return []
        try:
            return [Group(members[0].task_id, tuple(members))]
        except ValueError as error:
            raise FormatError(
                where, f"the group that begins here cannot be put together: {reason(error)}; are records missing?"
            ) from error
