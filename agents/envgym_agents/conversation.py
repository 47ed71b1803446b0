"""What every layout of conversations offers: a growing context that messages and sampled ids are appended to."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from envgym.messages import ImagePart, Message, text_of
from envgym.policy import Roles
from envgym_agents.eyes import Eyes

__all__ = ["Added", "Conversation", "Template", "image_parts", "spoken"]


def spoken(message: Message) -> str:
    """A message as the text that templates lay out: its content, then its tool calls as ``<tool_call>`` JSON.

    A message that has content is taken to hold its calls there already (that is what was sampled).
    """
    text = text_of(message)
    if text or not message.tool_calls:
        return text
    calls = ({"name": call.name, "arguments": call.arguments} for call in message.tool_calls)
    return "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def image_parts(message: Message) -> Iterator[ImagePart]:
    """The images of a message, in order."""
    if not isinstance(message.content, str):
        yield from (part for part in message.content if isinstance(part, ImagePart))


@dataclass(frozen=True, slots=True)
class Added:
    """What an observation added: `ids`, at `position` of segment `segment` (a new segment starts at 0).

    roles: whose the ids are; () where the layout does not know.
    """

    ids: tuple[int, ...]
    segment: int
    position: int
    roles: Roles = ()


class Conversation(Protocol):
    """One growing context. `ids` is append-only within a segment; `segment` counts contexts.

    pictures: bytes by sha256, put there before a message is shown that refers to them. images: those that the
    segment shows, in the order of their places; always none where the model reads text only.
    """

    ids: list[int]
    segment: int
    pictures: dict[str, bytes]
    images: list[bytes]

    def show(self, messages: Sequence[Message]) -> Added:
        """Append messages and the prompt of the next assistant message."""
        ...

    def offer(self, messages: Sequence[Message], room: int) -> Added | None:
        """As `show`, unless the context would then hold more than `room` ids: None, and nothing has changed."""
        ...

    def cost(self, messages: Sequence[Message]) -> int:
        """How many ids the context would hold after `show(messages)`."""
        ...

    def said(self, ids: Sequence[int]) -> str:
        """Append what was sampled and return its text, without the stop token."""
        ...

    def restart(self, messages: Sequence[Message]) -> Added:
        """Open a new segment that holds just `messages` and the prompt of the next assistant message."""
        ...

    def fork(self) -> "Conversation":
        """An independent copy."""
        ...


class Template(Protocol):
    """How one tokenizer's conversations are laid out. `actions`: compact action string -> id, may be empty.

    eyes: how its model sees; None for one that reads text only.
    """

    eyes: Eyes | None
    stop_ids: tuple[int, ...]
    actions: dict[str, int]

    def open(self) -> Conversation:
        """An empty conversation."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some sampled ids; an action token is its compact string."""
        ...
