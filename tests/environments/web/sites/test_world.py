"""The environment over a page: the expert gets all of it, doing nothing none, and an episode forks at any turn.

Most of it is played in the browser without scripts; what a person would see is played in Chromium.
"""

import asyncio
import io
import json
import re
import time
from dataclasses import replace

import pytest
from envgym_environments.gui.grounding.answers import Answer, written
from envgym_environments.web.database import same_answer
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.goals import drawn, task_key
from envgym_environments.web.sites.tasks import expert, web_sites_tasks
from PIL import Image
from werkzeug.test import create_environ

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
@pytest.mark.turns(6)
@pytest.mark.parametrize(("site", "kind"), KINDS)
def test_the_expert_gets_it_all_whatever_is_asked(site, kind):
    step = asyncio.run(fork_everywhere(one_of(site, kind), "plain"))
    assert step.reward == 1.0, (step.channels, step.text)
    step = asyncio.run(solve(one_of(site, kind, "heldout"), "plain"))
    assert step.reward == 1.0, (step.channels, step.text)


async def with_a_fork(task, at):
    """The expert's way in Chromium, and from turn `at` on in a fork, too: the same is there after every step."""
    env, agent = make(SPEC, task), expert(task)
    try:
        step = await env.reset(seed=0)
        for _ in range(at):
            step = await env.step((await agent.act(step)).action)
        fork = await env.fork()
        try:
            while step.stop is None:
                assert await env._page.digest() == await fork._page.digest(), task.id
                action = (await agent.act(step)).action
                step, twin = await env.step(action), await fork.step(action)
                assert (step.text, step.state_key, step.channels) == (twin.text, twin.state_key, twin.channels)
            return step
        finally:
            await fork.close()
    finally:
        await env.close()


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", SITES)
def test_the_expert_gets_it_all_in_chromium_and_so_does_a_fork_of_every_kind(site):
    """Law j for each kind; the turn at which it is forked is another one for each."""
    chromium()

    async def all_kinds():
        async with open_browser("chromium") as browser:
            await browser.page(PageSpec({}))  # while there is a page, the browser of this loop stays
            for number, kind in enumerate(SITES[site].kinds):
                task = one_of(site, kind)
                turns = len(drawn(task_key(task, SITES), kind, task.seed).path)
                step = await with_a_fork(task, (number * 3 + 1) % (turns + 1))
                assert step.reward == 1.0, (kind, step.channels, step.text)

    asyncio.run(all_kinds())


@pytest.mark.parametrize("site", SITES)
def test_doing_nothing_gets_nothing(site):
    async def give_up(task):
        env = make(SPEC, task, browser="plain")
        await env.reset(seed=0)
        step = await env.step(Action.call("done"))
        await env.close()
        return step

    for kind in SITES[site].kinds:
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


def test_only_the_files_that_a_task_gives_are_uploaded():
    async def give():
        env = make(SPEC, one_of("tracker", "attach"), browser="plain")
        first = await env.reset(seed=0)
        there = {spec.name for spec in env.tools}
        steps = [await env.step(Action.call("goto", url="http://tracker.test/issues/1"))]
        field = re.search(r'\[(e\d+)\] button "File"', steps[0].text)[1]
        names = ("/etc/passwd", re.search(r"Your files are ([^,]*), ", first.text)[1])
        steps += [await env.step(Action.call("upload", ref=field, file=name)) for name in names]
        await env.close()
        return there, steps

    there, (_, outside, given) = asyncio.run(give())
    assert there >= {"hover", "drag", "drag_at", "upload", "wait"}
    assert "no file '/etc/passwd' is offered" in outside.text
    assert re.search(r'button "File" = "\w+\.\w+"', given.text)
    assert "upload" not in {spec.name for spec in make(SPEC, one_of("shop", "buy"), browser="plain").tools}


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


