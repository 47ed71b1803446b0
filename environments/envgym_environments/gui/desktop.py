"""`desktop`: real Debian applications on a display of their own, seen as an accessibility tree or as pixels.

Graded by what is: the files of the home, and what an element shows. The display stays warm between episodes: a
reset ends the application, empties the home and starts anew, so nothing of the episode before is left.
"""

import csv
import hashlib
import io
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure, Misconfigured
from envgym.limits import Resources
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.registry import EnvSpec
from envgym.sandbox import SandboxBackend
from envgym.screen import CLOSED, ScreenView
from envgym.screen_tools import SCREEN_TOOLS, screen_action
from envgym.task import Task, TaskSet, World
from envgym.tools import check_call, parse_call, tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.gui.displays import Display, give_back, take
from envgym_environments.gui.problems import KINDS
from envgym_environments.gui.sheets import timeless
from envgym_environments.gui.unified import screen_calls
from envgym_environments.pictures import pictured
from envgym_environments.played import bounded, clean, draws, lazy_tasks

__all__ = ["SPEC", "DesktopPlay", "desktop_tasks", "expert"]

See = Literal["tree", "image", "both"]
_HOME = "/work"
_CSV = "Gnumeric_stf:stf_csv"
_CLOSED_FOLDER = ("-type", "d", "(", "!", "-readable", "-o", "!", "-executable", ")", "-printf", "  %p/\\0")
_FILE = ("-type", "f", "-printf", "  %p\\0", "-exec", "/usr/bin/sha256sum", "--zero", "{}", "+")
_LOOK = ("/usr/bin/find", ".", *_CLOSED_FOLDER, "-o", *_FILE)
"""Tells each name without a digest, then again with the digest of what can be read."""


def done() -> None:
    """Say that the task is done. This ends the episode."""


_DONE = tool_spec(done)


