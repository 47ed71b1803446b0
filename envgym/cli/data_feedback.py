"""The command ``envgym data feedback``: a judge, which is any agent, says in words what stored turns are worth."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from envgym.cli.asking import asked_agent, who
from envgym.cli.data_parts import Json, Source, Where, chosen_of, say
from envgym.cli.options import key_values
from envgym.episode import Group
from envgym.plain_text import visible
from envgym.registry import find
from envgym.store import StoreReader

__all__ = ["feedback_command"]


def feedback_command(  # noqa: PLR0913  # one parameter per option
    source: Source,
    out: Annotated[Path, typer.Option(help="The file of lines to make, or to go on with.")],
    agent: Annotated[str, typer.Option(help="Who judges: chat (a server), lm (a local model), any other agent.")],
    kind: Annotated[
        str, typer.Option(help="spans (span-feedback), subgoals (subgoal-options) or goals (timed-subgoals).")
    ] = "spans",
    agent_option: Annotated[list[str] | None, typer.Option(help="name=value for the judge.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(exists=True, help="Of who was judged: tokenizer.json or its folder; else spans are turns."),
    ] = None,
    where: Where = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 8,
    as_json: Json = False,
) -> None:
    """Ask a judge about stored episodes; `data credit --feedback` gives schemes its answers."""
    from envgym.data.feedback import KINDS, Judge

    if kind not in KINDS:
        raise ValueError(f"--kind {kind!r}; it must be one of {', '.join(KINDS)}")
    if tokenizer is not None and kind != "spans":
        raise ValueError(f"--tokenizer spells spans, and --kind is {kind!r}; leave it out")
    options = key_values(agent_option or (), "--agent-option")
    pieces = None if tokenizer is None else _pieces(tokenizer)
    judge = Judge(who(agent, options), asked_agent(agent, options), pieces)
    with StoreReader(source) as reader:
        wanted = set(chosen_of(reader, where))
        kept = (tuple(one for one in group if one.id in wanted) for group in reader.groups())
        groups = [Group(members[0].task_id, members) for members in kept if members] if wanted else []
        known = _known(out, kind, judge.name)
        with open(out, "a") as file:
            counts, failures = asyncio.run(_ask(groups, kind, judge, known, file, concurrency))
    say(counts | {"failed": len(failures), "out": str(out)}, as_json)
    for line in failures[:10]:
        typer.echo(f"envgym: {visible(line)}", err=True)
    if failures:
        raise typer.Exit(1)


def _known(out: Path, kind: str, judge: str) -> frozenset[str]:
    """Of whom this judge said something of this kind already."""
    from envgym.data.said import read_said

    lines = [line for line in read_said(out) if (line.kind, line.judge) == (kind, judge)] if out.exists() else []
    return frozenset(line.task if line.kind == "goals" else line.episode for line in lines)


async def _ask(  # what is asked, who, and where it goes
    groups: Sequence[Group], kind: Any, judge: Any, known: frozenset[str], file: TextIO, concurrency: int
) -> tuple[dict[str, int], list[str]]:
    from envgym.data.feedback import feedback

    counts, failures = {"said": 0, "before": len(known), "unread": 0}, []
    async for asked in feedback(groups, kind, judge, known=known, concurrency=concurrency):
        if asked.failure is not None:
            failures.append(f"{asked.subject}: {asked.failure.kind}: {asked.failure.message}")
        elif asked.line is not None:
            file.write(asked.line.model_dump_json() + "\n")
            file.flush()
            counts["said"] += 1
            counts["unread"] += len(asked.line.unread)
    return counts, failures


def _pieces(path: Path) -> Callable[[Sequence[int]], list[str]]:
    """How a model's tokenizer spells ids: the agent "lm" knows it (`pieces_of`). Raises ValueError without one."""
    pieces_of: Callable[[Path], Callable[[Sequence[int]], list[str]]] = find("agents", "lm").pieces_of
    return pieces_of(path)