def test_every_call_is_answered_also_those_that_are_too_many():
    async def run():
        env = make(SPEC, one_of("shop", "buy"), browser="plain")
        try:
            await env.reset(seed=0)
            said = tuple(ToolCall(id=f"call-{n}", name="goto", arguments={"url": "nowhere"}) for n in range(18))
            said += (ToolCall(id="end", name="done", arguments={}),)
            step = await env.step(Action(message=Message(role="assistant", tool_calls=said)))
            assert [message.tool_call_id for message in step.observation] == [call.id for call in said]
            late = [message.content for message in step.observation[16:]]
            assert late == ["error: not done: at most 16 calls go at once, and these are 19"] * 3
            assert step.stop is None
        finally:
            await env.close()

    asyncio.run(run())


def test_a_question_is_answered_in_the_unified_space_be_it_of_a_number_or_of_a_text():
    async def answered(task, text):
        env = make(SPEC, task, browser="plain")
        await env.reset(seed=0)
        step = await env.step(Action.say(written(Answer("complete", text=text))))
        await env.close()
        return step

    asked = set()
    for site, kind in KINDS:
        task = one_of(site, kind)
        goal = drawn(task_key(task, SITES), kind, task.seed)
        if goal.answer is not None:
            asked.add(type(goal.answer))
            step = asyncio.run(answered(task, str(goal.answer)))
            assert (step.reward, step.stop) == (1.0, StopReason.GOAL), (site, kind, step.channels)
            assert step.submission == str(goal.answer)
            step = asyncio.run(answered(task, f"{goal.answer}1"))
            assert (step.reward, step.channels["answered"]) == (0.0, 0.0)
    assert asked == {int, float, str}


def test_only_an_answer_that_has_no_type_is_also_read_as_a_number():
    async def say(right, *actions):
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        env._question = replace(env._question, judge=lambda *given: {"reward": float(same_answer(given[2], right))})
        rewards = []
        for action in actions:
            await env.reset(seed=0)
            rewards.append((await env.step(action)).reward)
        await env.close()
        return rewards

    loose, text = Action.say(written(Answer("complete", text="7"))), Action.call("answer_text", text="7")
    number = Action.call("answer_number", number=7)
    assert asyncio.run(say(7, loose, text, number)) == [1.0, 0.0, 1.0]
    assert asyncio.run(say("7", loose, text, number)) == [1.0, 1.0, 0.0]
    assert asyncio.run(say("nan", Action.say(written(Answer("complete", text="nan"))), text)) == [1.0, 0.0]


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
        await env.reset(seed=0)
        assert env.served.database.content() == env.served.database.pristine
        return step
    finally:
        await env.close()


@pytest.mark.parametrize(("site", "kind"), [("shop", "buy-best"), ("mail", "move"), ("tracker", "attach")])
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
def test_a_card_of_the_board_says_more_under_the_mouse_and_is_dragged_into_another_column_also_in_a_fork():
    chromium()
    task = one_of("tracker", "plan")
    project, title, milestone = re.fullmatch(
        r"On the board of the project (\w+), move the issue '(.*)' to the milestone (.*)\.", task.prompt
    ).groups()

    def found(step, role, name):
        return re.search(rf'\[(e\d+)\] {role} "{re.escape(name)}"', step.text)[1]

    async def move():
        env = make(SPEC, task)
        await env.reset(seed=0)
        board = await env.step(Action.call("goto", url=f"http://tracker.test/board?project={project}"))
        number = re.search(rf'link "#(\d+) {re.escape(title)}"', board.text)[1]
        link = found(board, "link", f"#{number} {title}")
        assert "Assignee: " not in board.text
        hovered = await env.step(Action.call("hover", ref=link))
        assert hovered.text.count("Assignee: ") == 1
        last = []
        forks = [env, await env.fork()]
        column = found(hovered, "region", f"Milestone {milestone}")
        card = found(hovered, "article", f"Card #{number}")
        for one in forks:
            moved = await one.step(Action.call("drag", start=card, end=column))
            assert f"#{number} is planned for {milestone}." in moved.text
            assert "Assignee: " not in moved.text, "where the mouse was is no part of the next document"
            forks.append(await one.fork()) if len(forks) < 3 else None
            last.append((moved.text, moved.state_key))
        assert last[0] == last[1]
        ends = [await one.step(Action.call("done")) for one in forks]
        assert [(one.reward, one.state_key) for one in ends] == [(1.0, ends[0].state_key)] * 3
        for one in forks:
            await one.close()

    asyncio.run(move())


