"""The tasks of `web-sites`, and an expert that does them as a user does: it looks, clicks, fills in, and sends."""

import re
from collections.abc import Sequence

from envgym.env import Step
from envgym.messages import Action
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym_environments.experts import expert_of
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.goals import Do, Goal, Key, drawn, task_key
from envgym_environments.web.sites.world import web_sites, web_sites_sandboxed

__all__ = ["SANDBOXED", "SPEC", "expert", "web_sites_tasks"]

_PER_CONTENT = 60
"""Tasks that share their contents, ten for each site."""


def web_sites_tasks(
    count: int | None = 1200, *, site: str | None = None, kind: str | None = None, seed: int = 0
) -> TaskSet:
    """`count` drawn tasks (None: without end), over all sites in turn and all their kinds.

    site, kind: only those. The split is by content: every fifth is held out, so that no held-out task is played
    in a database that was trained on. Raises ValueError for an unknown site or kind, or a count below one.
    """
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")
    if site is not None and site not in SITES:
        raise ValueError(f"site is {site!r}; it must be one of {', '.join(SITES)}, or None for all in turn")
    if kind is not None and (site is None or kind not in SITES[site].kinds):
        known = ", ".join(SITES[site].kinds) if site is not None else "those of a site: give site= too"
        raise ValueError(f"kind is {kind!r}; it must be one of {known}")
    return TaskSet.lazy(lambda index: _task(index, site, kind, seed), length=count, split_of=_split_of)


def _split_of(index: int) -> str:
    return "heldout" if index // _PER_CONTENT % 5 == 4 else "train"


def _task(index: int, site: str | None, kind: str | None, seed: int) -> Task:
    names = [site] if site is not None else sorted(SITES)
    chosen = SITES[names[index % len(names)]]
    place = index // _PER_CONTENT
    key = Key(chosen, seed * 1_000_003 + place)
    kinds = [kind] if kind is not None else list(chosen.kinds)
    goal, taken = _first(key, kinds, index // len(names), index)
    return Task(
        id=f"web-sites/{seed}/{chosen.name}/{taken}/{index}",
        prompt=goal.prompt,
        split=_split_of(index),
        seed=index,
        metadata={"site": chosen.name, "kind": taken, "content": key.content},
    )


def _first(key: Key, kinds: Sequence[str], turn: int, seed: int) -> tuple[Goal, str]:
    """The goal of the kind whose turn it is; of the next one, where a content gives no occasion to it."""
    for more in range(len(kinds)):
        kind = kinds[(turn + more) % len(kinds)]
        try:
            return drawn(key, kind, seed), kind
        except LookupError:
            continue
    raise ValueError(f"content {key.content} of {key.site.name!r} gives no occasion to {', '.join(kinds)}")


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The next act of the goal's path; then its answer, or the end."""
    goal = drawn(task_key(task, SITES), str(task.metadata["kind"]), task.seed)
    if len(seen) <= len(goal.path):
        return _act(goal.path[len(seen) - 1], seen[-1].text)
    if goal.answer is None:
        return Action.call("done")
    if isinstance(goal.answer, str):
        return Action.call("answer_text", text=goal.answer)
    return Action.call("answer_number", number=goal.answer)


def _act(do: Do, text: str) -> Action:
    """An act as a call, on what is seen: fields by the ref that stands before their names."""
    if do.what == "click":
        return Action.call("click_named", name=do.name, role=do.role)
    shown = re.escape(" ".join(do.name.split()).replace('"', '\\"'))
    found = re.search(rf'\[(e\d+)\] (?:{do.role}) "{shown}"', text)
    ref = found[1] if found else "e0"
    if do.what == "select":
        return Action.call("select", ref=ref, options=[do.value])
    if do.what == "upload":
        return Action.call("upload", ref=ref, file=do.value)
    return Action.call("fill", ref=ref, text=do.value)


expert = expert_of(_decide)
"""Reads the goal that a task is drawn from; how it gets there is what a user would do, page by page."""

SPEC = EnvSpec(
    name="web-sites",
    tasks=web_sites_tasks,
    make=web_sites,
    description="Small web applications in a browser (shop, forum, tracker, wiki, mail, booking), graded by state.",
)

SANDBOXED = EnvSpec(
    name="web-sites-sandboxed",
    tasks=web_sites_tasks,
    make=web_sites_sandboxed,
    description="As `web-sites`, with each site's server as a program in a sandbox of its own.",
    sandbox=True,
)
