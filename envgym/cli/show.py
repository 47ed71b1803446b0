"""A readable view of stored episodes: who said what, what the world answered, rewards, grades, failures, forks.

What models and worlds wrote is shown as data: control characters become visible, so that no text can steer the
terminal it is read on.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from envgym.env import Step
from envgym.episode import Episode, Turn
from envgym.episode_json import episode_to_json
from envgym.messages import text_of
from envgym.plain_text import visible
from envgym.store import Damage, StoreReader
from envgym.tools import compact
from envgym.wire import dumps

__all__ = ["show_command"]

_SHORT = 600
_ROWS = 100
_NAMED = 10  # damaged places
_UNBOUNDED = 400  # columns where no terminal bounds them


def show_command(
    store: Annotated[Path, typer.Argument(help="A store of episodes.", exists=True)],
    episode: Annotated[str | None, typer.Option(help="An episode's id, or its number in the store from 0.")] = None,
    turn: Annotated[int | None, typer.Option(min=0, help="One turn of it, in full, with its tokens.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Rows of the list [default: 100; with --json all]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Rows of the list, one per line; with --episode the stored record.")
    ] = False,
) -> None:
    """Look at stored episodes: a list, one episode as a tree of turns, or one turn with its tokens."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _UNBOUNDED)
    if episode is None:
        if turn is not None:
            raise ValueError("--turn needs --episode")
        _list(store, limit, as_json, console)
        return
    found = _find(store, episode)
    if turn is not None and turn >= len(found.turns):
        raise ValueError(f"--turn {turn}: episode {found.id} has {len(found.turns)} turns, numbered from 0")
    if as_json:
        record = episode_to_json(found)
        print(dumps(record if turn is None else record["turns"][turn]).decode())
    elif turn is not None:
        console.print(_turn_in_full(found, turn))
    else:
        console.print(_tree(found))


def _find(store: Path, wanted: str) -> Episode:
    with StoreReader(store) as reader:
        if wanted not in reader and wanted.isdecimal() and int(wanted) < len(reader):
            wanted = reader.ids[int(wanted)]
        if wanted in reader:
            return reader[wanted]
    unfinished = ", where it is unfinished" if wanted in reader.unfinished else ""
    raise ValueError(
        f"--episode {wanted!r} is neither an id nor a number of an episode that ended in {store}{unfinished}"
    )


def _list(store: Path, limit: int | None, as_json: bool, console: Console) -> None:
    """The good rows; then, on standard error, what is unfinished and what is damaged: status 1 if that cost any."""
    bound = limit or (None if as_json else _ROWS)
    table = Table("#", "episode", "task", "turns", "tokens", "reward", "ended", box=None, pad_edge=False)
    good, damaged = 0, list[Damage]()
    with StoreReader(store) as reader:
        for found in reader.scan():
            if isinstance(found, Damage):
                damaged.append(found)
                continue
            good += 1
            if bound is not None and good > bound:
                continue
            if as_json:
                print(json.dumps(_facts(found)))
            else:
                _add_row(table, good - 1, found)
    if not as_json:
        console.print(table)
        if bound is not None and good > bound:
            console.print(f"... and {good - bound} more that ended (--limit)")
    if reader.unfinished:
        print(
            f"envgym: {len(reader.unfinished)} others began and did not end: they are being played, or can go on",
            file=sys.stderr,
        )
    _tell(damaged, costing=any(one not in reader.kept for one in damaged))


def _add_row(table: Table, number: int, episode: Episode) -> None:
    facts = _facts(episode)
    indent = "  " * episode.id.count("/") if episode.parent else ""
    ended = (facts["ended"].splitlines() or [""])[0]
    table.add_row(
        str(number), Text(indent + visible(episode.id)), Text(visible(episode.task_id)), str(facts["turns"]),
        str(facts["sampled_tokens"]), _number(facts["reward"]), Text(visible(ended, 160)),
    )  # fmt: skip


def _tell(damaged: Sequence[Damage], *, costing: bool) -> None:
    for one in damaged[:_NAMED]:
        print(f"envgym: {visible(str(one))}", file=sys.stderr)
    if len(damaged) > _NAMED:
        print(f"envgym: {len(damaged) - _NAMED} more places are damaged", file=sys.stderr)
    if costing:
        raise typer.Exit(1)


