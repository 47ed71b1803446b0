"""From messages to token ids, append-only: only what is new is rendered and encoded.

`OwnTemplate` lays out conversations for our tokenizer by hand. `FolderTemplate` takes any Hugging Face chat
template: each turn it checks that the rendered text extends what was rendered before and encodes only the rest;
where a template rewrites its past, the whole context is rendered anew and a new segment begins, never a silent
drift. Sampled ids enter a context as they were sampled.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from jinja2.exceptions import TemplateError

from envgym.messages import Message, TextPart
from envgym.policy import Roles
from envgym_agents.conversation import Added, Conversation, Template, image_parts, spoken
from envgym_agents.eyes import Eyes
from envgym_agents.rendered_roles import Scaffolds, covered
from envgym_agents.tokenizer import END, ROLES, action_ids, plain_encoder

__all__ = ["Added", "Conversation", "FolderTemplate", "OwnTemplate", "Template", "spoken", "template_for"]


PICTURE = "\ue002"
"""Stands for an image in a message's text until it is rendered; a world's own is replaced."""


def template_for(tokenizer: Any, eyes: Eyes | None = None) -> "OwnTemplate | FolderTemplate":
    """The template of a tokenizer: ours by hand, any other by its own chat template.

    eyes: of a model that sees; the tokenizer may then be its processor, whose chat template it is.
    """
    if eyes is not None:
        return FolderTemplate(eyes.tokenizer, eyes)
    known = tokenizer.get_vocab()
    ours = {END, *ROLES.values()} <= known.keys()
    return OwnTemplate(tokenizer) if ours else FolderTemplate(tokenizer)


class OwnTemplate:
    """``<|role|>`` text ``<|end|>`` for each message; special tokens inside the text stay plain text."""

    eyes: Eyes | None = None

    def __init__(self, tokenizer: Any) -> None:
        self._core = plain_encoder(tokenizer)
        self.actions = action_ids(tokenizer)
        self._action_of = {index: action for action, index in self.actions.items()}
        self.roles = {role: int(tokenizer.convert_tokens_to_ids(token)) for role, token in ROLES.items()}
        self.end = int(tokenizer.convert_tokens_to_ids(END))
        self.stop_ids: tuple[int, ...] = (self.end,)

    def open(self) -> "OwnConversation":
        """An empty conversation."""
        return OwnConversation(self)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        return self._core.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    def body(self, message: Message) -> list[int]:
        """The ids between a message's role and its end; a compact action is its one token."""
        text = spoken(message)
        if message.role == "assistant" and text in self.actions:
            return [self.actions[text]]
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some sampled ids; an action token is its compact string."""
        if len(ids) == 1 and ids[0] in self._action_of:
            return self._action_of[ids[0]]
        return self._core.decode(list(ids), skip_special_tokens=False)  # type: ignore[no-any-return]


@dataclass(slots=True)
class OwnConversation:
    """A conversation of `OwnTemplate`."""

    template: OwnTemplate
    ids: list[int] = field(default_factory=list)
    segment: int = 0
    pictures: dict[str, bytes] = field(default_factory=dict)
    images: list[bytes] = field(default_factory=list)

    def _new(self, messages: Sequence[Message]) -> tuple[list[int], Roles]:
        template = self.template
        new: list[int] = []
        roles: list[tuple[str, int]] = []
        around = 1  # ids of the template before the next text
        # a sampled message that did not end itself (one-token actions, length limit) is ended here
        if self.ids and self.ids[-1] != template.end:
            new.append(template.end)
            around = 2
        for message in messages:
            body = template.body(message)
            new.append(template.roles[message.role])
            new += body
            new.append(template.end)
            if body:
                roles += (("template", around), (message.role, len(body)))
                around = 0
            around += 2
        new.append(template.roles["assistant"])
        roles.append(("template", around))
        return new, tuple(roles)

    def show(self, messages: Sequence[Message]) -> Added:
        """Append messages and the prompt of the next assistant message."""
        return self._append(*self._new(messages))

    def offer(self, messages: Sequence[Message], room: int) -> Added | None:
        """As `show`, unless the context would then hold more than `room` ids: None, and nothing has changed."""
        new, roles = self._new(messages)
        return self._append(new, roles) if len(self.ids) + len(new) <= room else None

    def _append(self, new: list[int], roles: Roles) -> Added:
        position = len(self.ids)
        self.ids += new
        return Added(tuple(new), self.segment, position, roles)

    def cost(self, messages: Sequence[Message]) -> int:
        """How many ids the context would hold after `show(messages)`."""
        return len(self.ids) + len(self._new(messages)[0])

    def said(self, ids: Sequence[int]) -> str:
        """Append what was sampled and return its text, without the stop token."""
        self.ids += ids
        body = ids[:-1] if ids and ids[-1] == self.template.end else ids
        return self.template.decode(body)

    def restart(self, messages: Sequence[Message]) -> Added:
        """Open a new segment that holds just `messages` and the prompt of the next assistant message."""
        self.ids, self.segment = [], self.segment + 1
        return self.show(messages)

    def fork(self) -> "OwnConversation":
        """An independent copy."""
        return replace(self, ids=list(self.ids))


class FolderTemplate:
    """Any tokenizer with a chat template of its own.

    A text is given as it is, or as one of several parts where the template takes it so only, as those of some
    vision-language models do. Raises ValueError when it has none, or when its template can lay out none of the
    shapes tried: roles as they are; tool messages as user messages with neighbours joined; and the system message
    inside the first user's.
    """

    def __init__(self, tokenizer: Any, eyes: Eyes | None = None) -> None:
        self._laid_out = tokenizer if eyes is None else eyes.processor
        if not getattr(self._laid_out, "chat_template", None):
            raise ValueError("this folder's tokenizer has no chat_template; add one to tokenizer_config.json")
        self._tokenizer, self.eyes = tokenizer, eyes
        special = {*tokenizer.all_special_tokens, *([] if eyes is None else [eyes.token])}
        self._special = sorted((text for text in special if len(text) > 1), key=len, reverse=True)
        self.actions: dict[str, int] = {}
        self.stop_ids = _stop_ids(tokenizer)
        self._shape, self._parted = self._fitting_shape()
        self._lead = self._lead_text()
        self._picture = "" if eyes is None else self._picture_text()
        self.scaffolds = Scaffolds(self.render)

    def open(self) -> "FolderConversation":
        """An empty conversation."""
        return FolderConversation(self)

    def encode(self, text: str) -> list[int]:
        """The ids of rendered text, special tokens included."""
        return self._tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]

    def encoded(self, text: str) -> tuple[list[int], Any]:
        """As `encode`, and which characters each id covers: a `tokenizers.Encoding`, None where nothing knows."""
        found = self._tokenizer(text, add_special_tokens=False)
        return found["input_ids"], found.encodings[0] if found.encodings else None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens shown."""
        return self._tokenizer.decode(  # type: ignore[no-any-return]
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def defused(self, text: str) -> str:
        """Text in which special tokens' names are broken up, so that a world cannot forge a role."""
        for special in self._special:
            if special in text:
                text = text.replace(special, f"{special[0]}\u200b{special[1:]}")
        return text.replace(PICTURE, "\ufffd") if self.eyes is not None else text

    def shown(self, message: Message) -> str:
        """What a message says, with `PICTURE` for each image; without eyes there are none to show."""
        if self.eyes is None or isinstance(message.content, str) or message.tool_calls:
            text = self.defused(spoken(message))
            return self.kept(text) if message.role == "assistant" else text
        parts = (self.defused(part.text) if isinstance(part, TextPart) else PICTURE for part in message.content)
        return "".join(parts)

    def kept(self, text: str) -> str:
        """What a model said without the blank that the template itself puts before it when it is laid out again."""
        return text.removeprefix(self._lead)

    def seen(self, ids: list[int], roles: Roles, images: Sequence[bytes]) -> tuple[list[int], Roles]:
        """Ids of rendered text with each image's placeholder made what the image takes, and whose they are then."""
        if self.eyes is None:
            return ids, roles
        found, sizes = self.eyes.expanded(ids, images)
        stops = [0, *accumulate(sizes)]
        at, grown = 0, []
        for role, count in roles:
            grown.append((role, stops[at + count] - stops[at]))
            at += count
        return found, tuple(grown)

    def placed(self, messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Messages with their images' placeholders as they are rendered."""
        if self.eyes is None:
            return list(messages)
        return [(role, text.replace(PICTURE, self._picture)) for role, text in messages]

    def _lead_text(self) -> str:
        """The blank that stands before an assistant's text and is no part of the prompt of one; mostly ""."""
        asked = [("user", "\ue000")]
        try:
            prompt, whole = self.render(asked), self.render([*asked, ("assistant", "\ue001"), *asked])
        except (TemplateError, TypeError, KeyError, ValueError):  # it lays out no conversation that begins so
            return ""
        lead = whole.removeprefix(prompt).partition("\ue001")[0] if whole.startswith(prompt) else ""
        return lead if lead.isspace() else ""

    def _picture_text(self) -> str:
        """What the chat template writes for an image between texts; "" where it writes that elsewhere."""
        text = self._apply(_SHAPES[self._shape]([("user", f"\ue000{PICTURE}\ue001")]))
        return text.partition("\ue000")[2].partition("\ue001")[0]

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """The reference text of (role, text) messages, with the prompt of the next assistant message.

        Where the template refuses a sequence of roles in the shape that it took at first, the next one is tried;
        what then does not extend the context opens a segment.
        """
        for shape in _SHAPES[self._shape : -1]:
            try:
                return self._apply(shape(messages))
            except (TemplateError, TypeError, KeyError, ValueError):
                continue
        return self._apply(_SHAPES[-1](messages))

    def _apply(self, messages: Sequence[tuple[str, str]]) -> str:
        laid = [{"role": role, "content": _parts(text) if self._parted else text} for role, text in messages]
        return self._laid_out.apply_chat_template(  # type: ignore[no-any-return]
            laid, tokenize=False, add_generation_prompt=True
        )

    def _fitting_shape(self) -> tuple[int, bool]:
        """The first of the shapes that loses no text, and whether texts are parts in it."""
        roles = ("system", "user", "assistant", "tool", "user")
        probe = [(role, f"\ue000{number}\ue001") for number, role in enumerate(roles)]
        said = ""
        for parted in (True,) if self.eyes is not None else (False, True):
            self._parted = parted
            for index, shape in enumerate(_SHAPES):
                try:
                    text = self._apply(shape(probe))
                except (TemplateError, TypeError, KeyError, ValueError) as error:
                    said = str(error)
                    continue
                # what was said before may be left out, as templates of thinking models do
                if all(part in text or role == "assistant" for role, part in probe):
                    return index, parted
        raise ValueError(
            f"this folder's chat template lays out no conversation with tools: {said or 'text is lost'}"
        )


@dataclass(slots=True)
class FolderConversation:
    """A conversation of `FolderTemplate`: `text` is what `ids` stand for, `messages` what it was rendered from."""

    template: FolderTemplate
    ids: list[int] = field(default_factory=list)
    segment: int = 0
    text: str = ""
    messages: list[tuple[str, str]] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    images: list[bytes] = field(default_factory=list)
    _ended: int | None = None

    def _shown(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        return [*self.messages, *((message.role, self.template.shown(message)) for message in messages)]

    def _images(self, messages: Sequence[Message]) -> list[bytes]:
        """The bytes of the images that messages show, in order. Raises KeyError where they are not known."""
        if self.template.eyes is None:
            return []
        return [self.pictures[part.sha256] for message in messages for part in image_parts(message)]

    def _new(self, messages: Sequence[tuple[str, str]]) -> tuple[str, list[int] | None, Any]:
        """The reference text, the ids it adds to the segment, and whose characters the ids cover.

        The ids are None where it does not extend the segment.
        """
        reference = self.template.render(messages)
        if not reference.startswith(self.text):
            return reference, None, None
        new, cover = self.template.encoded(reference[len(self.text) :])
        if self._ended is not None:
            if not new or new[0] != self._ended:
                return reference, None, None
            new = new[1:]
        return reference, new, cover

    def show(self, messages: Sequence[Message]) -> Added:
        """Append messages and the prompt of the next assistant message; a new segment where that is impossible."""
        added = self.offer(messages, sys.maxsize)
        assert added is not None
        return added

    def offer(self, messages: Sequence[Message], room: int) -> Added | None:
        """As `show`, unless the context would then hold more than `room` ids: None, and nothing has changed."""
        shown = self._shown(messages)
        reference, new, cover = self._new(shown)
        before, old, text = self.ids, len(self.messages), self.text
        if new is None:
            before, old, text = [], 0, ""
            new, cover = self.template.encoded(reference)
        placed = self.template.placed(shown)
        places = self.template.scaffolds.places(placed[:old], placed[old:], text, reference[len(text) :])
        images = [*([] if old else self.images), *self._images(messages)]
        new, roles = self.template.seen(new, covered(places, cover, len(new)), images)
        if len(before) + len(new) > room:
            return None
        self.images = images if before is not self.ids else [*self.images, *self._images(messages)]
        if before is not self.ids:
            self.ids, self.segment = [], self.segment + 1
        position = len(self.ids)
        self.ids += new
        self.messages, self.text, self._ended = shown, reference, None
        return Added(tuple(new), self.segment, position, roles)

    def cost(self, messages: Sequence[Message]) -> int:
        """How many ids the context would hold after `show(messages)`."""
        reference, new, _cover = self._new(self._shown(messages))
        whole, images = new is None, self._images(messages)
        ids = self.template.encode(reference) if new is None else new
        ids, _roles = self.template.seen(ids, (), [*self.images, *images] if whole else images)
        return len(ids) if whole else len(self.ids) + len(ids)

    def said(self, ids: Sequence[int]) -> str:
        """Append what was sampled and return its text, without the stop token."""
        self.ids += ids
        self._ended = ids[-1] if ids and ids[-1] in self.template.stop_ids else None
        text = self.template.decode(ids[:-1] if self._ended is not None else ids)
        self.text += text
        self.messages.append(("assistant", self.template.kept(text)))
        return text

    def restart(self, messages: Sequence[Message]) -> Added:
        """Open a new segment that holds just `messages` and the prompt of the next assistant message."""
        self.ids, self.segment, self.text, self.messages, self.images = [], self.segment + 1, "", [], []
        self._ended = None
        return self.show(messages)

    def fork(self) -> "FolderConversation":
        """An independent copy."""
        return replace(
            self, ids=list(self.ids), messages=list(self.messages), pictures=dict(self.pictures),
            images=list(self.images),
        )  # fmt: skip


def _parts(text: str) -> list[dict[str, str]]:
    """A text as the content parts that processors lay out, with an image for each `PICTURE`."""
    found: list[dict[str, str]] = []
    for number, piece in enumerate(text.split(PICTURE)):
        found += [{"type": "image"}] if number else []
        found += [{"type": "text", "text": piece}] if piece or PICTURE not in text else []
    return found


def _as_is(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(messages)


def _alternating(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Tool messages become the user's; neighbours of one role are joined."""
    joined: list[tuple[str, str]] = []
    for role, text in messages:
        role = "user" if role == "tool" else role
        if joined and joined[-1][0] == role:
            joined[-1] = (role, f"{joined[-1][1]}\n{text}")
        else:
            joined.append((role, text))
    return joined


def _without_system(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """As `_alternating`, with system messages said by the user."""
    return _alternating([("user" if role == "system" else role, text) for role, text in messages])


_SHAPES = (_as_is, _alternating, _without_system)


def _stop_ids(tokenizer: Any) -> tuple[int, ...]:
    """The end-of-sequence id and the usual end-of-turn ids that the vocabulary knows, ascending."""
    known = tokenizer.get_vocab()
    names = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<end_of_utterance>")
    ids = {known[name] for name in names if name in known}
    if tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    if not ids:
        raise ValueError("this folder's tokenizer names no eos_token: generation would never end")
    return tuple(sorted(ids))