async def both_ways(acts, ways):
    """What is seen in an episode and in its fork, after `acts` by `ways`; and the last step before."""
    env = make(SPEC, one_of("shop", "buy"), browser="chromium")
    try:
        step = await env.reset(seed=0)
        (number,) = env.served.database.connection.execute("SELECT id FROM product WHERE stock > 4").fetchone()
        for act in acts:
            name, given = act(step.text, number)
            step = await env.step(Action.call(name, **given))
            assert "error" not in step.text
        fork = await env.fork()
        seen = [[await one.step(Action.call(name, **given)) for name, given in ways] for one in (env, fork)]
        assert [(one.text, one.state_key) for one in seen[0]] == [(one.text, one.state_key) for one in seen[1]]
        await fork.close()
        return step, [one.text for one in seen[0]]
    finally:
        await env.close()


def goto(path):
    return lambda _, number: ("goto", {"url": f"http://shop.test{path}".replace("NUMBER", str(number))})


def does(name, /, **given):
    return lambda *_: (name, given)


def by_ref(name, role, called, /, **given):
    return lambda text, _: (name, {"ref": re.search(rf'\[(e\d+)\] {role} "{called}"', text)[1], **given})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tabs_are_opened_left_and_closed_each_with_a_way_back_of_its_own_also_in_a_fork():
    chromium()
    step, seen = asyncio.run(
        both_ways(
            [
                goto("/products/NUMBER"),
                does("click_named", name="Quantity: one more", role="button"),
                by_ref("click", "link", "Orders", button="middle"),
            ],
            [
                ("back", {}),
                ("switch_tab", {"tab": 1}),
                ("back", {}),
                ("click_named", {"name": "Products", "role": "link"}),
                ("back", {}),
                ("new_tab", {"url": "http://shop.test/cart"}),
                ("close_tab", {}),
                ("close_tab", {}),
                ("back", {}),
                ("switch_tab", {"tab": 7}),
            ],
        )
    )
    assert re.search(r'spinbutton "Quantity" = "2"', step.text), "the buttons beside a number work"
    assert "tab 1: Orders" in step.text
    back, switched, none, there, again, opened, closed, left, nowhere, wrong = seen
    assert "Page: Welcome" in back
    assert switched.startswith("Page: Orders")
    assert "no page before" in none, "this tab began here"
    assert there.startswith("Page: Products")
    assert again.startswith("Page: Orders")
    assert "* tab 2" in opened
    assert "* tab 1" in closed
    assert "tab 0" not in left, "one tab has no number"
    assert "no page before" in nowhere
    assert "there is no tab 7" in wrong


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_copied_is_pasted_where_a_page_is_scrolled_and_fields_are_full_in_a_fork():
    chromium()
    search = "Search Harbour Supplies"
    acts = [
        by_ref("fill", "textbox", search, text="copied words"),
        *(does("press", keys=f"Control+{key}") for key in "ac"),
        goto("/products"),
        by_ref("click", "textbox", search),
        does("type_text", text="and: "),
        does("scroll", dy=300.0),
    ]
    _, (pasted,) = asyncio.run(both_ways(acts, [("press", {"keys": "Control+v"})]))
    assert f'"{search}" = "and: copied words"' in pasted


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


def test_back_goes_to_the_page_before_and_forward_there_again_also_in_a_fork():
    async def travel():
        env = make(SPEC, one_of("shop", "count"), browser="plain")
        start = await env.reset(seed=0)
        none = await env.step(Action.call("back"))
        for name in ("Products", "Orders"):
            await env.step(Action.call("click_named", name=name, role="link"))
        forks = [env, await env.fork()]
        seen = [[(await one.step(Action.call("back"))).text for _ in range(2)] for one in forks]
        forks.append(await forks[1].fork())
        ahead = [[(await one.step(Action.call("forward"))).text for _ in range(3)] for one in forks]
        assert ahead == [ahead[0]] * 3
        assert [text.partition(" - ")[0] for text in ahead[0][:2]] == ["Page: Products", "Page: Orders"]
        assert "no page after" in ahead[0][2]
        for one in forks:
            await one.close()
        return start, none, seen

    start, none, (seen, in_fork) = asyncio.run(travel())
    assert "no page before" in none.text
    assert seen == in_fork
    assert seen[0].startswith("Page: Products")
    assert seen[1] in start.text