def desktop_tasks(
    count: int | None = 800,
    *,
    kind: str | None = None,
    difficulty: int | None = None,
    seed: int = 0,
    image: str = "host",
) -> TaskSet:
    """`count` tasks (None: without end) over several applications; every fifth is held out.

    kind: one of `envgym_environments.gui.problems.KINDS`; difficulty: 1 to 5; None takes all in turn.
    image: of the sandbox, such as `desktop` of containers/images.toml. Raises
    ValueError for another kind, a difficulty out of bounds or a count below one.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}, or None for all in turn")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ValueError(f"difficulty is {difficulty}; it must be 1 to 5, or None for all in turn")
    world = World(image=image, workdir=_HOME, resources=Resources(memory_bytes=2 << 30))
    names = list(KINDS) if kind is None else [kind]

    def make(index: int, split: str) -> Task:
        name = names[index % len(names)]
        level = difficulty or 1 + (index // len(names) + index % len(names)) % 5
        problem = KINDS[name](draws(seed, index, level, 0xDE5C), level)
        return Task(
            id=f"desktop/{seed}/{name}/{level}/{index}",
            prompt=problem.prompt,
            split=split,
            seed=index,
            world=world,
            metadata={"kind": name, "difficulty": level, **_plain(asdict(problem))},
        )

    return lazy_tasks(make, count)


def _plain(data: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(data, dict):
        return {name: _plain(value) for name, value in data.items()}
    return [_plain(part) for part in data] if isinstance(data, (tuple, list)) else data


class DesktopPlay:
    """Implements `envgym.env.Playable`. Reward 1.0 when all that is wanted is so at `done` (GOAL), else 0.0.

    see: what an observation shows: the tree as text, an image (`ImagePart`; its PNG is in `Step.images`, and in
    `images` until the next observation), or both. width, height: pixels. warm: so many displays of ended
    environments wait on the backend for the next ones. watch: a folder in which a file for each running episode
    tells viewers of VNC where its display is.
    """

    tools: tuple[ToolSpec, ...] = (*SCREEN_TOOLS, _DONE)
    uses_seed = False  # what a task asks is drawn with the task

    def __init__(
        self, task: Task, *, backend: SandboxBackend, see: See = "tree", width: int = 800, height: int = 600,
        warm: int = 0, watch: str = "",
    ) -> None:  # fmt: skip
        if see not in ("tree", "image", "both"):
            raise ValueError(f"see is {see!r}; it must be 'tree', 'image' or 'both'")
        if warm < 0:
            raise ValueError(f"warm is {warm}; it must be 0 or more displays")
        if watch:
            try:
                Path(watch).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"watch is {watch!r}; it must be a folder that can be made: {error}") from error
        self.task = task
        self.images: dict[str, bytes] = {}
        self._backend, self._see, self._size = backend, see, (width, height)
        self._warm, self._watch = warm, watch
        self._display: Display | None = None
        self._watching = AsyncExitStack()
        self._last: Step | None = None
        self._document = ("", "")  # the digest of a spreadsheet's bytes, and that without the time of its saving

    async def reset(self, *, seed: int) -> Step:
        """The application as it starts, in a home with the task's files alone."""
        known = self.task.metadata
        if self._display is None:
            world = self.task.world
            if world is None:
                raise ValueError(f"task {self.task.id!r} has no world; tasks of `desktop_tasks` have one")
            try:
                self._display = await take(self._backend, world, self._size)
            except ValueError as error:  # such as an image that there is not: no episode could be played
                raise Misconfigured(f"there can be no display of task {self.task.id!r}: {error}") from error
            if self._watch:
                await self._watching.enter_async_context(_shown(self._display, Path(self._watch)))
        else:
            await self._display.screen.clear()
        sandbox, screen = self._display
        files: Any = known["files"]
        for name, text in files.items():
            await sandbox.write(f"{sandbox.world.workdir}/{name}", text.encode())
        program: Any = known["program"]
        await screen.launch(program)
        self._last = await self._answer([self.task.prompt], [None])
        return self._last

    async def step(self, action: Action) -> Step:
        """Do what was called, in order, up to `done`; a mistake is answered."""
        if self._last is None or self._display is None or self._last.stop is not None:
            raise RuntimeError(f"step in task {self.task.id!r} before reset or after the end: call reset first")
        texts: list[str] = []
        origins: list[ToolCall | None] = []
        ended = False
        for call, origin in _read(action, self.tools, self._size):
            ended = isinstance(call, ToolCall) and call.name == "done"
            texts.append("the end" if ended else await self._do(call))
            origins.append(origin)
            if ended:
                break
        self._last = await self._answer(texts, origins, ended=ended)
        return self._last

    async def _do(self, call: ToolCall | ParseError) -> str:
        assert self._display is not None
        chosen = call if isinstance(call, ParseError) else screen_action(call)
        if isinstance(chosen, ParseError):
            return f"error: {clean(chosen.message)[:500]}"
        acted = await self._display.screen.act(chosen)
        told = f"error: {acted.fault}" if acted.fault else "done"
        return told if acted.settled else f"{told}; programs are still at work"

    async def _answer(self, texts: list[str], origins: list[ToolCall | None], *, ended: bool = False) -> Step:
        """What is shown after all that was done, in the last message."""
        assert self._display is not None
        view = await self._display.screen.view(image=self._see != "tree", windows=True, files=True)
        # what the display itself says of the home is cheap, and good enough for a state; a grade asks the sandbox
        files = await self._timeless(await self._files() if ended else dict(view.files or {}))
        if self._see != "image":
            texts[-1] = f"{texts[-1]}\n{bounded(str(view))}"
        messages = [
            Message(role="user", content=text)
            if origin is None
            else Message(role="tool", content=text, tool_call_id=origin.id)
            for text, origin in zip(texts, origins, strict=True)
        ]
        if view.image is not None:
            messages[-1], self.images = pictured(messages[-1], view.image)
        key = _key(view, files)
        if not ended:
            return Step(tuple(messages), state_key=key, images=self.images)
        channels = await self._channels(view, files)
        reward = float(all(channels.values()))
        stop = StopReason.GOAL if reward else StopReason.SUBMITTED
        return Step(tuple(messages), reward, channels | {"reward": reward}, stop, key, images=self.images)

    async def _channels(self, view: ScreenView, files: dict[str, str]) -> dict[str, float]:
        """Each part of what is wanted: 1.0 where it is so."""
        known: Any = self.task.metadata
        wanted = known["files"] if known["wanted"] is None else known["wanted"]
        digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in wanted.items()}
        channels = {}
        if known["table"] is not None:
            document, values = known["table"]
            channels["table"] = float(document in files and await self._table(document) == values)
            files = files | {document: digests[document]}  # its bytes are the program's matter
        channels["files"] = float(files == digests)
        if known["shows"] is not None:
            role, text = known["shows"]
            channels["shows"] = float(any(node.text == text for node in view.find(role)))
        return channels

    async def _table(self, document: str) -> list[list[str]] | None:
        """The values of a spreadsheet's first sheet, computed; None where it is no spreadsheet."""
        assert self._display is not None
        command = [
            "/usr/bin/ssconvert",
            f"--export-type={_CSV}",
            f"{self._display.sandbox.world.workdir}/{document}",
            "fd://1",
        ]
        found = await self._display.sandbox.exec(command, timeout_s=60)
        if found.exit_code or found.timed_out:
            return None
        try:
            rows = list(csv.reader(io.StringIO(found.stdout.decode("utf-8", "replace"), newline="")))
        except csv.Error:
            return None
        for row in rows:
            while row and not row[-1]:
                row.pop()
        while rows and not rows[-1]:
            rows.pop()
        return rows

    async def _files(self) -> dict[str, str]:
        """The sha256 of every file in the home, or `CLOSED`, as `ScreenView.files`, by programs of the image."""
        assert self._display is not None
        found = await self._display.sandbox.exec(_LOOK, timeout_s=60)
        if found.exit_code not in (0, 1) or found.timed_out:  # 1: something is closed, which is data
            raise EnvironmentFailure(
                f"the home cannot be looked at: {found.stderr[-300:].decode(errors='replace')}"
            )
        # with names missing the home is as no task wants it
        digests = {"": CLOSED} if found.truncated[0] else {}
        for line in found.stdout.decode("utf-8", "surrogateescape").split("\0"):
            digest, gap, name = line.partition("  ")
            if gap and (digest or name.removeprefix("./") not in digests):
                digests[name.removeprefix("./")] = digest or CLOSED
        return digests

    async def _timeless(self, files: dict[str, str]) -> dict[str, str]:
        """The same, but of a spreadsheet without the time of its saving, which is no part of the state."""
        assert self._display is not None
        known: Any = self.task.metadata
        document = known["table"][0] if known["table"] is not None else ""
        if files.get(document, CLOSED) == CLOSED:
            return files
        if files[document] != self._document[0]:
            try:
                content = await self._display.sandbox.read(f"{self._display.sandbox.world.workdir}/{document}")
            except OSError:  # of one that is too large to be read the digest of its bytes stays
                return files
            self._document = files[document], hashlib.sha256(timeless(content)).hexdigest()
        return files | {document: self._document[1]}

    async def close(self) -> None:
        """End display and sandbox, or let them wait for the next environment."""
        display, self._display = self._display, None
        await self._watching.aclose()
        if display is not None:
            await give_back(self._backend, self._size, display, most=self._warm)


