"""The clipboard is an episode's own, however keys are spelled; Chromium's, which all share, gives nothing away."""

import itertools

import pytest

from envgym.browsing import open_browser
from envgym.page import Outcome, PageSpec
from envgym.page_actions import Click, Fill, NewTab, Press, Target

pytestmark = pytest.mark.slow

COPIES = """<input aria-label=Word value=secret><textarea aria-label=Second></textarea>
<button aria-label=Copy onclick="document.querySelector('input').select(); document.execCommand('copy')">x</button>
<p id=words>some words</p>
<script>heard = []; for (const kind of ['keydown', 'copy', 'cut', 'paste'])
addEventListener(kind, (event) => heard.push(event.key || kind))</script>"""
VALUE = "document.querySelector('%s').value"
WORD, SECOND = Target(name="Word"), Target(name="Second")


@pytest.fixture
def two(loop, site):
    """``two(work)`` runs ``work(one, other)`` with pages of two episodes, of a page that copies or of `index`."""

    def run(work, index=COPIES, **others):
        spec = PageSpec({"http://a.test": site(index, **others)}, start="http://a.test/")

        async def whole():
            async with open_browser() as browser:
                return await work(await browser.page(spec), await browser.page(spec))

        return loop.run(whole())

    return run


async def pressed(page, *all_keys):
    for keys in all_keys:
        acted = await page.act(Press(keys))
        assert acted.outcome is Outcome.DONE, (keys, acted)


def test_no_key_of_an_agent_brings_another_episodes_copy(two):
    async def work(one, other):
        await one.act(Click(Target(name="Copy")))
        await one.act(Click(SECOND))
        held = ["Control", "Ctrl", "Shift", "Alt", "Meta"]
        for number in range(len(held) + 1):
            for some in itertools.combinations(held, number):
                for key in ("v", "V", "Insert") if some else ("Insert",):
                    await other.act(Fill(SECOND, "mine"))
                    await other.act(Press("+".join([*some, key])))
                    assert "secret" not in await other.run(VALUE % "textarea"), (some, key)

    two(work)


def test_a_middle_click_brings_nothing_that_another_episode_has_selected(two):
    async def work(one, other):
        await one.act(Click(Target(name="some words"), count=3))
        for tab in (None, NewTab("http://a.test/")):
            if tab is not None:
                await other.act(tab)
            await other.act(Click(SECOND, "middle"))
            assert await other.run(VALUE % "textarea") == ""
            assert await other.run("heard") == []

    two(work)


@pytest.mark.parametrize("copy", ["Ctrl+C", "Control+Insert", "Shift+Shift+Ctrl+Insert"])
def test_copies_however_they_are_spelled_are_ones_own_and_pasted_by_every_spelling(two, copy):
    copies = "Shift" not in copy

    async def work(one, other):
        await one.act(Click(WORD))
        await pressed(one, "Ctrl+a", copy)
        assert ("copy" in await one.run("heard")) is copies
        await other.act(Click(SECOND))
        await pressed(other, "Control+v", "Shift+Insert")
        assert await other.run(VALUE % "textarea") == ""
        await one.act(Click(SECOND))
        pastes = ("Control+v", "Ctrl+v", "Control+Shift+v", "Shift+Ctrl+V", "Shift+Insert")
        await pressed(one, *pastes)
        assert await one.run(VALUE % "textarea") == "secret" * len(pastes) * copies

    two(work)


@pytest.mark.parametrize("cut", ["Ctrl+x", "Shift+Del"])
def test_what_is_cut_is_gone_and_pasted_and_the_page_hears_of_it(two, cut):
    async def work(one, _):
        await one.act(Click(WORD))
        await pressed(one, "End", "Shift+Left", "Shift+Left", cut)
        assert await one.run(VALUE % "input") == "secr"
        assert (await one.run("heard"))[-1] == "cut"
        await one.act(Click(SECOND))
        await pressed(one, "Control+v")
        assert await one.run(VALUE % "textarea") == "et"

    two(work)


def test_what_a_page_puts_in_the_place_of_a_copy_is_what_is_copied(two):
    async def work(one, _):
        other = "e.clipboardData.setData('text/plain', 'other'); e.preventDefault()"
        await one.run(f"(words.oncopy = (e) => {{ {other} }}, 0)")
        await one.run("(getSelection().selectAllChildren(words), 0)")
        await pressed(one, "Control+c")
        await one.act(Click(SECOND))
        await pressed(one, "Control+c", "Control+v")
        assert await one.run(VALUE % "textarea") == "other", "a copy of nothing changes nothing"

    two(work)


def test_what_is_selected_in_a_shadow_root_or_a_frame_is_copied_and_pasted(two):
    async def work(one, _):
        for name in ("Inner", "Framed"):
            await one.act(Click(Target(name=name)))
            await pressed(one, "Control+a", "Control+c")
            await one.act(Fill(SECOND, ""))
            await pressed(one, "Control+v")
            assert await one.run(VALUE % "textarea") == name.lower()

    two(
        work,
        "<textarea aria-label=Second></textarea><div><template shadowrootmode=open>"
        "<input aria-label=Inner value=inner></template></div><iframe src=/b.html></iframe>",
        b="<input aria-label=Framed value=framed>",
    )
