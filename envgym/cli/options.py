"""``name=value`` options for what the trunk knows only by name: environments, task sets, agents, schemes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envgym.options import wrong_option
from envgym.registry import own_options, spec
from envgym.task import TaskSet

__all__ = ["check_env_options", "key_values", "tasks_of"]

_NO_JSON = ("nan", "+nan", "-nan", "inf", "+inf", "-inf")


def key_values(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """The options of ``flag name=value`` (repeatable); a value is JSON, or else the text as it stands.

    Numbers that JSON has no word for are written as in a configuration: nan, inf, -inf. Raises ValueError naming
    the flag when a text has no name or a name comes twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.replace("-", "_").isidentifier():  # an actor may be called solver-1
            raise ValueError(f"{flag} {text!r} is not of the form name=value")
        if name in found:
            raise ValueError(f"{flag} names {name!r} twice ({found[name]!r} and {value!r})")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = float(value) if value in _NO_JSON else value
    return found


def tasks_of(env: str, options: Mapping[str, Any], flag: str = "--task-option") -> TaskSet:
    """The tasks of an environment. Raises ValueError, with the flag, for an option that it does not have."""
    found = spec(env)
    if (wrong := wrong_option(flag, options, found.tasks)) is not None:
        raise ValueError(wrong)
    return found.tasks(**options)


def check_env_options(env: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError, with the flag, for an option that an environment lacks, or that is of another kind."""
    found = spec(env)
    own = own_options({**found.defaults, **options})
    if (wrong := wrong_option("--env-option", own, found.make, given={"backend"}, skip=1)) is not None:
        raise ValueError(wrong)
