"""The environment over a page: the expert gets all of it, doing nothing none, and an episode forks at any turn.

Most of it is played in the browser without scripts; what a person would see is played in Chromium.
"""

import asyncio
import io
import re

import pytest
from envgym_environments.gui.grounding.answers import Answer, written
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.tasks import expert, web_sites_tasks
from PIL import Image

from envgym import Action, Message, PageSpec, ToolCall, make, open_browser
from envgym.env import StopReason
from envgym.errors import EnvironmentFailure, ReplayDiverged
from envgym.registry import find, spec
from envgym.testing import check_env

SPEC = spec("web-sites")
KINDS = [(site, kind) for site in SITES for kind in SITES[site].kinds]


def chromium():
    report = find("browsers", "chromium")().report()
    if not report.works:
        pytest.skip(f"no chromium: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")


async def played(env, agent, step, turns=60):
    """The steps until the end, after `step`."""
    steps = [step]
    while steps[-1].stop is None and len(steps) <= turns:
        reply = await agent.act(steps[-1])
        steps.append(await env.step(reply.action))
    return steps


async def solve(task, browser):
    env = make(SPEC, task, browser=browser)
    try:
        return (await played(env, expert(task), await env.reset(seed=0)))[-1]
    finally:
        await env.close()


def one_of(site, kind, split="train"):
    return next(
        task
        for task in web_sites_tasks(site=site, kind=kind)
        if task.split == split and task.metadata["kind"] == kind
    )


@pytest.mark.parametrize("site", SITES)
def test_the_expert_gets_it_all(site):
    for kind in list(SITES[site].kinds)[:2]:
        step = asyncio.run(solve(one_of(site, kind), "plain"))
        assert (step.reward, step.stop) == (1.0, StopReason.GOAL), (kind, step.channels, step.text)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("site", "kind"), KINDS)
def test_the_expert_gets_it_all_whatever_is_asked(site, kind):
    step = asyncio.run(fork_everywhere(one_of(site, kind), "plain"))
    assert step.reward == 1.0, (step.channels, step.text)
    step = asyncio.run(solve(one_of(site, kind, "heldout"), "plain"))
    assert step.reward == 1.0, (step.channels, step.text)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", SITES)
def test_the_expert_gets_it_all_in_chromium(site):
    chromium()

    async def all_kinds():
        async with open_browser("chromium") as browser:
            await browser.page(PageSpec({}))  # while there is a page, the browser of this loop stays
            return [(kind, await solve(one_of(site, kind), "chromium")) for kind in SITES[site].kinds]

    for kind, step in asyncio.run(all_kinds()):
        assert step.reward == 1.0, (kind, step.channels, step.text)


@pytest.mark.parametrize("site", SITES)
def test_doing_nothing_gets_nothing(site):
    async def give_up(task):
        env = make(SPEC, task, browser="plain")
        await env.reset(seed=0)
        step = await env.step(Action.call("done"))
        await env.close()
        return step

    for kind in list(SITES[site].kinds)[-2:]:
        step = asyncio.run(give_up(one_of(site, kind)))
        assert (step.reward, step.stop) == (0.0, StopReason.SUBMITTED)


def test_an_unknown_browser_is_refused_before_anything_is_played():
    with pytest.raises(ValueError, match="unknown browser 'netscape'; known: chromium, plain"):
        make("web-sites", browser="netscape")
    for options, said in [
        ({"see": "image", "browser": "plain"}, "browser 'plain' draws no pages"),
        ({"see": "all"}, "see is 'all'; it must be one of tree, image, both"),
        ({"marks": True}, "marks are drawn into pictures"),
    ]:
        with pytest.raises(ValueError, match=said):
            make("web-sites", **options)


def test_an_answer_is_a_typed_call_and_words_are_not():
    async def say():
        task = one_of("shop", "count")
        env = make(SPEC, task, browser="plain")
        first = await env.reset(seed=0)
        steps = [first, await env.step(Action.say("The answer is 7."))]
        steps.append(await env.step(Action.call("answer_number", number="many")))
        steps.append(await env.step(Action.call("answer_number", number=-1)))
        await env.reset(seed=0)
        steps.append(await env.step(Action.say(written(Answer("press_back")))))
        steps.append(await env.step(Action.say(written(Answer("complete", text="7")))))
        await env.close()
        return steps

    steps = asyncio.run(say())
    assert "error: " in steps[1].text
    assert "error: " in steps[2].text
    assert (steps[3].reward, steps[3].channels["answered"], steps[3].channels["state"]) == (0.0, 0.0, 1.0)
    assert "no page before" in steps[4].text, "an action of the unified space is a call, too"
    assert (steps[5].stop, steps[5].submission) == (StopReason.SUBMITTED, "7")


