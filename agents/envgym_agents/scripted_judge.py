"""A judge without a model: it answers the questions of `envgym.data.feedback` by looking for words.

The same question gets the same answer. It is the floor under judges that understand something, and what tests and
first steps use where there is no model.
"""

import json
from typing import Any

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task

__all__ = ["ScriptedJudge", "scripted_judge"]


class ScriptedJudge:
    """Praises turns that the world answered with one of `good`, blames those of `bad`; the goal is to see `good`.

    Its subgoals are the words of `good`, in their order; the stages of its timed goal, too, `within` turns each.
    """

    def __init__(self, good: tuple[str, ...], bad: tuple[str, ...], *, within: int | None, name: str) -> None:
        self.name = name
        self._good, self._bad, self._within = good, bad, within

    async def act(self, step: Step) -> Reply:
        """The JSON that the question asks for."""
        asked = step.text.rsplit("\n\n", 1)[-1]
        turns = [json.loads(line) for line in step.text.splitlines() if line.startswith('{"turn": ')]
        if '"stages"' in asked:
            answer: Any = self._goal()
        elif '"quote"' in asked:
            answer = self._praise(turns)
        elif '"subgoal"' in asked:
            answer = self._reached(turns)
        else:
            answer = list(self._good)
        return Reply(Action.say(json.dumps(answer)))

    def _praise(self, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for turn in turns:
            for words, reward in ((self._good, 1), (self._bad, -1)):
                seen = [word for word in words if word in turn["world"]]
                if seen:
                    why = f"the world said {seen[0]!r}"
                    found.append({"turn": turn["turn"], "quote": turn["said"], "reward": reward, "why": why})
        return found

    def _reached(self, turns: list[dict[str, Any]]) -> list[dict[str, int]]:
        found = []
        for number, word in enumerate(self._good, 1):
            at = next((turn["turn"] for turn in turns if word in turn["world"]), None)
            if at is not None:
                found.append({"turn": at, "subgoal": number})
        return found

    def _goal(self) -> dict[str, Any]:
        share = round(1 / max(len(self._good), 1), 6)
        stages = [{"name": word, "text": word, "within": self._within, "reward": share} for word in self._good]
        return {"stages": stages, "never": self._bad[0] if self._bad else ""}

    def fork(self, *, seed: int) -> "ScriptedJudge":
        """Itself again: an answer depends on the question only."""
        return ScriptedJudge(self._good, self._bad, within=self._within, name=self.name)

    async def close(self) -> None:
        """It holds nothing."""


def scripted_judge(
    task: Task, *, seed: int, good: str = "", bad: str = "", within: int | None = None
) -> ScriptedJudge:
    """A judge that looks for words in what the world answered: good and bad ones, split at commas (no model)."""
    del seed  # nothing is drawn
    return ScriptedJudge(_words(good), _words(bad), within=within, name="agent")


def _words(written: str) -> tuple[str, ...]:
    return tuple(word for part in written.split(",") if (word := part.strip()))
