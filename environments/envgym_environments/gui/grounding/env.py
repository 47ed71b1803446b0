"""`grounding`: a screenshot and a question of where to click, or a goal and the question of what comes next.

One turn: the answer is a text (see `answers`), and ends the episode with the channels of a paper's rules
(`rewards`). The screenshot is `Step.images`; what is right is in `Step.info`, where only graders and experts look.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, ImagePart, Message, TextPart
from envgym.registry import EnvSpec, find
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.gui.grounding.answers import ACTIONS, written, written_box
from envgym_environments.gui.grounding.asking import EVERY, KINDS, asked, every
from envgym_environments.gui.grounding.folders import entry_of, folder_tasks, media_type
from envgym_environments.gui.grounding.rewards import BOXED, RULES, SEVERAL, Truth
from envgym_environments.gui.grounding.web import PAGES, Shown, WebScreens
from envgym_environments.played import bounded, clean, draws
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.goals import drawn, task_key
from envgym_environments.web.sites.tasks import web_sites_tasks

__all__ = [
    "PREDICT",
    "SPEC",
    "Grounding",
    "Question",
    "Screens",
    "WebQuestions",
    "expert",
    "grounding_tasks",
    "posed",
]

PREDICT = "predict"
"""The kind of task that asks for an expert's next action."""
_MANY = 1200
_SOURCES = ("miniwob", "site")
_KINDS = (*KINDS, PREDICT)
"""Those that are drawn in turn; EVERY, which has rules of its own, has to be asked for."""
_PARTS = ("type", "point", "text")
"""Channels that an answer which is right has in full, as far as the rules have them."""

_HOW = (
    "Think first, then answer with one action, in exactly this form:\n"
    "<think>why</think><answer>[{'action': 'click', 'point': [x, y], 'input_text': 'no input text'}]</answer>\n"
    f"The actions are {', '.join(ACTIONS)}. 'point' is in pixels from the top left corner where you click, else "
    "[-100, -100]; 'input_text' is what you type, select or open, or where you scroll (up, down, left, right)."
)
_HOW_BOXED = (
    "Do not click: tell the box of what is to be clicked. Think first, then answer in exactly this form, in pixels "
    "from the top left corner:\n<think>why</think><answer>[{'bbox_2d': [left, top, right, bottom]}]</answer>"
)
_HOW_SEVERAL = (
    "Do not click: tell the box of each. Think first, then answer in exactly this form, in pixels from the top "
    "left corner:\n<think>why</think><answer>[{'bbox_2d': [left, top, right, bottom]}, ...]</answer>"
)


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one screenshot, and what is right."""

    text: str
    image: bytes
    truth: Truth


class Screens(Protocol):
    """Where questions come from."""

    async def ask(self, task: Task) -> Question:
        """The question of a task; the same every time. Raises EnvironmentFailure where a screen cannot be had."""
        ...

    async def close(self) -> None:
        """Release what shows the screens; idempotent."""
        ...


def posed(task: Task, shown: Shown, goal: str) -> Question:
    """The question of a task about what is shown. Raises EnvironmentFailure where there is nothing to ask for."""
    size = f"The screenshot is {shown.size[0]} pixels wide and {shown.size[1]} high."
    if task.metadata["kind"] == EVERY:
        several = every(shown.marks, draws(task.seed, 0xE4E8))
        if several is None:
            raise EnvironmentFailure(f"task {task.id!r}: its screen shows no element that could be asked for")
        return Question(f"{size} {several[0]}", shown.image, Truth("click", boxes=several[1]))
    if task.metadata["kind"] == PREDICT:
        if shown.act is None:
            raise EnvironmentFailure(f"task {task.id!r}: nothing is known of what comes next on this screen")
        return Question(f"{size} What is the next action towards this goal?\n{goal}", shown.image, shown.act)
    found = asked(shown.marks, str(task.metadata["kind"]), draws(task.seed, 0x6207))
    if found is None:
        raise EnvironmentFailure(f"task {task.id!r}: its screen shows no element that could be asked for")
    return Question(f"{size} {found.text}", shown.image, Truth("click", found.mark.box))


class WebQuestions:
    """Questions about pages of MiniWoB++ and of self-hosted sites, and about pictures of a folder."""

    def __init__(self, browser: str = "chromium") -> None:
        self._screens = WebScreens(browser)

    async def ask(self, task: Task) -> Question:
        """See `Screens`."""
        known: Any = task.metadata
        if known["source"] == "folder":
            entry = entry_of(known)
            return Question(entry.instruction, entry.content(), entry.truth)
        if known["source"] == "miniwob":
            return posed(task, await self._screens.miniwob(known["page"], f"{known['page']}/{task.seed}"), "")
        key = task_key(task, SITES)
        goal = drawn(key, known["goal"], known["number"])
        return posed(task, await self._screens.site(key, goal, known["acts"]), goal.prompt)

    async def close(self) -> None:
        """End the browser's share."""
        await self._screens.close()


