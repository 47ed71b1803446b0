"""The command line: every command is an entry point of the group ``envgym.commands``, ours like anybody's.

This module turns a command's name into its code, which is imported only when that command runs, and what it raises
into one line on standard error. Exit status 2 is the caller's mistake (usage, configuration, a path that is not
what it must be), 1 the world's fault, 130 an interrupt. What no caller could have avoided (a defect of envgym)
keeps its traceback.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper

import typer

from envgym.cli.faults import is_plain, sentence, told
from envgym.cli.group import CommandGroup
from envgym.errors import EnvgymError

__all__ = ["main", "run"]

_HELP = "Tasks, sandboxes, rollouts and training for language models that act over many turns."


def main() -> None:
    """The program ``envgym``."""
    if isinstance(sys.stdout, TextIOWrapper):  # what an encoding cannot say is escaped, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; a wrong argument or a known fault prints one line.

    ``--debug``, anywhere before ``--``, shows the traceback instead.
    """
    if sys.stdout is None:  # as a shell's >&- leaves it
        return _say("standard output is closed; send it to /dev/null if nobody reads it", 1)
    given = list(arguments)
    ours = given[: given.index("--")] if "--" in given else given
    if "--debug" in ours:
        given.remove("--debug")
        return _run(given)
    try:
        return _run(given)
    except typer.Abort:
        return _say("aborted", 1)
    except typer.TyperException as error:
        return _say(sentence(error.format_message()), error.exit_code)
    except (ValueError, TypeError, IndexError) as error:
        return _say(told(error), 2)
    except (EnvgymError, ImportError, OSError) as error:
        return _say(told(error), 2) if is_plain(error) else _say(f"{told(error)} (--debug shows where)", 1)


def _run(arguments: list[str]) -> int:
    ended = _program().main(args=arguments or ["--help"], prog_name="envgym", standalone_mode=False)
    return ended if isinstance(ended, int) else 0


def _program() -> CommandGroup:
    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"envgym {version('envgym')}")
            raise typer.Exit

    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.callback(cls=CommandGroup, help=_HELP)
    def options(
        wants_version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of a fault; works anywhere."),
    ) -> None:
        del wants_version, debug  # the first acts by its callback, the second is taken out before parsing

    program = typer.main.get_command(app)
    assert isinstance(program, CommandGroup)
    return program


def _say(text: str, code: int) -> int:
    if sys.stderr is not None:  # None would print to standard output
        print(f"envgym: {text}", file=sys.stderr)
    return code