def test_the_contract_is_kept_without_scripts():
    task = one_of("tracker", "close")
    report = asyncio.run(check_env(lambda: make(SPEC, task, browser="plain"), turns=6, deadline_s=60))
    assert "forks" in report.checked


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_contract_is_kept_in_chromium():
    chromium()
    task = one_of("shop", "buy")
    asyncio.run(check_env(lambda: make(SPEC, task, browser="chromium"), turns=5, deadline_s=120))
    asyncio.run(check_env(lambda: make(SPEC, task, see="both"), turns=3, deadline_s=120))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pictures_are_shown_where_they_are_asked_for_with_their_bytes_also_in_a_fork():
    chromium()

    async def walk(**options):
        env = make(SPEC, one_of("shop", "buy"), **options)
        steps = [await env.reset(seed=0)]
        for calls in ([("goto", {"url": "http://shop.test/products"}), ("back", {})], [("fly", {})]):
            said = tuple(ToolCall(name=name, arguments=given, id=name) for name, given in calls)
            steps.append(await env.step(Action(message=Message(role="assistant", tool_calls=said))))
        snapshot = await env.snapshot()
        fork = make(SPEC, env.task, **options)
        steps.append(await fork.reset(seed=0, start=snapshot))
        await fork.close()
        await env.close()
        return steps

    async def work():
        for step in await walk():
            assert not step.images
            assert all(isinstance(message.content, str) for message in step.observation)
        for options in ({"see": "image"}, {"see": "both", "marks": True}):
            first, moved, wrong, forked = await walk(**options)
            for step in (first, moved, wrong, forked):
                (text, shown) = step.observation[-1].content
                assert list(step.images) == [shown.sha256]
                assert Image.open(io.BytesIO(step.images[shown.sha256])).size == (1024, 768)
                assert ("[e1]" in text.text) is (options["see"] == "both" and step not in (wrong, forked))
            assert isinstance(moved.observation[0].content, str), "one picture a step, of what is there in the end"
            assert moved.images == first.images, "back again"
            assert wrong.images == moved.images, "a mistake changes nothing, and the page is still seen"
            assert forked.images == wrong.images

    asyncio.run(work())


async def fork_everywhere(task, browser):
    """At each turn of the expert's way a fork goes on to the end, and is what the original becomes."""
    env = make(SPEC, task, browser=browser)
    try:
        agent, step = expert(task), await env.reset(seed=0)
        forks = []
        while step.stop is None:
            forks.append((await env.fork(), agent.fork(seed=0), step))
            step = await env.step((await agent.act(step)).action)
        for fork, again, then in forks:
            last = (await played(fork, again, then))[-1]
            assert (last.state_key, last.channels, last.text) == (step.state_key, step.channels, step.text)
            await fork.close()
        return step
    finally:
        await env.close()


@pytest.mark.parametrize(("site", "kind"), [("shop", "buy-best"), ("mail", "move")])
def test_a_fork_at_any_turn_has_the_originals_future(site, kind):
    assert asyncio.run(fork_everywhere(one_of(site, kind), "plain")).reward == 1.0


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("site", "kind"), [("shop", "review"), ("tracker", "close-many"), ("booking", "change")])
def test_a_fork_in_chromium_at_any_turn_has_the_originals_future(site, kind):
    chromium()
    assert asyncio.run(fork_everywhere(one_of(site, kind), "chromium")).reward == 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_second_tab_and_what_scripts_did_are_there_in_a_fork():
    chromium()

    async def tabs():
        env = make(SPEC, one_of("shop", "buy"), browser="chromium")
        try:
            await env.reset(seed=0)
            (number,) = env.served.database.connection.execute("SELECT id FROM product WHERE stock > 4").fetchone()
            await env.step(Action.call("goto", url=f"http://shop.test/products/{number}"))
            step = await env.step(Action.call("click_named", name="Quantity: one more", role="button"))
            more = re.search(r'spinbutton "Quantity" = "2"', step.text)
            ref = re.search(r'\[(e\d+)\] link "Orders"', step.text)[1]
            step = await env.step(Action.call("click", ref=ref, button="middle"))
            fork = await env.fork()
            acts = [Action.call("click_named", name="Add to cart"), Action.call("back")]
            seen = [[(await one.step(act)).text for act in acts] for one in (env, fork)]
            await fork.close()
            return more, step, seen
        finally:
            await env.close()

    more, step, seen = asyncio.run(tabs())
    assert more, "the buttons beside a number work"
    assert "tab 1" in step.text
    assert seen[0] == seen[1]