class Grounding:
    """Implements `envgym.env.Playable`.

    rules: "gui-r1" (reward 0 to 1), "gui-r1-paper" (0 to 3), "ui-r1" (0 to 3), or "vlm-r1" (0 to 2), whose answer
    is a box, and for tasks of the kind `EVERY` "vlm-r1-detection" (0 to 2), with a box for each; see `rewards`.
    browser: which registered kind shows the pages.
    """

    tools = ()
    uses_seed = False  # what is asked is drawn with the task

    def __init__(
        self, task: Task, *, rules: str = "gui-r1", browser: str = "chromium", screens: Screens | None = None
    ) -> None:
        if rules not in RULES:
            raise ValueError(f"rules is {rules!r}; it must be one of {', '.join(RULES)}")
        boxless = task.metadata["kind"] == PREDICT or ("box" in task.metadata and task.metadata["box"] is None)
        if rules in BOXED and boxless:
            raise ValueError(
                f"rules {rules!r} are about boxes, and task {task.id!r} asks for an action without one"
            )
        if (rules in SEVERAL) != (task.metadata["kind"] == EVERY):
            raise ValueError(
                f"rules {rules!r} are not for task {task.id!r} of kind {task.metadata['kind']!r}: kind {EVERY!r} "
                f"asks for several elements, and has the rules {', '.join(SEVERAL)}"
            )
        find("browsers", browser)  # an unknown one is refused before anything is played
        self.task, self._rules, self._boxed = task, RULES[rules], rules in BOXED
        self._screens = screens or WebQuestions(browser)
        self._truth: Truth | None = None

    async def reset(self, *, seed: int) -> Step:
        """The screenshot and the question."""
        question = await self._screens.ask(self.task)
        self._truth = question.truth
        name = hashlib.sha256(question.image).hexdigest()
        kind = media_type(question.image) or "image/png"
        how = _HOW_SEVERAL if question.truth.boxes else _HOW_BOXED if self._boxed else _HOW
        content = (TextPart(text=f"{question.text}\n\n{how}"), ImagePart(sha256=name, media_type=kind))
        return Step(
            (Message(role="user", content=content),), state_key=f"{self.task.id}/{name[:16]}",
            info={"truth": asdict(question.truth), "boxed": self._boxed}, images={name: question.image},
        )  # fmt: skip

    async def step(self, action: Action) -> Step:
        """Grade the answer; the episode ends."""
        truth, self._truth = self._truth, None
        if truth is None:
            raise RuntimeError(f"step outside an episode in task {self.task.id!r}: call reset(seed=...) first")
        said = bounded(clean(action.text))
        channels = self._rules(said, truth)
        right = channels["accuracy"] if self._boxed else all(channels.get(part, 1.0) for part in _PARTS)
        return Step(
            (Message(role="user", content="The end."),), channels["reward"], channels,
            StopReason.GOAL if right else StopReason.SUBMITTED, f"{self.task.id}/end", submission=said,
        )  # fmt: skip

    async def close(self) -> None:
        """End what shows the screens."""
        self._truth = None
        await self._screens.close()


