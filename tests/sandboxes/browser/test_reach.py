"""Where actions land: in the field that was named and on what of it is seen, or nowhere, which is told."""

import pytest

from envgym.page import Outcome
from envgym.page_actions import Click, Drag, Fill, Hover, Scroll, Select, Target

pytestmark = pytest.mark.slow

FIELDS = """<input aria-label=Other autofocus>
<fieldset disabled><input aria-label=Grouped><div contenteditable aria-label=Editable role=textbox>old</div>
<select aria-label=Colour><option>red<option>green</select></fieldset>
<input aria-label=Hides><input aria-label=Moves onfocus="document.querySelector('input').focus()">
<select aria-label=Groups><option>one<optgroup disabled><option>two</optgroup></select>
<div><template shadowrootmode=open><input aria-label=Inner></template></div>
<p contenteditable aria-label=Rich role=textbox><b>part</b></p>"""
VALUES = "[...document.querySelectorAll('input')].map((one) => one.value).join()"


def test_a_text_goes_into_the_field_that_was_named_or_nowhere(play):
    async def work(page):
        nodes = {node.name: node.ref for node in (await page.view()).tree if node.ref}
        await page.run("(document.querySelector('[aria-label=Hides]').style.visibility = 'hidden', 0)")
        await page.act(Click(Target(name="Other")))
        for name in ("Grouped", "Hides", "Moves"):
            acted = await page.act(Fill(Target(ref=nodes[name]), "lost"))
            assert acted.outcome is Outcome.NOT_REACHABLE, (name, acted)
            assert await page.run(VALUES) == ",,,", name
        for name, option in (("Colour", "green"), ("Groups", "two")):
            acted = await page.act(Select(Target(ref=nodes[name]), (option,)))
            assert acted.outcome is Outcome.NOT_REACHABLE, (name, acted)
        for name in ("Other", "Inner", "Editable", "Rich"):
            assert (await page.act(Fill(Target(ref=nodes[name]), "kept"))).outcome is Outcome.DONE, name
        assert await page.run(VALUES) == "kept,,,"
        inner = "[...document.querySelectorAll('div')].find((one) => one.shadowRoot).shadowRoot.firstChild.value"
        assert await page.run(inner) == "kept"
        edited = "[...document.querySelectorAll('[contenteditable]')].map((one) => one.textContent).join()"
        assert await page.run(edited) == "kept,kept"

    play(work, FIELDS)


def test_a_field_in_a_frame_whose_page_takes_the_focus_away_is_not_filled(play):
    async def work(page):
        inner = "document.querySelector('iframe').contentDocument.querySelector('input')"
        await page.run(f"({inner}.onfocus = () => document.querySelector('input').focus(), 0)")
        assert (await page.act(Fill(Target(name="Inner"), "lost"))).outcome is Outcome.NOT_REACHABLE
        assert await page.run("document.querySelector('input').value") == ""
        assert (await page.act(Fill(Target(name="Second"), "kept"))).outcome is Outcome.DONE
        second = "document.querySelector('iframe').contentDocument.querySelectorAll('input')[1].value"
        assert await page.run(second) == "kept"

    fields = "<input aria-label=Inner><input aria-label=Second>"
    play(work, "<input aria-label=Other><iframe src=/b.html></iframe>", b=fields)


TALL = """<style>body{margin:0}#tall{height:5000px;width:300px;background:#ddd}
#box{position:fixed;left:400px;top:20px;width:200px;height:100px;overflow:scroll}</style>
<div id=tall role=button aria-label=Tall draggable=true onclick="heard.push('click')" onmousemove="moved = 1"
onwheel="heard.push('wheel')" ondragstart="heard.push('drag')"></div>
<div id=box><div role=button aria-label=Long style="height:900px" onclick="heard.push('long')"></div></div>
<p role=button aria-label=Gone style="position:fixed;left:-500px;width:100px" onclick="heard.push('gone')">gone</p>
<span role=button onclick="heard.push('through')"><i style="pointer-events:none">through</i></span>
<script>heard = []; moved = 0</script>"""


def test_what_is_taller_than_the_window_or_its_box_is_met_where_it_is_seen(play):
    async def work(page):
        for down in (0, 700):
            await page.run(f"(scrollTo(0, {down}), heard = [], moved = 0)")
            for action in (
                Hover(Target(name="Tall")),
                Click(Target(name="Tall")),
                Drag(Target(name="Tall"), Target(x=620, y=300)),
                Scroll(dy=10, target=Target(name="Tall")),
                Click(Target(name="Long")),
            ):
                acted = await page.act(action)
                assert acted.outcome is Outcome.DONE, (action, acted)
                if isinstance(action, Hover):
                    assert await page.run("moved") == 1
            assert await page.run("heard") == ["click", "drag", "wheel", "long"]
        await page.run("(heard = [], 0)")
        for kind in (Click, Hover):
            acted = await page.act(kind(Target(name="Gone")))
            assert acted.outcome is Outcome.NOT_REACHABLE, acted
        assert await page.run("heard") == []
        assert (await page.act(Click(Target(name="through")))).outcome is Outcome.DONE
        assert await page.run("heard") == ["through"]

    play(work, TALL)


def test_what_is_taller_than_its_frame_is_met_where_the_frame_shows_it(play):
    async def work(page):
        assert (await page.act(Click(Target(name="Inner")))).outcome is Outcome.DONE
        assert await page.run("document.querySelector('iframe').contentWindow.heard") == 1

    body = (
        "<div role=button aria-label=Inner style='height:500px' onclick='heard++'></div><script>heard = 0</script>"
    )
    play(work, "<iframe src=/b.html height=100></iframe>", b=body)
