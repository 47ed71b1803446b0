"""A command group that knows its commands by name only: nothing behind a name is imported until it runs.

The one-line summaries of ``envgym --help`` are read from the sources' docstrings without importing them, so
that help does not load torch.
"""

import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from envgym.cli.unread import summary
from envgym.registry import entry_point, find, names

__all__ = ["CommandGroup"]


class _Command(TyperCommand):
    """A command that says, when it is interrupted, how its run folder is resumed: it has --out and --resume."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            out = ctx.params.get("out")
            if "resume" in ctx.params and isinstance(out, Path) and out.is_dir() and any(out.iterdir()):
                error.add_note(f"what was done is kept in {out}; go on with the same command and --resume")
            raise


class CommandGroup(TyperGroup):
    """The commands of the registry's group "commands": a `typer.Typer` or a function with Typer's annotations."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt is said on standard error, with the notes that the command gave it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            print("; ".join(["envgym: interrupted", *getattr(error, "__notes__", ())]), file=sys.stderr)
            raise

    def list_commands(self, ctx: Any) -> list[str]:
        """Every registered name."""
        return names("commands")

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """A stand-in with the name and summary, for help; `resolve_command` gives the real one."""
        if cmd_name not in names("commands"):
            return None
        entry = entry_point("commands", cmd_name)
        return TyperCommand(cmd_name, help="" if entry is None else summary(entry))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, Any, list[str]]:
        """The command that `args` name, imported now. Raises ValueError (with the nearest names), ImportError."""
        thing = find("commands", args[0])
        if not isinstance(thing, typer.Typer):
            function, thing = thing, typer.Typer(add_completion=False, rich_markup_mode=None)
            thing.command(args[0], cls=_Command)(function)
        return args[0], typer.main.get_command(thing), args[1:]
