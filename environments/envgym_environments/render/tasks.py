"""The tasks of `render` and `render-plot`, what plays them, and their expert.

`render` is about HTML in a browser, `render-plot` about scripts of matplotlib in a sandbox. A task says what its
text is drawn from, not the text: the expert makes it again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from envgym.env import Step
from envgym.errors import EnvironmentFailure
from envgym.messages import Action
from envgym.registry import EnvSpec, find
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.played import draws, lazy_tasks
from envgym_environments.render.canvas import SIZE
from envgym_environments.render.documents import DOCUMENTS, document
from envgym_environments.render.figure import PlotCanvas
from envgym_environments.render.page import HtmlCanvas
from envgym_environments.render.plots import PLOTS, plot
from envgym_environments.render.world import Render, See, Wanted

__all__ = ["HTML", "PLOT", "expert", "plot_tasks", "render_tasks"]

_END = "Draw it with render, improve it, and call submit at the end."
_HTML_PROMPT = f"Write an HTML document that looks like this picture of {SIZE[0]} x {SIZE[1]} pixels. {_END}"
_PLOT_PROMPT = f"Write a script of matplotlib that draws this figure of {SIZE[0]} x {SIZE[1]} pixels. {_END}"


def render_tasks(
    count: int | None = 500,
    *,
    kind: str | None = None,
    difficulty: int | None = None,
    path: str = "",
    seed: int = 0,
) -> TaskSet:
    """`count` documents to draw (None: without end), every fifth held out.

    kind: one of `DOCUMENTS`; difficulty: 1 to 5; None takes all in turn. path: a folder of your own documents
    (.html) and pictures (.png) instead, in the order of their names. Raises ValueError for what is none of those.
    """
    if path:
        return _own(Path(path))
    return _drawn("render", _HTML_PROMPT, tuple(DOCUMENTS), count, kind, difficulty, seed)


def plot_tasks(
    count: int | None = 400, *, kind: str | None = None, difficulty: int | None = None, seed: int = 0
) -> TaskSet:
    """`count` figures to draw (None: without end), every fifth held out.

    kind: one of `PLOTS`; difficulty: 1 to 5; None takes all in turn. Raises ValueError for what is none of those.
    """
    return _drawn("render-plot", _PLOT_PROMPT, tuple(PLOTS), count, kind, difficulty, seed)


def _drawn(
    name: str,
    prompt: str,
    known: tuple[str, ...],
    count: int | None,
    kind: str | None,
    difficulty: int | None,
    seed: int,
) -> TaskSet:
    if kind is not None and kind not in known:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(known)}, or None for all in turn")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ValueError(f"difficulty is {difficulty}; it must be 1 to 5, or None for all in turn")
    kinds = known if kind is None else (kind,)

    def make(index: int, split: str) -> Task:
        one = kinds[index % len(kinds)]
        level = difficulty or 1 + (index // len(kinds) + index % len(kinds)) % 5
        return Task(
            id=f"{name}/{seed}/{one}/{level}/{index}",
            prompt=prompt,
            split=split,
            seed=index,
            metadata={"kind": one, "difficulty": level, "draw": seed},
        )

    return lazy_tasks(make, count)


def _own(folder: Path) -> TaskSet:
    files = sorted(one for one in folder.glob("*") if one.suffix in (".html", ".png"))
    if not files:
        raise ValueError(f"path is {str(folder)!r}; it must be a folder with .html or .png files")

    def make(index: int, split: str) -> Task:
        file = files[index].resolve()
        return Task(
            id=f"render/{file.name}", prompt=_HTML_PROMPT, split=split, seed=index, metadata={"path": str(file)}
        )

    return lazy_tasks(make, len(files))


def _wanted(task: Task) -> Wanted | None:
    """The text whose picture is wanted, and its parts in words. Raises EnvironmentFailure for a lost file."""
    known = task.metadata
    if (path := known.get("path")) is not None:
        file = Path(str(path))
        try:
            return None if file.suffix == ".png" else (file.read_text(errors="replace"), "")
        except OSError as error:
            raise EnvironmentFailure(f"task {task.id!r}: {path}: {error.strerror}") from error
    level, kind = int(str(known["difficulty"])), str(known["kind"])
    rng = draws(int(str(known["draw"])), task.seed, level, 0x52454E)
    return plot(rng, kind, level) if task.id.startswith("render-plot/") else (document(rng, kind, level), "")


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    wanted = _wanted(task)
    if wanted is None or len(seen) > 1:
        return Action.call("submit")
    return Action.call("render", **{"code" if task.id.startswith("render-plot/") else "html": wanted[0]})


expert = expert_of(_decide)
"""Draws the wanted text itself; of a picture alone nobody knows one, and it submits nothing."""


def _html(task: Task, *, see: See = "parts", tries: int = 6, browser: str = "chromium") -> Render:
    """browser: which registered kind draws."""
    find("browsers", browser)  # an unknown one is refused before anything is played
    return _played(task, lambda: HtmlCanvas(browser), see, tries)


def _plot(task: Task, *, backend: SandboxBackend, see: See = "parts", tries: int = 6) -> Render:
    return _played(task, lambda: PlotCanvas(backend), see, tries)


def _played(task: Task, canvas: Callable[[], HtmlCanvas | PlotCanvas], see: See, tries: int) -> Render:
    return Render(task, draws=canvas, wanted=_wanted(task), see=see, tries=tries)


HTML = EnvSpec(
    name="render",
    tasks=render_tasks,
    make=_html,
    description="Write HTML that looks like a picture: render, compare, improve; graded by pixels.",
)
PLOT = EnvSpec(
    name="render-plot",
    tasks=plot_tasks,
    make=_plot,
    description="Write a script of matplotlib that draws a figure: render, compare, improve; graded by pixels.",
    sandbox=True,
)
