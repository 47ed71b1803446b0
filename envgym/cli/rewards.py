"""Whether a reward still means what is wanted: two channels of stored episodes beside each other, in order."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from envgym.episode import Episode
from envgym.rewards import ProxyGold
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
            track.add(_said(episode, proxy), _said(episode, gold))
    report = track.report()
    if as_json:
        print(json.dumps(asdict(report), indent=1))
        return
    for name, value in asdict(report).items():
        print(f"{name:10}  {'unknown' if value is None else value}")


def _said(episode: Episode, channel: str) -> float | None:
    """What an episode says of a channel: its grades, the newest first, then its last step that names it."""
    for grade in reversed(episode.grades):
        if channel in grade.channels:
            return grade.channels[channel]
    for turn in reversed(episode.turns):
        if channel in turn.step.channels:
            return turn.step.channels[channel]
    return episode.reward if channel == "reward" else None
