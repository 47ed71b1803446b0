"""Where a sandbox is about to be: its name, and the groups that are made under it before anything else is."""

from dataclasses import dataclass
from pathlib import Path

from envgym_sandboxes.cgroups import Groups

__all__ = ["ReservedPlace"]


@dataclass(frozen=True, slots=True)
class ReservedPlace:
    """See `engine.Place`. dying: where groups go that cannot be removed yet."""

    name: str
    groups: Groups | None
    dying: list[Path]

    def remove(self) -> None:
        """Remove the groups, which nothing is in."""
        if self.groups:
            self.dying.extend(self.groups.remove())
