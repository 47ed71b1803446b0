"""An agent that knows the answer and plays it with the full tools: for tests, demonstrations and floors."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.fakes import ScriptedAgent
from envgym_environments.code_repair.patch import FilePatch, parse_patch

__all__ = ["gold_actions", "gold_agent"]

_MOST_CHARACTERS = 16_000
_APPLY = """python3 - <<'__END__'
import json, os
path, hunks = json.loads(DATA)
rows = open(path, newline="").read().split("\\n") if os.path.exists(path) else [""]
rows = [row + "\\n" for row in rows[:-1]] + rows[-1:] * bool(rows[-1])
for first, old, new in reversed(hunks):
    rows[first - 1:first - 1 + old] = new
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
open(path, "w", newline="").write("".join(rows))
__END__"""
"""What a shell call runs: stretches of lines of one file are replaced, the last one first."""


def gold_actions(task: Task) -> Sequence[Action]:
    """The calls that write the task's answer, and `submit`. Raises ValueError where it has none."""
    gold = task.metadata.get("gold")
    if not isinstance(gold, dict) or not gold.get("patch"):
        raise ValueError(f"task {task.id!r} has no answer that could be played")
    commands = [command for part in parse_patch(str(gold["patch"])) for command in _commands(part)]
    return [*(Action.call("shell", command=command) for command in commands), Action.call("submit")]


def _commands(part: FilePatch) -> Iterator[str]:
    """One file's hunks from its end to its beginning, as many a command as it may hold."""
    waiting: list[Any] = []
    for first, body in reversed(part.hunks):
        old = sum(line[0] != "+" for line in body)
        hunk = [first, old, [line[1:] for line in body if line[0] != "-"]]
        if waiting and len(json.dumps([hunk, *waiting])) > _MOST_CHARACTERS:
            yield _command(part.path, waiting)
            waiting = []
        waiting.insert(0, hunk)
    yield _command(part.path, waiting)


def _command(path: str, hunks: Sequence[Any]) -> str:
    return _APPLY.replace("DATA", repr(json.dumps([path, hunks])))


def gold_agent(task: Task, *, seed: int) -> ScriptedAgent:
    """The agent "gold": see `gold_actions`. The seed changes nothing."""
    return ScriptedAgent(gold_actions(task), seed=seed)
