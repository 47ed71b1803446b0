"""What is not as it must be in a tab is noticed at once; and all that is there is in its digest."""

import asyncio
import json
import os
import shutil

import pytest
from envgym_sandboxes.browser.tab import Tab
from envgym_sandboxes.browser.wire import Refused, Wire

from envgym.browsing import open_browser
from envgym.errors import EnvironmentFailure
from envgym.page import PageSpec, Wanted
from envgym.page_actions import Click, Press, Target, Wait


def test_scripts_are_in_popups_and_frames_and_a_popup_that_is_closed_at_once_is_no_failure(play):
    async def work(page):
        assert (await page.act(Click(Target(role="button")))).outcome.ok
        assert await page.run("frames[0].fine + fine") == 2
        assert (await page.act(Click(Target(role="link")))).opened == 1

    play(
        work,
        "<button onclick=\"for (let n = 0; n < 5; n++) window.open('/b.html').close()\">go</button>"
        "<iframe src=/b.html></iframe><a href=/b.html target=_blank>pop</a>",
        b="<p>B",
        scripts=("window.fine = 1",),
    )


def test_a_tab_that_cannot_be_prepared_is_told_and_not_used(loop):
    async def work():
        async with open_browser() as browser, await browser.page(PageSpec({})) as page:
            with pytest.raises(EnvironmentFailure, match="a tab could not be prepared, and was closed: "):
                await browser._held.engine.context(PageSpec({}, size=(20_000_000, 10)))  # Chromium's most: 10**7
            assert (await page.act(Wait())).outcome.ok

    loop.run(work())


def test_a_chromium_in_any_folder_can_be_the_one_that_is_used(tmp_path):
    async def work():
        async with open_browser(program=str(linked)) as browser, await browser.page(PageSpec({})) as page:
            assert await page.run("1 + 1") == 2

    folder, linked = tmp_path / "a build", tmp_path / "my-chromium"
    folder.mkdir()
    (folder / "chrome").write_text(f'#!/bin/sh\nexec "{shutil.which("chromium")}" "$@"\n')
    (folder / "chrome").chmod(0o755)
    linked.symlink_to(folder / "chrome")
    asyncio.run(work())


@pytest.mark.parametrize("method", ["Page.addScriptToEvaluateOnNewDocument", "Page.enable", "Network.enable"])
def test_what_a_browser_refuses_while_a_tab_is_prepared_is_raised(method):
    async def work():
        (commands, ours), (theirs, answers) = os.pipe(), os.pipe()
        os.set_blocking(ours, False)
        os.set_blocking(theirs, False)
        wire = Wire(ours, theirs, lambda: None)

        def answer():
            for command in os.read(commands, 1 << 20).split(b"\0")[:-1]:
                asked = json.loads(command)
                said = {"result": {"frameTree": {"frame": {"id": "f", "url": ""}}}}
                if asked["method"] == method:
                    said = {"error": {"message": "no room"}}
                os.write(answers, json.dumps({"id": asked["id"], **said}).encode() + b"\0")

        asyncio.get_running_loop().add_reader(commands, answer)
        try:
            with pytest.raises(Refused, match="no room"):
                await Tab("target", "session", wire, PageSpec({}, scripts=("1",))).prepare()
        finally:
            asyncio.get_running_loop().remove_reader(commands)
            wire.close("over")
            for fd in (commands, ours, theirs, answers):
                os.close(fd)

    asyncio.run(work())


def test_a_digest_tells_what_a_tree_does_not_and_is_the_same_again(play):
    """Of storage, of what fields hold, of where all is scrolled to, of cookies: each by itself, and taken back."""
    changes = {
        "localStorage.a = 'x'": "localStorage.clear()",
        "sessionStorage.a = 'x'": "sessionStorage.clear()",
        "window.name = 'x'": "window.name = ''",
        "document.cookie = 'a=x'": "document.cookie = 'a=; max-age=0'",
        "scrollTo(0, 300)": "scrollTo(0, 0)",
        "box.scrollTop = 30": "box.scrollTop = 0",
        "secret.value = 'x'": "secret.value = ''",
        "many.options[1].selected = true": "many.options[1].selected = false",
    }

    async def work(page):
        first = await page.digest()
        found = {first}
        for change, back in changes.items():
            await page.run(f"{change}, 1")
            there = await page.digest()
            assert there not in found, change
            assert await page.digest() == there
            found.add(there)
            await page.run(f"{back}, 1")
            assert await page.digest() == first, back

    play(
        work,
        "<div id=box style='height: 50px; overflow: auto'><p style='height: 500px'></div>"
        "<input id=secret type=hidden><select id=many multiple hidden><option>1<option>2</select>"
        "<p style='height: 3000px'>",
    )


def test_a_click_that_changes_nothing_leaves_no_frame_that_a_picture_would_wait_for(play):
    """One in which nothing was committed lasts its sixtieth of a second, and the picture's own comes after it."""
    clicks = 10

    async def work(page):
        wire, traced, over = page.wire, [], asyncio.Event()

        def heard(method, params):
            traced.extend(params.get("value", ()))
            if method == "Tracing.tracingComplete":
                over.set()

        others = wire._handlers[""]
        await page.act(Click(Target(x=300, y=300)))
        wire.handle("", heard)
        config = {"includedCategories": ["cc"], "excludedCategories": ["*"]}
        await wire.call("Tracing.start", traceConfig=config, transferMode="ReportEvents")
        for _ in range(clicks):
            await page.act(Click(Target(x=300, y=300)))
            assert (await page.view(Wanted(tree=False, screenshot=True))).screenshot
        await wire.call("Tracing.end")
        await over.wait()
        wire.handle("", others)
        return [event["name"] for event in traced]

    names = play(work, "<p>nothing")
    assert names.count("ProxyMain::BeginMainFrame") >= clicks, "frames are told"
    assert names.count("EarlyOut_NoUpdates") < clicks / 2


def test_a_page_hears_and_sees_nothing_of_what_makes_its_frames_commit(play):
    async def work(page):
        await page.act(Click(Target(x=30, y=30)))
        await page.act(Press("a"))
        assert (await page.view(Wanted(screenshot=True))).screenshot
        return await page.run("told.join()")

    told = """<script>const told = [];
for (const name of ['addEventListener', 'removeEventListener']) {
  const real = EventTarget.prototype[name];
  EventTarget.prototype[name] = function (...given) { told.push(given[0]); return real.apply(this, given); };
}
new MutationObserver(() => told.push('changed'))
  .observe(document, {subtree: true, attributes: true, childList: true});
window.addEventListener('touchcancel', () => told.push('heard'));
</script>"""
    assert play(work, f"<p>nothing{told}") == "touchcancel"
