"""`mind2web`: a page as HTML, a goal, what was done so far; which element, and which operation, comes next.

Folders of the shape of Mind2Web (Deng et al. 2023, https://arxiv.org/abs/2306.06070), as TRAD uses it: JSON files
that list tasks ``{annotation_id, website, confirmed_task, action_reprs, actions}``, each action with
``cleaned_html``, ``operation`` (``op``: CLICK, TYPE or SELECT, and ``value``), ``pos_candidates`` and
``neg_candidates``, whose ``backend_node_id`` names an element of that HTML. A step is one task here. Of a page only
the elements among which is chosen are shown, for it is too long for most models; nothing is rendered.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from bs4 import BeautifulSoup, Tag

from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import check_call, parse_call, tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import MOST_TEXT, clean, draws

__all__ = ["OPERATIONS", "SPEC", "Mind2Web", "expert", "mind2web_tasks", "operation_f1", "scores"]

OPERATIONS = ("CLICK", "TYPE", "SELECT")
_CHOSEN = 20
_MOST_OF_AN_ELEMENT = 300
_MOST_OF_THE_PAST = 4_000
_MOST_OF_A_PAST_STEP = 200
_MOST_OF_A_TASK = 2_000
_MOST_CHOSEN = (MOST_TEXT - _MOST_OF_THE_PAST - _MOST_OF_A_TASK - 500) // (_MOST_OF_AN_ELEMENT + 1)
"""500: the website and the words around."""
_COMMENT = re.compile(r"<!--.*?(?:-->|$)", re.DOTALL)
_NUMBERED = re.compile(r"""<[a-zA-Z](?:"[^"]*"|'[^']*'|[^>"'])*?\sbackend_node_id\s*=\s*["']?(\d+)""")
_SHOWN = ("id", "name", "type", "role", "aria_label", "aria-label", "placeholder", "title", "alt", "value", "text")
"""Attributes that tell what an element is; of the cleaned HTML, whose names have underscores, and of others."""


def act(element: str, operation: Literal["CLICK", "TYPE", "SELECT"], value: str = "") -> None:
    """What comes next.

    Args:
        element: The number of the element, as it is shown in brackets.
        operation: What is done to it.
        value: What is typed, or which option is selected; empty for a click.
    """


_ACT = tool_spec(act)


def operation_f1(said: str, wanted: str) -> float:
    """The F1 of two operations' words as sets (section 4.1 of the paper); 1 of two without words, 0 of one without.

    An operation is its name and its value: "TYPE Ada Lovelace".
    """
    one, other = set(said.split()), set(wanted.split())
    if not one or not other:
        return float(one == other)
    return 2 * len(one & other) / (len(one) + len(other))


def scores(element: str, operation: str, right: Sequence[str], wanted: str) -> dict[str, float]:
    """The paper's scores of one step: element (is it a right one), operation (F1), step (both are wholly right)."""
    channels = {"element": float(element in right), "operation": operation_f1(operation, wanted)}
    return channels | {"step": float(channels["element"] == channels["operation"] == 1.0)}


def mind2web_tasks(path: str, *, candidates: int = _CHOSEN, seed: int = 0) -> TaskSet:
    """Every step of a folder (or of one file) of Mind2Web that has a right element; the others are left out.

    candidates: among how many elements is chosen: the right ones and others that are drawn by seed. The split is
    "heldout" for files whose names begin with "test", else "train". Raises ValueError, which names file and task,
    for what cannot be read, a folder without a step, and candidates that are fewer than two or too many to show.
    """
    if candidates < 2:
        raise ValueError(f"candidates is {candidates}; it must be at least 2 elements among which is chosen")
    if candidates > _MOST_CHOSEN:
        raise ValueError(
            f"candidates is {candidates}; it must be at most {_MOST_CHOSEN}: of more an observation "
            f"({MOST_TEXT:,} characters) cannot hold the question"
        )
    place = Path(path).absolute()
    if not place.exists():
        raise ValueError(f"there is nothing at {place}: path names a folder of Mind2Web's files, or one of them")
    files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
    base = place if place.is_dir() else place.parent
    tasks = [task for file in files for task in _tasks(file, base, candidates, seed)]
    if not tasks:
        raise ValueError(f"{place} has no step with a right element in {len(files)} .json files")
    return TaskSet(tasks)


