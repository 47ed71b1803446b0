"""Whether a reward still means what is wanted: two channels of stored episodes beside each other, in order."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from envgym.rewards import ProxyGold, told_of
from envgym.store import StoreReader

__all__ = ["rewards_command"]


def rewards_command(
    store: Annotated[Path, typer.Argument(help="A store of episodes.")],
    proxy: Annotated[str, typer.Option(help="The channel that is learned from.")] = "reward",
    gold: Annotated[str, typer.Option(help="The channel that is wanted.")] = "success",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Compare a proxy reward with its gold over stored episodes, in the order they ended."""
    track = ProxyGold()
    with StoreReader(store) as reader:
        for episode in reader:
            track.add(told_of(episode, proxy), told_of(episode, gold))
    report = track.report()
    if as_json:
        print(json.dumps(asdict(report), indent=1))
        return
    for name, value in asdict(report).items():
        print(f"{name:10}  {'unknown' if value is None else value}")