@asynccontextmanager
async def _shown(display: Display, folder: Path) -> AsyncIterator[None]:
    """While this lasts, a file says where the display can be watched, in the form that TigerVNC's viewer opens."""
    async with display.screen.watched() as (host, port):
        with _told(folder, f"{display.sandbox.id}.vnc", f"ServerName={host}::{port}\nViewOnly=1\n"):
            yield


@contextmanager
def _told(folder: Path, name: str, settings: str) -> Iterator[None]:
    path = folder / name
    path.write_text(f"TigerVNC Configuration file Version 1.0\n\n{settings}")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _key(view: ScreenView, files: dict[str, str]) -> str:
    """A digest of what is shown and of the home; refs, which say who was seen first, are not in it."""
    shown = [(node.depth, node.role, node.name, node.states, node.text) for node in view.tree or ()]
    windows = [(window.title, window.active) for window in view.windows or ()]
    return hashlib.blake2b(
        repr((shown, windows, sorted(files.items()))).encode("utf-8", "replace"), digest_size=12
    ).hexdigest()


def _read(
    action: Action, tools: Sequence[ToolSpec], size: tuple[int, int]
) -> list[tuple[ToolCall | ParseError, ToolCall | None]]:
    """What was called, and whom to answer; a text is one call in the compact notation, or what `unified` reads."""
    if action.error is not None:
        return [(action.error, None)]
    if action.calls:
        return [(check_call(call, tools), call) for call in action.calls]
    said = clean(action.text)
    read = screen_calls(said, size) or [parse_call(said, tools)]
    return [(one if isinstance(one, ParseError) else check_call(one, tools), None) for one in read]


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The next step of the task's own way, with refs looked up in what is shown now."""
    way: Any = task.metadata["way"]
    at = len(seen) - 1
    if at >= len(way):
        return Action.call("done")
    name, *given = way[at]
    spec = next(spec for spec in SCREEN_TOOLS if spec.name == name)
    properties: Any = spec.parameters["properties"]
    found = [_ref(seen[-1].text, one) if one.startswith("@") else one for one in given]
    return Action.call(name, **dict(zip(properties, found, strict=False)))


def _ref(text: str, wanted: str) -> str:
    """The ref of ``@role:name`` in a tree as it is shown; the name may be empty. "e0" where there is none."""
    role, _, name = wanted[1:].partition(":")
    shown = f" {name!r}" if name else ""
    found = re.search(rf"^ *(e\d+) {re.escape(role + shown)}(?= \(|:|$)", text, re.MULTILINE)
    return found[1] if found else "e0"


expert = expert_of(_decide)


def _make(task: Task, **options: Any) -> DesktopPlay:
    return DesktopPlay(task, **options)


SPEC = EnvSpec(
    name="desktop",
    tasks=desktop_tasks,
    make=_make,
    description="Editor, spreadsheet, file manager and others on a display; graded by files and what is shown.",
    sandbox=True,
)