def _tasks(file: Path, base: Path, candidates: int, seed: int) -> Iterator[Task]:
    name = file.relative_to(base).with_suffix("").as_posix()
    split = "heldout" if file.name.startswith("test") else "train"
    for number, raw in enumerate(_file(str(file), _version(file))):
        try:
            if not isinstance(raw, dict):
                raise ValueError(f"it is {type(raw).__name__} and no object")
            for at, asked, others in _steps(raw):
                drawn = _drawn(asked["right"], others, candidates, draws(seed, number, at, 0x32B))
                yield Task(
                    id=f"mind2web/{name}/{raw['annotation_id']}/{at}",
                    prompt=_text(raw, "confirmed_task"),
                    split=split,
                    seed=at,
                    metadata={"file": str(file), "number": number, "step": at, "shown": [*drawn],
                              "website": _text(raw, "website"), **asked},
                )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{file}, task {number}: {said}") from error


def _steps(raw: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any], list[str]]]:
    """The steps with a right element: what is right and what was done before, and the other elements."""
    actions, told = raw["actions"], raw.get("action_reprs", [])
    if not isinstance(actions, list) or not isinstance(told, list):
        raise ValueError("actions and action_reprs must be lists")
    if told and len(told) != len(actions):
        raise ValueError(f"it has {len(actions)} actions and {len(told)} action_reprs")
    for at, action in enumerate(actions):
        try:
            right, wrong = (_nodes(action, name) for name in ("pos_candidates", "neg_candidates"))
            wanted = _operation(action["operation"])
            html = _text(action, "cleaned_html")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"action {at}: {said}") from error
        on = _numbers(html)
        there = [one for one in right if one in on]
        if there:
            before = [str(one) for one in told[:at]]
            others = [one for one in wrong if one in on]
            yield at, {"right": there, "operation": wanted, "before": before}, others


def _numbers(html: str) -> set[str]:
    """The numbers of a page's elements, by what a start tag looks like: a parser takes far longer."""
    return set(_NUMBERED.findall(_COMMENT.sub("", html)))


