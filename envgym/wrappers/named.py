"""What goes around an environment, as options name it."""

from collections.abc import Callable, Mapping
from typing import Any

from envgym.options import wrong_option
from envgym.wrappers.twist import Twist

__all__ = ["named_twists"]


def named_twists(wrap: Any, find: Callable[[Any, str], Any]) -> list[Twist]:
    """What goes around an environment, from the inside out, as options say it.

    wrap: a registered wrapper's name, an object ``{"name": ..., option: value, ...}``, a `Twist`, or a list of
    these. find: looks up a name in the registry. Raises ValueError for an unknown name or option, TypeError for
    anything else.
    """
    found: list[Twist] = []
    for one in wrap if isinstance(wrap, (list, tuple)) else [wrap]:
        if isinstance(one, str):
            one = {"name": one}
        if not isinstance(one, Mapping):
            if not all(hasattr(one, part) for part in ("name", "begin", "act", "see")):
                raise TypeError(
                    f"wrap has {one!r}; give a wrapper's name, an object with a name, or a list of these"
                )
            found.append(one)
            continue
        options = {name: value for name, value in one.items() if name != "name"}
        name = str(one.get("name", ""))
        made = find("wrappers", name)
        if (wrong := wrong_option(f"wrapper {name!r}: options", options, made)) is not None:
            raise ValueError(wrong)
        found.append(made(**options))
    return found
