"""An episode of `render`: a picture, to be written anew as code; each rendering is compared, and may be improved.

What is seen is the picture, its parts in words, or both. `render` draws a text, tells how alike it is and where it
differs, and shows it; `submit` ends with the likeness of the last one as reward. The state is data, so snapshots
and forks are exact.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from envgym.env import Snapshot, Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall, ToolSpec
from envgym.task import Task
from envgym.tools import check_call, parse_call, tool_spec
from envgym.wire import step_from_json, step_to_json
from envgym_environments.played import bounded
from envgym_environments.render.canvas import SIZE, Canvas
from envgym_environments.render.likeness import Pixels, apart, colour, pixels, structure

__all__ = ["Render", "See", "Wanted"]

See = Literal["parts", "image", "both"]
Wanted = tuple[str, str]
MOST_SOURCE = 50_000
"""Characters of a text that is drawn."""
ALIKE = 0.99
"""From this likeness on a picture counts as the wanted one."""
_FENCED = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)


def submit() -> None:
    """Hand in what was drawn last. This ends the episode."""


_SUBMIT = tool_spec(submit)


@dataclass(slots=True)
class _State:
    """What was drawn.

    source: the last text, "" before anything was drawn. drawn: how often; made: how often with a picture; runs:
    whether the last one has one. structure, colour: its likeness.
    """

    source: str = ""
    drawn: int = 0
    made: int = 0
    runs: bool = False
    structure: float = 0.0
    colour: float = 0.0

    @property
    def vision(self) -> float:
        return 0.5 * (self.structure + self.colour)


class Render:
    """An `Env`.

    Channels: vision (the reward), structure and colour, its halves; drawn, how often it was tried, and made, how
    often that gave a picture; runs, whether the last try did (RRVF's rewards for tools and for form).

    see: whether an observation has the wanted picture's parts in words, pictures (their PNGs come in
    `Step.images`), or both. tries: how often may be drawn. draws: makes what draws. wanted: the text whose picture
    is wanted and its parts in words ("": what draws it tells them); None where the task has a picture alone.
    """

    uses_seed = False

    def __init__(
        self, task: Task, *, draws: Callable[[], Canvas], wanted: Wanted | None,
        see: See = "parts", tries: int = 6,
    ) -> None:  # fmt: skip
        if see not in get_args(See):
            raise ValueError(f"see is {see!r}; it must be one of {', '.join(get_args(See))}")
        if tries < 1:
            raise ValueError(f"tries is {tries}; it must be at least 1")
        self.task = task
        self.images: dict[str, bytes] = {}
        self._see, self._tries, self._draws, self._source = see, tries, draws, wanted
        self._canvas = draws()
        self.tools: tuple[ToolSpec, ...] = (self._canvas.tool, _SUBMIT)
        self._wanted: Pixels | None = None
        self._asked: Message | None = None
        self._state = _State()
        self._seed = 0
        self._last: Step | None = None

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The picture, and nothing drawn yet; or the state of `start`, with the step it was taken at."""
        if self._wanted is None:
            await self._ask()
        assert self._asked is not None
        if start is None:
            self._seed, self._state = seed, _State()
            self._last = Step((self._asked,), state_key=self._key(), images=self._shown([self._asked]))
            return self._last
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "it needs an exact snapshot of the same task"
            )
        kept = json.loads(start.state)
        self._seed, self._state = start.seed, _State(**kept["state"])
        last = step_from_json(kept["last"])
        self._last = replace(last, reward=None, channels={}, images=self._shown(last.observation))
        return self._last

    async def _ask(self) -> None:
        """Draw what is wanted, and say so."""
        image, parts = await self._drawn()
        try:
            self._wanted = pixels(image, size=SIZE)
        except ValueError as error:
            raise EnvironmentFailure(f"task {self.task.id!r}: its picture: {error}") from error
        told = f"{self.task.prompt}\n{parts}" if self._see != "image" else self.task.prompt
        self._asked = self._with_image(Message(role="user", content=bounded(told)), image)

    async def _drawn(self) -> tuple[bytes, str]:
        """The wanted picture and its parts in words."""
        if self._source is None:
            return _read(self.task), ""
        source, words = self._source
        image, why = await self._canvas.picture(source)
        if image is None:
            raise EnvironmentFailure(f"task {self.task.id!r}: its own text cannot be drawn: {why}")
        return image, words or await self._canvas.parts()

    async def step(self, action: Action) -> Step:
        """Draw or submit, call by call; a mistake is answered and changes nothing."""
        if self._last is None or self._last.stop is not None:
            raise RuntimeError(f"step in task {self.task.id!r} before reset or after the end: call reset first")
        messages: list[Message] = []
        for call in _calls(action, self.tools):
            if isinstance(call, ToolCall) and call.name == "submit":
                self._last = self._ended(call, messages)
                return self._last
            image = None
            if isinstance(call, ParseError):
                text = f"error: {call.message[:500]}"
            else:
                text, image = await self._try(str(next(iter(call.arguments.values()))))
            name = call.id if isinstance(call, ToolCall) else ""
            said = Message(role="tool" if name else "user", content=text, tool_call_id=name)
            messages.append(said if image is None else self._with_image(said, image))
        self._last = Step(tuple(messages), state_key=self._key(), images=self._shown(messages))
        return self._last

    async def _try(self, source: str) -> tuple[str, bytes | None]:
        """Draw it and compare; what to say, and the picture."""
        assert self._wanted is not None
        if len(source) > MOST_SOURCE:
            return f"error: the text has {len(source)} characters; at most {MOST_SOURCE} are drawn", None
        if self._state.drawn >= self._tries:
            return f"error: all {self._tries} tries are used; call submit", None
        image, why = await self._canvas.picture(source)
        try:
            made = None if image is None else pixels(image, size=SIZE)
        except ValueError as error:
            made, why = None, str(error)
        if made is None:
            self._state = _State(source, self._state.drawn + 1, self._state.made)
            return f"error: {bounded(why, 500)}", None
        wanted = self._wanted
        before = self._state
        likeness = structure(wanted, made), colour(wanted, made)
        self._state = _State(source, before.drawn + 1, before.made + 1, True, *likeness)
        now = self._state
        lines = [f"alike: {now.vision:.3f} of 1 (structure {now.structure:.3f}, colour {now.colour:.3f})"]
        lines += [f"differs {name}: {share:.3f}" for name, share in apart(wanted, made)]
        lines.append(f"{self._tries - now.drawn} tries are left")
        return "\n".join(lines), image

    def _ended(self, call: ToolCall, before: Sequence[Message]) -> Step:
        now = self._state
        channels = {
            "vision": now.vision, "structure": now.structure, "colour": now.colour, "drawn": float(now.drawn),
            "made": float(now.made), "runs": float(now.runs), "success": float(now.vision >= ALIKE),
            "reward": now.vision,
        }  # fmt: skip
        stop = StopReason.GOAL if now.vision >= ALIKE else StopReason.SUBMITTED
        said = Message(role="tool" if call.id else "user", content="The end.", tool_call_id=call.id)
        return Step(
            (*before, said), now.vision, channels, stop, self._key(), submission=now.source,
            images=self._shown(before),
        )  # fmt: skip

    def _shown(self, messages: Sequence[Message]) -> dict[str, bytes]:
        """The pictures in messages, those that this environment has drawn."""
        parts = [part for message in messages for part in message.content if isinstance(part, ImagePart)]
        return {part.sha256: self.images[part.sha256] for part in parts if part.sha256 in self.images}

    def _with_image(self, message: Message, image: bytes) -> Message:
        """The message with the picture, where pictures are shown."""
        if self._see == "parts":
            return message
        name = hashlib.sha256(image).hexdigest()
        self.images[name] = image
        return message.model_copy(update={"content": (TextPart(text=str(message.content)), ImagePart(sha256=name))})

    def _key(self) -> str:
        told = json.dumps([self.task.id, asdict(self._state)])
        return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()

    async def snapshot(self) -> Snapshot:
        """The whole state as JSON."""
        if self._last is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        kept = json.dumps({"state": asdict(self._state), "last": step_to_json(self._last)})
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=kept)

    async def release(self, snapshot: Snapshot) -> None:
        """A snapshot owns nothing."""

    async def fork(self) -> "Render":
        """An independent one in the same state; what draws is its own."""
        other = Render(self.task, draws=self._draws, wanted=self._source, see=self._see, tries=self._tries)
        other.images, other._wanted, other._asked = dict(self.images), self._wanted, self._asked
        other._state, other._seed, other._last = replace(self._state), self._seed, self._last
        return other

    async def close(self) -> None:
        """End what draws."""
        self._last = None
        await self._canvas.close()


def _calls(action: Action, tools: Sequence[ToolSpec]) -> list[ToolCall | ParseError]:
    """What was called; a text is one call in the compact notation, or a text to be drawn in a fence."""
    if action.error is not None:
        return [action.error]
    if action.calls:
        return [check_call(call, tools) for call in action.calls]
    fenced = _FENCED.search(action.text)
    if fenced is None:
        return [parse_call(action.text, tools)]
    return [check_call(ToolCall(name="render", arguments={next(iter(_properties(tools[0]))): fenced[1]}), tools)]


def _properties(tool: ToolSpec) -> dict[str, Any]:
    found: Any = tool.parameters["properties"]
    return dict(found)


def _read(task: Task) -> bytes:
    """The picture of a task that has one alone."""
    path = Path(str(task.metadata["path"]))
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvironmentFailure(f"task {task.id!r}: {path}: {error.strerror}") from error