def grounding_tasks(
    count: int | None = _MANY, *, kind: str | None = None, source: str | None = None, path: str = "", seed: int = 0
) -> TaskSet:
    """`count` tasks (None: without end) over all kinds and sources in turn; every fifth content is held out.

    kind: named, ordinal or relation (which element is meant, from easy to hard), predict (what an expert does
    next), or every (all elements of a role; only where asked for, with the rules vlm-r1-detection). source: miniwob
    or site; predict is of sites. path: a folder or file of foreign tasks instead, see
    `envgym_environments.gui.grounding.folders`; it takes no other option.
    Raises ValueError for another kind or source, a path that cannot be read, or a count below one.
    """
    if path:
        if kind is not None or source is not None or seed or count != _MANY:
            raise ValueError("path brings its own tasks, all of them: give it without count, kind, source and seed")
        return folder_tasks(path)
    if kind is not None and kind not in (*_KINDS, EVERY):
        raise ValueError(
            f"kind is {kind!r}; it must be one of {', '.join(_KINDS)} or {EVERY}, or None for all but that in turn"
        )
    if source is not None and source not in _SOURCES:
        raise ValueError(f"source is {source!r}; it must be one of {', '.join(_SOURCES)}, or None for both in turn")
    if kind == PREDICT and source == "miniwob":
        raise ValueError("kind 'predict' follows experts through sites; source is 'miniwob': give 'site' or None")
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")
    kinds = [one for one in ([kind] if kind else _KINDS) if not (one == PREDICT and source == "miniwob")]
    sources = [source] if source else _SOURCES
    walks = web_sites_tasks(None, seed=seed)

    def make(index: int) -> Task:
        way = kinds[index % len(kinds)]
        turn = index // len(kinds)
        if way == PREDICT or sources[turn % len(sources)] == "site":
            return _on_a_path(walks[index], way, seed)
        return _on_a_page(index, turn // len(sources), way, seed)

    return TaskSet.lazy(make, length=count)


def _level(way: str) -> int:
    return 1 + (*_KINDS, EVERY).index(way)


def _on_a_page(index: int, turn: int, way: str, seed: int) -> Task:
    number, page = divmod(turn, len(PAGES))
    return Task(
        id=f"grounding/{seed}/miniwob/{PAGES[page]}/{way}/{index}",
        prompt=f"A question about a screenshot of the page {PAGES[page]}.",
        split="heldout" if number % 5 == 4 else "train",
        seed=seed * 1_000_003 + index,
        metadata={"kind": way, "difficulty": _level(way), "source": "miniwob", "page": PAGES[page]},
    )


def _on_a_path(walk: Task, way: str, seed: int) -> Task:
    """Somewhere on the way of a task of `web-sites`; where that ends with an answer, not at its end."""
    known = walk.metadata
    goal = drawn(task_key(walk, SITES), str(known["kind"]), walk.seed)
    # the unified space has no upload, so nobody is asked for one
    stops = [at for at in range(len(goal.path) + (goal.answer is None))
             if way != PREDICT or at == len(goal.path) or goal.path[at].what != "upload"]  # fmt: skip
    acts = stops[int(draws(seed, walk.seed, 0x57E9).integers(len(stops)))]
    return Task(
        id=f"grounding/{seed}/site/{known['site']}/{way}/{walk.seed}",
        prompt=f"A question about a screenshot of the {known['site']}.",
        split=walk.split,
        seed=walk.seed,
        metadata={
            "kind": way, "difficulty": _level(way), "source": "site", "site": known["site"], "goal": known["kind"],
            "content": known["content"], "number": walk.seed, "acts": acts,
        },
    )  # fmt: skip


def _decide(task: Task, seen: Sequence[Step]) -> str:
    """The answer that earns everything, from what only graders and experts see."""
    known: Any = seen[-1].info["truth"]
    box, point = known["box"], known["point"]
    truth = Truth(known["action"], box and tuple(box), point and tuple(point), known["text"])
    if known["boxes"]:
        return written_box(*map(tuple, known["boxes"]), thought="These are all.")
    if seen[-1].info.get("boxed") and truth.box is not None:
        return written_box(truth.box, thought="These are its edges.")
    return written(truth.answer, thought="It is in the middle of that element.")


expert = expert_of(_decide)


def _make(task: Task, *, rules: str = "gui-r1", browser: str = "chromium") -> Grounding:
    return Grounding(task, rules=rules, browser=browser)


SPEC = EnvSpec(
    name="grounding",
    tasks=grounding_tasks,
    make=_make,
    seeded=True,
    description="Screenshots of web pages or a folder: where to click, what comes next; rules of GUI-R1 and UI-R1.",
)
