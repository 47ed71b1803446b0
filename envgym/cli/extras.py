"""Which extras of a distribution are installed, from metadata alone: nothing is imported."""

import re
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution

__all__ = ["extras_of", "lacking"]

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[(?P<nested>[^\]]*)\])?[^;]*;\s*extra\s*==\s*['\"](?P<extra>[\w.-]+)['\"]\s*"
)


def extras_of(distribution: Distribution) -> dict[str, list[str]]:
    """Extra -> the distributions that it still lacks (none: it is installed), those of nested extras included.

    A requirement with a further condition (a platform, a version of Python) is not looked at.
    """
    names = distribution.metadata.get_all("Provides-Extra") or []
    return {name: list(dict.fromkeys(_lacked(distribution, name, set()))) for name in names}


def _lacked(of: Distribution, extra: str, seen: set[tuple[str, str]]) -> list[str]:
    if (of.name, extra) in seen:
        return []
    seen.add((of.name, extra))
    lacks: list[str] = []
    for line in of.requires or []:
        wanted = _REQUIREMENT.fullmatch(line)
        if wanted is None or wanted["extra"] != extra:
            continue
        try:
            found = distribution(wanted["name"])
        except PackageNotFoundError:
            lacks.append(wanted["name"])
            continue
        for nested in re.findall(r"[\w.-]+", wanted["nested"] or ""):
            lacks += _lacked(found, nested, seen)
    return lacks


def lacking(entry: EntryPoint) -> str:
    """What an entry point that names extras (``module:thing [train]``) lacks, as a sentence; "" for nothing."""
    if entry.dist is None or not entry.extras:
        return ""
    lacks = {name: list(dict.fromkeys(_lacked(entry.dist, name, set()))) for name in entry.extras}
    said = [
        f"pip install '{entry.dist.name}[{name}]' (lacks {', '.join(some)})" for name, some in lacks.items() if some
    ]
    return "; ".join(said)
