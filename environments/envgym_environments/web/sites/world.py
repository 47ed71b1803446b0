"""`web-sites`: one of six small web applications, a page of a browser on it, and something to do or to find out there.

They answer in this process (`sites.episode`), or each as a program in a sandbox of its own (`web.program`), where the
server is what `envgym sites serve` is. What is asked, seen and graded is the same.
"""

from functools import cache
from pathlib import Path

import envgym
import envgym_environments
from envgym.sandbox import SandboxBackend
from envgym.task import Task, Tree, World
from envgym_environments.web.database import Database
from envgym_environments.web.looks import Looks, See
from envgym_environments.web.play import Question, WebPlay
from envgym_environments.web.program import Program, WebApp
from envgym_environments.web.service import ANSWER_S
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.episode import Served
from envgym_environments.web.sites.goals import Key, build, drawn, grade, task_key

__all__ = ["web_sites", "web_sites_sandboxed"]

_SOURCES = "/srv/envgym"
_DATABASE = "site.db"


def web_sites(  # one parameter per option
    task: Task,
    *,
    browser: str = "chromium",
    diffs: bool = False,
    see: See = "tree",
    marks: bool = False,
    answer_s: float = ANSWER_S,
) -> WebPlay:
    """The environment of a task of `web_sites_tasks`.

    browser, diffs, see, marks: see `Looks`. answer_s: how long the application may take to answer a request; later is
    the world's fault, and no other episode's matter.
    """
    if not answer_s > 0:
        raise ValueError(f"answer_s is {answer_s}; it must be positive")
    looks = Looks(browser, diffs, see, marks)
    key = task_key(task, SITES)
    return WebPlay(
        task, _question(key, task), lambda: Served(key.site, build(key), answer_s=answer_s, quiet=True), looks
    )


def web_sites_sandboxed(  # noqa: PLR0913  # one parameter per option
    task: Task,
    *,
    backend: SandboxBackend,
    browser: str = "chromium",
    diffs: bool = False,
    see: See = "tree",
    marks: bool = False,
    answer_s: float = ANSWER_S,
    ahead: int = 0,
) -> WebPlay:
    """As `web_sites`, with the site's server as a program in a sandbox. ahead: see `Program`."""
    looks = Looks(browser, diffs, see, marks)
    key = task_key(task, SITES)
    serve = ("serve", key.site.name, "--database", _DATABASE)
    app = WebApp(key.site.name, (*_COMMAND, *serve), _DATABASE, answer_s=answer_s)
    world = _world(key)
    return WebPlay(task, _question(key, task), lambda: Program(app, world, backend, ahead=ahead), looks)


_COMMAND = ("python3", "-m", "envgym_environments.web.sites.cli")


@cache
def _world(key: Key) -> World:
    """This project's sources and the database of a site."""
    places = {package.__name__: Path(package.__path__[0]) for package in (envgym, envgym_environments)}
    written = f"build {key.site.name} --content {key.content} --out {_DATABASE}"
    return World(
        trees=tuple(Tree(source=str(path), target=f"{_SOURCES}/{name}") for name, path in places.items()),
        env={"PYTHONPATH": _SOURCES},
        setup=(f"{' '.join(_COMMAND)} {written}",),
    )


def _question(key: Key, task: Task) -> Question:
    goal = drawn(key, str(task.metadata["kind"]), task.seed)

    def judge(database: Database, url: str, answer: str | float | None) -> dict[str, float]:
        return grade(key.site, goal, database, url=url, answer=answer)

    return Question(goal.prompt, judge, goal.answer is not None, goal.files, "Today is as it says.")
