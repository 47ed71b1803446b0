"""The command ``envgym reward-model``: stored episodes or preference pairs in, a folder for a reward plan out.

Options only; what they do is in `envgym_agents.learn.values.teaching`.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from envgym.cli.data_parts import Json, Where, chosen_of
from envgym.progress import Bar
from envgym.store import StoreReader
from envgym_agents.learn.values.teaching import Scored, Teaching, pairs_in, scored_in, taught

__all__ = ["reward_model_command"]

_HOW = Teaching()
_Source = Annotated[
    Path,
    typer.Argument(
        help="A store of episodes, or a JSONL file of preference pairs: prompt, chosen, rejected.", exists=True
    ),
]
_Out = Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist or be empty.")]
_Model = Annotated[
    Path | None,
    typer.Option("--model", help="A model folder to begin with; a reward model goes on. Default: a fresh one."),
]
_Learn = Annotated[
    Literal["pairs", "outcomes"],
    typer.Option(help="From which of a task's episodes earned more, or from which earned anything above 0."),
]
_Aggregate = Annotated[
    Literal["mean", "worst-case", "uncertainty-weighted"], typer.Option(help="What is made of the heads' scores.")
]


def reward_model_command(  # noqa: PLR0913  # one parameter per option
    source: _Source,
    out: _Out,
    model: _Model = None,
    size: Annotated[str, typer.Option(help="Of a fresh one: tiny, 1M, 2M or 4M.")] = _HOW.size,
    learn: _Learn = _HOW.learn,
    channel: Annotated[str, typer.Option(help="What was earned: a channel of grades or last steps.")] = "reward",
    where: Where = None,
    aggregate: _Aggregate = _HOW.aggregate,
    heads: Annotated[int, typer.Option(min=1, help="How many score.")] = _HOW.count,
    updates: Annotated[int, typer.Option(min=1, help="How many updates.")] = _HOW.updates,
    comparisons: Annotated[
        int, typer.Option(min=1, help="Tasks, or pairs, that an update sees.")
    ] = _HOW.comparisons,
    lr: Annotated[float, typer.Option(min=1e-9, help="Learning rate.")] = _HOW.lr,
    held: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of tasks that it is measured on.")
    ] = _HOW.held,
    context: Annotated[int, typer.Option(min=16, help="Most tokens of a conversation, its last.")] = _HOW.context,
    vocabulary: Annotated[int, typer.Option(min=300, help="Of a fresh model's tokenizer.")] = _HOW.vocabulary,
    seed: Annotated[int, typer.Option(min=0, help="Fixes everything that is drawn.")] = 0,
    device: Annotated[str, typer.Option(help="Where it is trained, such as cuda:0.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train a reward model and save it as a folder: `kind = "learned"` of a reward plan scores episodes by it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out} is there already; choose another folder")
    how = Teaching(
        model, size, learn, aggregate, heads, updates, comparisons, lr, held, context, vocabulary, seed, device
    )
    scored = _scored(source, channel, where)
    with Bar(None if as_json else Console(stderr=True), "updates", updates) as bar:
        made = taught(scored, how, lambda number, loss: bar.update(number, f"loss {loss:.3f}"))
    made.save(out)
    found = {**made.about.trained, "out": str(out)}
    if as_json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return
    for name, value in found.items():
        shown = "unknown" if value is None else f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name:20}  {shown}")


def _scored(source: Path, channel: str, where: str | None) -> list[Scored]:
    """What is learned from. Raises ValueError for options that mean nothing for pairs."""
    if source.is_dir():
        with StoreReader(source) as reader:
            only = None if where is None else frozenset(chosen_of(reader, where))
            return scored_in(reader, channel=channel, only=only)
    if where is not None or channel != "reward":
        raise ValueError(f"--where and --channel are for a store of episodes, and {source} is a file of pairs")
    return pairs_in(source)
