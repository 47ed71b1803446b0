"""`desktop-grounding`: the questions of `grounding` about real applications on a display, in a sandbox.

The screens are those of `desktop`'s problems: the application as it starts, or somewhere on the way of its expert.
The display stays warm between questions.
"""

from typing import Any

from envgym.errors import EnvironmentFailure
from envgym.limits import Resources
from envgym.messages import ParseError, ToolCall
from envgym.registry import EnvSpec
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.screen import Node, Screen, ScreenView
from envgym.screen_tools import SCREEN_TOOLS, screen_action
from envgym.screening import open_screen
from envgym.task import Task, TaskSet, World
from envgym_environments.gui.desktop import desktop_tasks
from envgym_environments.gui.grounding.asking import KINDS, Mark, clipped
from envgym_environments.gui.grounding.env import PREDICT, Grounding, Question, posed
from envgym_environments.gui.grounding.rewards import Truth
from envgym_environments.gui.grounding.web import Shown
from envgym_environments.played import draws

__all__ = ["SPEC", "DesktopQuestions", "desktop_grounding_tasks"]

_ASKED = frozenset(
    ("push button", "button", "toggle button", "check box", "radio button", "menu", "text", "combo box",
     "table cell", "table column header")
)  # fmt: skip
_ASKED_BY_NAME = frozenset(("table cell",))
"""Those without a name are the row and the picture in it, around and beside the one that has one."""
_STATED = ("click", "type_text")
"""Steps of a way that are one action of the unified space: with keys alone there is none."""
_KINDS = (*KINDS, PREDICT)
_PREDICTED = ("arithmetic", "root", "rename", "collect", "enter", "move", "total", "discard")
_ASKED_ABOUT = ("arithmetic", "append", "enter", "move", "root", "delete", "total", "tidy")
"""Kinds of `desktop`: calculator, terminal, editor, spreadsheet, file manager."""


class DesktopQuestions:
    """See `Screens`; one display of one sandbox."""

    def __init__(self, backend: SandboxBackend, size: tuple[int, int]) -> None:
        self._backend, self._size = backend, size
        self._sandbox: Sandbox | None = None
        self._screen: Screen | None = None

    async def ask(self, task: Task) -> Question:
        """The question of a task."""
        known: Any = task.metadata
        screen, sandbox = await self._opened()
        await screen.clear()
        for name, text in known["files"].items():
            await sandbox.write(f"{sandbox.world.workdir}/{name}", text.encode())
        await screen.launch(known["program"])
        for step in known["way"][: known["acts"]]:
            await self._do(screen, step)
        view = await screen.view(tree=True, image=True)
        if view.image is None:
            raise EnvironmentFailure(f"task {task.id!r}: the display gives no picture")
        act = _act(known["way"], known["acts"], view) if known["kind"] == PREDICT else None
        shown = Shown(view.image, view.size, _marks(view), act)
        return posed(task, shown, known["goal"])

    async def _opened(self) -> tuple[Screen, Sandbox]:
        if self._screen is None or self._sandbox is None:
            self._sandbox = await self._backend.create(
                World(workdir="/work", resources=Resources(memory_bytes=2 << 30))
            )
            self._screen = await open_screen(self._sandbox, width=self._size[0], height=self._size[1])
        return self._screen, self._sandbox

    async def _do(self, screen: Screen, step: list[str]) -> None:
        """One step of a way, its elements looked up in what is shown."""
        name, *given = step
        view = await screen.view()
        spec = next(spec for spec in SCREEN_TOOLS if spec.name == name)
        properties: Any = spec.parameters["properties"]
        values = [_meant(view, one).ref if one.startswith("@") else one for one in given]
        action = screen_action(ToolCall(name=name, arguments=dict(zip(properties, values, strict=False))))
        if isinstance(action, ParseError):
            raise EnvironmentFailure(f"the expert's step {step} is no action: {action.message}")
        if (acted := await screen.act(action)).fault:
            raise EnvironmentFailure(f"the expert's step {step} cannot be done: {acted.fault}")

    async def close(self) -> None:
        """End display and sandbox."""
        sandbox, self._sandbox, self._screen = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()


def _meant(view: ScreenView, wanted: str) -> Node:
    """The element of ``@role:name``; the name may be empty. Raises EnvironmentFailure where it is not shown."""
    role, _, name = wanted[1:].partition(":")
    found = view.find(role, name or None)
    if not found:
        raise EnvironmentFailure(f"the expert's {wanted} is not on the screen")
    return found[0]


def _marks(view: ScreenView) -> tuple[Mark, ...]:
    """What may be asked for."""
    found = []
    for node in view.tree or ():
        if node.role in _ASKED and (node.name or node.role not in _ASKED_BY_NAME):
            box = _box(node, view)
            if box is not None:
                found.append(Mark(node.role, node.name, box))
    return tuple(found)


def _box(node: Node, view: ScreenView) -> tuple[float, float, float, float] | None:
    box = node.box
    return clipped((float(box.x), float(box.y), float(box.x + box.width), float(box.y + box.height)), view.size)


def _act(way: list[list[str]], count: int, view: ScreenView) -> Truth:
    """What the expert does next: a click in a box, a text, or no more."""
    if count >= len(way):
        return Truth("complete")
    name, given = way[count][0], way[count][1]
    if name == "type_text":
        return Truth("type", text=given)
    box = _box(_meant(view, given), view)
    if box is None:
        raise EnvironmentFailure(f"the expert's {given} is out of sight")
    return Truth("click", box)


def desktop_grounding_tasks(count: int | None = 800, *, kind: str | None = None, seed: int = 0) -> TaskSet:
    """`count` tasks (None: without end) over all kinds in turn; every fifth is held out.

    kind: named, ordinal, relation or predict. Raises ValueError for another one, or a count below one.
    """
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_KINDS)}, or None for all in turn")
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")
    kinds = [kind] if kind else list(_KINDS)
    shown = {one: desktop_tasks(None, kind=one, seed=seed) for one in {*_PREDICTED, *_ASKED_ABOUT}}

    def make(index: int) -> Task:
        way = kinds[index % len(kinds)]
        among = _PREDICTED if way == PREDICT else _ASKED_ABOUT
        problem = shown[among[(index // len(kinds)) % len(among)]][index]
        known: Any = problem.metadata
        most = next((at for at, step in enumerate(known["way"]) if step[0] not in _STATED), len(known["way"]))
        ends = most == len(known["way"]) or way != PREDICT  # else what comes then is no such action
        acts = int(draws(seed, index, 0xDE5D).integers(most + ends))
        return Task(
            id=f"desktop-grounding/{seed}/{known['kind']}/{way}/{index}",
            prompt=f"A question about a screenshot of {known['program'][0]}.",
            split=problem.split,
            seed=index,
            metadata={
                "kind": way, "difficulty": 1 + _KINDS.index(way), "source": "desktop", "goal": problem.prompt,
                "program": known["program"], "files": known["files"], "way": known["way"], "acts": acts,
            },
        )  # fmt: skip

    return TaskSet.lazy(make, length=count)


def _make(
    task: Task, *, backend: SandboxBackend, rules: str = "gui-r1", width: int = 800, height: int = 600
) -> Grounding:
    return Grounding(task, rules=rules, screens=DesktopQuestions(backend, (width, height)))


SPEC = EnvSpec(
    name="desktop-grounding",
    tasks=desktop_grounding_tasks,
    make=_make,
    description="Screenshots of real applications: where to click, what comes next; by GUI-R1's or UI-R1's rules.",
    sandbox=True,
)
