"""Which extras of a distribution are installed, from metadata alone: nothing is imported."""

import re
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, version

__all__ = ["extras_of", "lacking"]


def extras_of(distribution: Distribution) -> dict[str, list[str]]:
    """Extra -> the distributions that it still lacks (none: it is installed)."""
    lacks: dict[str, list[str]] = {name: [] for name in distribution.metadata.get_all("Provides-Extra") or []}
    for line in distribution.requires or []:
        wanted = re.match(r"([A-Za-z0-9._-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if wanted is None:
            continue
        try:
            version(wanted[1])
        except PackageNotFoundError:
            lacks.setdefault(wanted[2], []).append(wanted[1])
    return lacks


def lacking(entry: EntryPoint) -> str:
    """What an entry point that names extras (``module:thing [train]``) lacks, as a sentence; "" for nothing."""
    if entry.dist is None or not entry.extras:
        return ""
    extras = extras_of(entry.dist)
    lacks = {name: extras.get(name, []) for name in entry.extras}
    said = [
        f"pip install '{entry.dist.name}[{name}]' (lacks {', '.join(some)})" for name, some in lacks.items() if some
    ]
    return "; ".join(said)
