"""An episode as JSON values, to be read by programs; the store has a form of its own."""

from typing import Any

from envgym.episode import Episode, Turn
from envgym.wire import messages_to_json, snapshot_to_json, step_to_json

__all__ = ["episode_to_json"]


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "actor": turn.actor,
        "messages": messages_to_json(turn.messages),
        "step": step_to_json(turn.step),
        "prompt_ids": turn.prompt_ids.tolist(),
        "sampled_ids": turn.sampled_ids.tolist(),
        "logprobs": turn.logprobs.tolist(),
        "versions": [(run.start, run.version) for run in turn.versions],
        "segment": turn.segment,
        "position": turn.position,
        "allowed": turn.allowed,
        "snapshot": snapshot_to_json(turn.snapshot),
        "error": None if turn.error is None else turn.error.model_dump(),
        "act_s": turn.act_s,
        "step_s": turn.step_s,
    }


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """An episode as JSON values, token ids and log-probabilities as lists of numbers: to be read by programs."""
    parent, failure = episode.parent, episode.failure
    return {
        "id": episode.id,
        "task_id": episode.task_id,
        "group": episode.group,
        "root": step_to_json(episode.root),
        "turns": [_turn_to_json(turn) for turn in episode.turns],
        "seed": episode.seed,
        "stop": episode.stop,
        "failure": None if failure is None else failure.model_dump(mode="json"),
        "parent": None if parent is None else (parent.episode, parent.turn, parent.token),
        "grades": [grade.model_dump() for grade in episode.grades],
        "provenance": list(episode.provenance),
        "wall_s": episode.wall_s,
    }
