"""Rewards that were learned: a model in a folder scores a conversation as its world saw it.

What opens a folder is found by name in the group `reward_models`; here is only what it is asked. A conversation has
what the world said to its agent and what that answered, and ends with an answer: what came of the last one would
often give away what is to be judged. System messages and tools that only the agent's own side showed are not in
it, since a world does not know them, so that a model learns from what it will be asked.
"""

from collections.abc import Sequence
from typing import Protocol

from envgym.env import THE_AGENT, Step
from envgym.episode import Episode, Group
from envgym.messages import Message, text_of
from envgym.rewards.channels import Score

__all__ = ["MOST_HEARD", "LearnedReward", "heard", "latest_messages", "told_of"]

MOST_HEARD = 100_000
"""Characters of a conversation that are kept to be scored: its last messages."""


class LearnedReward(Protocol):
    """A trained reward model; the group `reward_models` holds functions ``open(path, *, device)`` that give one."""

    def score(self, messages: Sequence[Message]) -> Score:
        """What a conversation is worth, one finite number; None for one in which nothing was answered."""
        ...


def heard(group: Group, episode: Episode) -> tuple[Message, ...]:
    """A stored episode's whole line as the conversation that its world saw, up to the agent's last answer."""
    said: list[Message] = []
    step: Step = group.root(episode)
    ends = 0
    for turn in group.path(episode):
        if turn.thought:  # on the way to an action; the world hears the action alone
            continue
        if step.next_actor == THE_AGENT:
            said += step.observation
        if turn.actor == THE_AGENT:
            said.append(turn.messages[-1])
            ends = len(said)
        step = turn.step
    return latest_messages(said[:ends])


def latest_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last messages that together have at most `MOST_HEARD` characters; the very last in any case."""
    room, kept = MOST_HEARD, 0
    for message in reversed(messages):
        room -= len(text_of(message))
        if kept and room < 0:
            break
        kept += 1
    return tuple(messages[len(messages) - kept :])


def told_of(episode: Episode, channel: str) -> Score:
    """What an episode says of a channel: its grades, the newest first, then its last step that names it."""
    for grade in reversed(episode.grades):
        if channel in grade.channels:
            return grade.channels[channel]
    for turn in reversed(episode.turns):
        if channel in turn.step.channels:
            return turn.step.channels[channel]
    return episode.reward if channel == "reward" else None
