"""What was tried: schemas and goals, with how often each came up; it goes from one call to the next as JSON."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Tried"]


@dataclass(slots=True)
class Tried:
    """schemas: the abstract ways of tasks, counted; goals: what they ask for and how it is done; calls: by tool."""

    schemas: Counter[str] = field(default_factory=Counter)
    goals: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: str | Path) -> "Tried":
        """What a file remembers; nothing where there is none. Raises ValueError for a file that is none."""
        if not Path(path).exists():
            return cls()
        try:
            raw = json.loads(Path(path).read_text())
            goals = set(raw["goals"])
            if "version" not in raw:  # the first files have goals by seed, "SEED:STATE"
                goals = {one.partition(":")[2] for one in goals}
            return cls(Counter(raw["schemas"]), goals, Counter(raw["calls"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no memory of a synthesis: {error}") from error

    def write(self, path: str | Path) -> None:
        """Keep it, in one piece."""
        raw = {
            "version": 2, "schemas": dict(self.schemas), "goals": sorted(self.goals), "calls": dict(self.calls),
        }  # fmt: skip
        whole = Path(f"{path}.new")
        whole.write_text(json.dumps(raw, indent=1, sort_keys=True))
        whole.replace(path)

    def told(self, most: int = 12) -> str:
        """A sentence for an explorer that reads: what has been done often."""
        often = ", ".join(f"{name} ({count})" for name, count in self.calls.most_common(most))
        return f"Already tried: {often}. Try something else." if often else "Nothing was tried yet."
