"""Grounding on rendered screens: the contract, what experts and idlers earn, and boxes that lead where they say."""

import asyncio
import os

import pytest
from envgym_environments.gui.grounding.desktop import DesktopQuestions, desktop_grounding_tasks
from envgym_environments.gui.grounding.env import expert as answers
from envgym_environments.gui.grounding.env import grounding_tasks
from envgym_environments.gui.grounding.web import PAGES, WebScreens
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.goals import drawn, task_key

from envgym.browsing import open_browser
from envgym.limits import Limits
from envgym.page import PageSpec
from envgym.page_actions import Click, Target
from envgym.registry import make, make_backend
from envgym.screen import Click as ScreenClick
from envgym.testing import check_env, check_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
installed = pytest.mark.skipif(
    not os.path.exists("/usr/bin/Xvfb"), reason="no display here; fix: scripts/setup.sh as root"
)

PATIENT = Limits(turns=1, reset_s=240.0)
"""So that a loaded machine is not taken for a page that hangs."""

HIT = """(() => { hit = null; addEventListener('click', (event) => {
  hit = event.composedPath().filter((one) => one.getBoundingClientRect).map((one) => {
    const box = one.getBoundingClientRect(), labels = [...(one.labels || [])].map((label) => label.innerText);
    return [[box.left, box.top, box.right, box.bottom], [one.innerText, one.value, one.title, one.placeholder,
      one.getAttribute('aria-label'), ...labels].join(' ').replace(/\\s+/g, ' ')]; });
  event.preventDefault(); event.stopImmediatePropagation(); }, {capture: true, once: true}); })()"""
"""What the next click hits, from the innermost outwards: its box, and the words on it. The click itself is lost."""


async def hit_as_named(page, shown):
    """Click the middle of every box of the live page; how many there were."""
    for mark in shown.marks:
        await page.run(HIT)
        acted = await page.act(Click(Target(x=mark.middle[0], y=mark.middle[1])))
        assert acted.outcome.ok, (mark, acted)
        near = [
            words for box, words in await page.run("hit") if box == pytest.approx(mark.box, abs=1.0)
        ]  # a box that is cut at the screen's edge is not asked of here
        assert any(" ".join(mark.name.split()) in words for words in near), (mark, await page.run("hit"))
    return len(shown.marks)


def test_web_screens_are_solved_by_the_expert_alone_and_hold_the_contract():
    async def run():
        async with open_browser() as browser:
            await browser.page(PageSpec({}))  # so that each environment finds the browser started
            tasks = grounding_tasks(8)
            assert {task.metadata["source"] for task in tasks} == {"miniwob", "site"}
            assert {task.metadata["kind"] for task in tasks} == {"named", "ordinal", "relation", "predict"}
            await check_task(tasks, lambda task: make("grounding", task), answers, seeds=(0,), limits=PATIENT)
            await check_env(lambda: make("grounding", tasks[1]), turns=2, deadline_s=240)

    asyncio.run(run())


def test_a_click_in_the_middle_of_a_box_hits_what_the_box_is_of():
    async def run():
        screens, count = WebScreens(), 0
        for name in PAGES[::4]:
            shown = await screens.miniwob(name, f"{name}/1")
            count += await hit_as_named(screens._page, shown)
        for task in grounding_tasks(8, kind="named", source="site").take(2):
            key = task_key(task, SITES)
            goal = drawn(key, task.metadata["goal"], task.metadata["number"])
            shown = await screens.site(key, goal, task.metadata["acts"])
            count += await hit_as_named(screens._page, shown)
        await screens.close()
        assert count > 20

    asyncio.run(run())


@installed
@pytest.mark.namespaces
def test_desktop_screens_are_solved_by_the_expert_alone_and_hold_the_contract():
    async def run():
        async with make_backend("namespace") as backend:
            tasks = desktop_grounding_tasks(4)
            await check_task(
                tasks, lambda task: make("desktop-grounding", task, backend=backend), answers, seeds=(0,)
            )
            await check_env(lambda: make("desktop-grounding", tasks[0], backend=backend), turns=2, deadline_s=240)
            await presses_what_it_names(DesktopQuestions(backend, (800, 600)))

    asyncio.run(run())


@installed
@pytest.mark.namespaces
def test_spreadsheet_and_file_manager_are_asked_about_and_a_click_in_a_box_is_on_what_it_is_of():
    """After a click in the middle of the right box, it is the element of that name whose state is another one."""

    async def run():
        async with make_backend("namespace") as backend:
            questions, hit = DesktopQuestions(backend, (800, 600)), []
            for task in desktop_grounding_tasks(96, kind="named"):
                program = task.metadata["program"][0]
                if program not in ("gnumeric", "thunar") or sum(one == program for one, _ in hit) >= 4:
                    continue
                question = await questions.ask(task)
                left, top, right, bottom = question.truth.box
                said = question.text.rpartition("Click the ")[2]
                role, _, name = said.partition(" '")
                name = name.removesuffix("'.")
                if role in ("push button", "table column header"):  # what these do is their program's matter
                    continue
                before = await questions._screen.view(tree=True)
                await questions._screen.act(ScreenClick((int((left + right) / 2), int((top + bottom) / 2))))
                after = await questions._screen.view(tree=True)
                assert changed(before, after) >= {(role, name)}, (task.id, said, changed(before, after))
                hit.append((program, role))
            for kind in ("ordinal", "relation", "predict"):
                for task in list(desktop_grounding_tasks(48, kind=kind))[:16]:
                    if task.metadata["program"][0] in ("gnumeric", "thunar"):
                        assert (await questions.ask(task)).truth.action == "click"
            await questions.close()
            assert {role for program, role in hit if program == "thunar"} >= {"table cell"}
            assert sum(program == "gnumeric" for program, _ in hit) >= 2

    asyncio.run(run())


def changed(before, after):
    """Role and name of what has other states than it had; of a menu that is open, what is in it."""
    was = {node.ref: node.states for node in before.tree}
    return {(node.role, node.name) for node in after.tree if was.get(node.ref) != node.states}


async def presses_what_it_names(questions):
    """A click in the middle of the box that is right for a digit of the calculator writes that digit."""
    pressed = []
    for task in desktop_grounding_tasks(16, kind="named"):
        if task.metadata["program"][0] != "galculator":
            continue
        question = await questions.ask(task)
        left, top, right, bottom = question.truth.box
        name = question.text.rpartition("button ")[2].strip("'.")
        if name.isdigit():
            await questions._screen.act(ScreenClick((int((left + right) / 2), int((top + bottom) / 2))))
            (shown,) = (await questions._screen.view(tree=True)).find("text")
            assert shown.text.endswith(name), (task.id, shown)
            pressed.append(name)
    await questions.close()
    assert len(pressed) >= 3