def test_addresses_with_signs_of_their_own_are_there_in_a_fork():
    """A page whose name has what an address is made of, and a place within a page."""

    async def wander(path):
        env = make(SPEC, one_of("wiki", "write"), browser="plain")
        await env.reset(seed=0)
        env.served.database.connection.executescript(
            "PRAGMA query_only = OFF; INSERT INTO page VALUES ('C# & 50%? Ünder', 'Towns'); "
            "INSERT INTO revision (page, author, day, text, summary) "
            "SELECT 'C# & 50%? Ünder', author, day, text, summary FROM revision LIMIT 1"
        )
        step = await env.step(Action.call("goto", url=f"http://wiki.test{path}"))
        fork = await env.fork()
        ways = [Action.call("click_named", name="Recent changes", role="link"), Action.call("back")]
        seen = [[(await one.step(act)).text for act in ways] for one in (env, fork)]
        await fork.close()
        await env.close()
        return step, seen

    for path in ("/pages/C%23%20%26%2050%25%3F%20%C3%9Cnder", "/?x=1%262#there"):
        step, (one, fork) = asyncio.run(wander(path))
        assert "error" not in step.text
        assert "Not Found" not in step.text
        assert f"<http://wiki.test{path}>" in step.text
        assert one == fork
        assert one[1] == step.text, "back again"


def test_an_application_that_is_late_is_the_worlds_fault_and_the_next_episode_is_played():
    class Late:
        def step(self, *values):
            time.sleep(3.0)

        def finalize(self):
            return 0

    async def late():
        with pytest.raises(ValueError, match="answer_s is 0"):
            make(SPEC, one_of("shop", "count"), browser="plain", answer_s=0)
        env = make(SPEC, one_of("shop", "count"), browser="plain", answer_s=0.5)
        first = await env.reset(seed=0)
        env.served.database.connection.create_aggregate("count", 0, Late)
        with pytest.raises(EnvironmentFailure, match=r"TimeoutError: GET /products was not answered within 0\.5 s"):
            await env.step(Action.call("goto", url="http://shop.test/products"))
        again = await env.reset(seed=0)
        assert (again.text, again.state_key) == (first.text, first.state_key)
        assert "error" not in (await env.step(Action.call("goto", url="http://shop.test/products"))).text
        await env.close()

    asyncio.run(late())


def test_what_is_done_while_another_request_of_the_page_is_late_is_not_graded_by_lost_rows():
    class Late:
        def step(self, *values):
            time.sleep(3.0)

        def finalize(self):
            return 0

    async def late(name):
        env = make(SPEC, one_of("shop", "count"), browser="plain", answer_s=0.5)
        await env.reset(seed=0)
        env.served.database.connection.create_aggregate("count", 0, Late)
        environ = create_environ("/products", env.served.site.origin) | {"REQUEST_URI": "/products"}
        asked = asyncio.create_task(env.served.respond(environ))
        await asyncio.sleep(0.1)
        with pytest.raises(EnvironmentFailure, match="TimeoutError: GET /products was not answered"):
            await (env.snapshot() if name == "snapshot" else env.step(Action.call(name)))
        await asyncio.gather(asked, return_exceptions=True)
        await env.close()

    for name in ("done", "snapshot"):
        asyncio.run(late(name))


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
            state = json.loads(snapshot.state)
            state["anchor"]["cookies"].append(
                {"name": "cart", "value": "other", "domain": "shop.test", "path": "/"}
            )  # nothing of it is seen
            with pytest.raises(ReplayDiverged, match="what the browser keeps"):
                await other.reset(seed=0, start=snapshot.model_copy(update={"state": json.dumps(state)}))
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