def _facts(episode: Episode) -> dict[str, Any]:
    failure = episode.failure
    ended = (
        str(episode.stop) if failure is None else f"FAILED {failure.boundary}: {failure.kind}: {failure.message}"
    )
    return {
        "id": episode.id,
        "task_id": episode.task_id,
        "turns": len(episode.turns),
        "sampled_tokens": episode.sampled_tokens,
        "reward": episode.reward,
        "ended": ended,
        "parent": None if episode.parent is None else episode.parent.episode,
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _tree(episode: Episode) -> Tree:
    facts = _facts(episode)
    tree = Tree(Text(f"{visible(episode.id)}  task {visible(episode.task_id)}  seed {episode.seed}", style="bold"))
    if episode.parent is not None:
        tree.add(Text(f"forked from {visible(episode.parent.episode)} after turn {episode.parent.turn}"))
    for name, value in episode.provenance:
        tree.add(Text(f"{visible(name)}: {visible(value)}", style="dim"))
    _add_step(tree.add(Text("root", style="bold")), episode.root, _SHORT)
    for index, turn in enumerate(episode.turns):
        _add_turn(tree.add(Text(_headline(index, turn), style="bold")), turn, _SHORT)
    tree.add(Text(f"ended: {visible(facts['ended'])}  reward {_number(episode.reward)}", style="bold"))
    for grade in episode.grades:
        channels = "  ".join(f"{name} {value:g}" for name, value in grade.channels.items())
        tree.add(Text(f"grade by {visible(grade.grader)} {visible(grade.version)}: {visible(channels)}"))
    if episode.failure is not None and episode.failure.trace:
        tree.add(Text(visible(episode.failure.trace), style="dim"))
    return tree


def _headline(index: int, turn: Turn) -> str:
    parts = [f"turn {index}", visible(turn.actor)]
    if len(turn.sampled_ids):
        parts.append(f"+{len(turn.prompt_ids)} read, {len(turn.sampled_ids)} sampled tokens")
        parts.append(f"log p {float(turn.logprobs.sum()):.3f}")
    if turn.segment:
        parts.append(f"segment {turn.segment}")
    if turn.snapshot is not None:
        parts.append(f"snapshot ({turn.snapshot.restore})")
    return "  ".join(parts)


def _said(turn: Turn) -> Iterator[str]:
    for message in turn.messages:
        if text_of(message):
            yield text_of(message)
        yield from (compact(call) for call in message.tool_calls)


def _add_turn(node: Tree, turn: Turn, limit: int | None) -> None:
    for text in _said(turn):
        node.add(Text(visible(text, limit), style="cyan"))
    _add_step(node, turn.step, limit)


def _add_step(node: Tree, step: Step, limit: int | None) -> None:
    for message in step.observation:
        node.add(Text(f"{message.role}: {visible(text_of(message), limit)}"))
    facts = [] if step.reward is None else [f"reward {step.reward:g}"]
    facts += [f"{visible(name)} {value:g}" for name, value in step.channels.items()]
    facts += [f"stop {step.stop}"] if step.stop is not None else []
    facts += [f"cost {visible(name)} {value:g}" for name, value in step.cost.items()]
    if facts:
        node.add(Text("  ".join(facts), style="green"))


def _turn_in_full(episode: Episode, index: int) -> Tree:
    turn = episode.turns[index]
    tree = Tree(Text(f"{visible(episode.id)}  {_headline(index, turn)}", style="bold"))
    _add_turn(tree, turn, None)
    if turn.step.state_key:
        tree.add(Text(f"state key: {visible(turn.step.state_key)}"))
    if turn.step.legal is not None:
        tree.add(Text(f"legal next: {visible('; '.join(turn.step.legal))}"))
    if turn.step.submission is not None:
        tree.add(Text(f"submission:\n{visible(turn.step.submission)}"))
    if len(turn.sampled_ids):
        tree.add(Text(f"position {turn.position}, versions {[(run.start, run.version) for run in turn.versions]}"))
        tree.add(Text(f"prompt ids: {turn.prompt_ids.tolist()}"))
        pairs = zip(turn.sampled_ids.tolist(), turn.logprobs.tolist(), strict=True)
        tree.add(Text("sampled id (log p): " + " ".join(f"{token} ({logprob:.3f})" for token, logprob in pairs)))
    return tree