async def at_once(browser):
    tasks = [
        one_of(site, kind)
        for site in ("shop", "forum")
        for kind in ("buy", "review", "reply", "start")
        if kind in SITES[site].kinds
    ]
    tasks += tasks[:2]  # twice the same task: what one does, the other must not see
    return tasks, await asyncio.gather(*(solve(task, browser) for task in tasks))


def test_episodes_at_once_do_not_see_each_other():
    tasks, steps = asyncio.run(at_once("plain"))
    assert [step.reward for step in steps] == [1.0] * len(tasks)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_episodes_at_once_in_chromium_do_not_see_each_other():
    chromium()
    tasks, steps = asyncio.run(at_once("chromium"))
    assert [step.reward for step in steps] == [1.0] * len(tasks)


def test_a_reset_brings_the_very_bytes_back_and_the_first_page():
    async def twice():
        env = make(SPEC, one_of("wiki", "write"), browser="plain")
        first = await env.reset(seed=0)
        await played(env, expert(env.task), first)
        assert env.served.database.content() != env.served.database.pristine
        again = await env.reset(seed=0)
        assert env.served.database.content() == env.served.database.pristine
        await env.close()
        return first, again

    first, again = asyncio.run(twice())
    assert (first.text, first.state_key) == (again.text, again.state_key)


def test_back_goes_to_the_page_before_also_in_a_fork():
    async def travel():
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        start = await env.reset(seed=0)
        none = await env.step(Action.call("back"))
        for name in ("Products", "Orders"):
            await env.step(Action.call("click_named", name=name, role="link"))
        fork = await env.fork()
        seen = [[(await one.step(Action.call("back"))).text for _ in range(2)] for one in (env, fork)]
        await fork.close()
        await env.close()
        return start, none, seen

    start, none, (seen, in_fork) = asyncio.run(travel())
    assert "no page before" in none.text
    assert seen == in_fork
    assert seen[0].startswith("Page: Products")
    assert seen[1] in start.text


def test_a_restored_page_that_is_another_is_never_passed_on():
    async def tampered():
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        await env.reset(seed=0)
        await env.step(Action.call("click_named", name="Products", role="link"))
        snapshot = await env.snapshot()
        other = make(SPEC, env.task, browser="plain")
        try:
            with pytest.raises(ReplayDiverged, match="restored as something else"):
                await other.reset(
                    seed=0, start=snapshot.model_copy(update={"state": snapshot.state.replace("Kettle", "Kettel")})
                )
            with pytest.raises(ValueError, match="needs an exact snapshot of the same task"):
                await other.reset(seed=0, start=snapshot.model_copy(update={"task_id": "another"}))
        finally:
            await other.close()
            await env.close()

    asyncio.run(tampered())


def test_an_application_that_fails_is_the_worlds_fault_and_never_a_reward():
    async def broken():
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        await env.reset(seed=0)
        env.served.database.connection.executescript("PRAGMA query_only = OFF; DROP TABLE review; DROP TABLE wish;")
        try:
            with pytest.raises(EnvironmentFailure, match="the site 'shop' failed: OperationalError"):
                await env.step(Action.call("goto", url="http://shop.test/products/1"))
        finally:
            await env.close()

    asyncio.run(broken())


def test_nothing_outside_the_site_is_reached():
    async def wander():
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        await env.reset(seed=0)
        outside = ("http://example.com/", "http://forum.test/", "file:///etc/passwd", "http://shop.test:81/")
        said = [(await env.step(Action.call("goto", url=url))).text for url in outside]
        await env.close()
        return said

    for text in asyncio.run(wander()):
        assert "error (outside)" in text
        assert "Page: Welcome" in text
