"""What an export dropped and redacted, as a table that cannot be overlooked and as JSON lines for programs."""

from rich.console import Group as Together
from rich.table import Table
from rich.text import Text

from envgym.formats.contract import Exported
from envgym.plain_text import visible

__all__ = ["report"]


def report(exported: Exported) -> Together:
    """What to print after an export; `Exported.to_json` says the same for programs."""
    total = f"{exported.episodes} episodes ({exported.turns} turns) of {exported.groups} groups"
    files = "1 file" if exported.files == 1 else f"{exported.files} files"
    parts: list[Text | Table] = [Text(f"{total} as {exported.format} in {files}: {exported.target}")]
    if exported.redacted:
        found = ", ".join(f"{times} x {kind}" for kind, times in exported.redacted)
        parts.append(Text(f"redacted: {found}", style="yellow"))
    if exported.dropped:
        table = Table(
            "field", "times", "example", "why", title="DROPPED: not in what was written", title_style="bold red"
        )
        for one in exported.dropped:
            table.add_row(*(Text(visible(cell)) for cell in (one.field, str(one.times), one.example, one.why)))
        parts.append(table)
    else:
        parts.append(Text("nothing was dropped", style="green"))
    return Together(*parts)