def _drawn(right: Sequence[str], wrong: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """The right elements and drawn others, up to as many as wanted."""
    kept = [*right[: count - 1]]
    more = min(count - len(kept), len(wrong))
    return kept + [wrong[int(at)] for at in rng.choice(len(wrong), more, replace=False)]


def _version(file: Path) -> int:
    """Tells a file from itself after a change. Raises ValueError where it is not there."""
    try:
        return file.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


@lru_cache(maxsize=2)  # a file has hundreds of megabytes, and its steps are played one after the other
def _file(file: str, version: int) -> list[Any]:
    return _read(Path(file))


def _read(file: Path) -> list[Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error
    return found if isinstance(found, list) else [found]


def _nodes(action: Mapping[str, Any], name: str) -> list[str]:
    """The numbers of candidates, which are objects, or objects as JSON (as one mirror of the data has them)."""
    found = []
    for one in action[name]:
        candidate = json.loads(one) if isinstance(one, str) else one
        number = str(candidate["backend_node_id"])
        if not number.isdecimal():
            raise ValueError(f"{name} has the backend_node_id {number[:40]!r}; it must be a whole number")
        found.append(number)
    return found


def _operation(given: Mapping[str, Any]) -> str:
    name = given["op"]
    if name not in OPERATIONS:
        raise ValueError(f"op is {name!r}; it must be one of {', '.join(OPERATIONS)}")
    value = given.get("value")
    if value is not None and not isinstance(value, str):
        raise ValueError(f"value is {str(value)[:60]!r}; it must be a text, or null")
    return f"{name} {value or ''}".strip() if name != "CLICK" else name


def _text(raw: Mapping[str, Any], name: str) -> str:
    text = raw[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} is {str(text)[:60]!r}; it must be a text")
    return text


class Mind2Web:
    """Implements `envgym.env.Playable`: one call of `act`. Reward: the score "step"."""

    tools: tuple[ToolSpec, ...] = (_ACT,)
    uses_seed = False  # what is shown is drawn with the task

    def __init__(self, task: Task) -> None:
        self.task = task
        self._asked = False

    async def reset(self, *, seed: int) -> Step:
        """Goal, what was done, and the elements among which is chosen, in the order of the page."""
        text = _asked(self.task)
        self._asked = True
        return Step((Message(role="user", content=text),), state_key=self.task.id)

    async def step(self, action: Action) -> Step:
        """Grade the answer; the episode ends. What is no call has no element and no operation."""
        if not self._asked:
            raise RuntimeError(f"step outside an episode in task {self.task.id!r}: call reset(seed=...) first")
        self._asked = False
        known: Any = self.task.metadata
        found = action.calls[0] if action.calls else parse_call(action.text, self.tools)
        call = action.error or (found if isinstance(found, ParseError) else check_call(found, self.tools))
        element = operation = ""
        if isinstance(call, ToolCall):
            given = {name: str(value) for name, value in call.arguments.items()}
            element, name = given["element"].strip().strip("[]"), given["operation"]
            operation = name if name == "CLICK" else f"{name} {given.get('value', '')}"
        channels = scores(element, operation, known["right"], known["operation"])
        said = call.message[:200] if isinstance(call, ParseError) else "The end."
        return Step(
            (Message(role="user", content=said),), channels["step"], channels | {"reward": channels["step"]},
            StopReason.GOAL if channels["step"] else StopReason.SUBMITTED, f"{self.task.id}/end",
            submission=f"{element} {operation}".strip(),
        )  # fmt: skip

    async def close(self) -> None:
        """It holds nothing."""
        self._asked = False


def _asked(task: Task) -> str:
    """The whole question. The past is cut, oldest first; elements and task have bounds of their own."""
    known: Any = task.metadata
    elements = shown_elements(_html(known), set(known["shown"]))
    text = (
        f"Website: {_cut(known['website'], 200)}\nTask: {_cut(task.prompt, _MOST_OF_A_TASK)}\n\n"
        f"Done so far:\n{_past(known['before'])}\n\n"
        f"Elements of the page:\n{elements}\n\nWhich of them is acted on next, and how? Call act."
    )
    return clean(text)


def _past(before: Sequence[str]) -> str:
    """What was done, a line each; of much the last, after a line that says how many are left out."""
    lines, size = [], 0
    for number in range(len(before), 0, -1):
        line = f"{number}. {_cut(before[number - 1], _MOST_OF_A_PAST_STEP)}"
        size += len(line) + 1
        if size > _MOST_OF_THE_PAST:
            lines.append(f"(the first {number} are left out)")
            break
        lines.append(line)
    return "\n".join(reversed(lines)) or "nothing"


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _html(known: Mapping[str, Any]) -> str:
    """The page of a step. Raises EnvironmentFailure where its file is gone or another one."""
    try:
        found = _file(known["file"], _version(Path(known["file"])))[known["number"]]["actions"][known["step"]][
            "cleaned_html"
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise EnvironmentFailure(
            f"{known['file']}, task {known['number']}, action {known['step']} is not there any more: {error}"
        ) from error
    return str(found)


def shown_elements(html: str, numbers: set[str]) -> str:
    """A line for each of the elements, in the order of the page: number, tag, what tells it, its text."""
    lines = []
    for tag in BeautifulSoup(html, "html.parser").find_all(attrs={"backend_node_id": True}):
        assert isinstance(tag, Tag)
        if (number := str(tag["backend_node_id"])) in numbers:
            told = "".join(f' {name}="{str(tag[name])[:80]}"' for name in _SHOWN if tag.get(name))
            text = " ".join(tag.get_text(" ", strip=True).split())
            lines.append(f"[{number}] <{tag.name}{told}> {text}"[:_MOST_OF_AN_ELEMENT].strip())
    return "\n".join(lines)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The right answer, from what only graders and experts see."""
    known: Any = task.metadata
    name, _, value = known["operation"].partition(" ")
    return Action.call("act", element=known["right"][0], operation=name, value=value)


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="mind2web",
    tasks=mind2web_tasks,
    make=Mind2Web,
    description="Which element of a page, and which operation, comes next: folders of Mind2Web's shape.",
    in_process=True,
)
