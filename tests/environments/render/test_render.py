"""`render` and `render-plot`: likeness by its rules, experts and idlers on every kind, forks, hostile documents."""

import asyncio
import io

import numpy as np
import pytest
from envgym_environments.render.documents import DOCUMENTS
from envgym_environments.render.likeness import apart, colour, pixels, ssim, structure, vision
from envgym_environments.render.page import HtmlCanvas
from envgym_environments.render.plots import PLOTS
from envgym_environments.render.tasks import expert, plot_tasks, render_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from envgym.browsing import open_browser
from envgym.env import StopReason
from envgym.messages import Action, ImagePart
from envgym.registry import make, make_backend
from envgym.testing import check_env


def flat(value):
    return np.full((32, 40, 3), value, np.uint8)


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (32, 40, 3), dtype=np.uint8)


def test_two_even_pictures_are_as_alike_as_their_light_by_hand():
    # without variance the index is (2 ab + C1) / (a^2 + b^2 + C1), C1 = 2.55^2 = 6.5025
    assert ssim(flat(100), flat(50)) == pytest.approx((2 * 5000 + 6.5025) / (12_500 + 6.5025))
    assert ssim(noise(1), noise(1)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="shapes"):
        ssim(flat(1), noise(1)[:16])


def test_colours_count_against_the_white_picture_by_hand():
    # white is 155 away from 100, and 120 is 20 away
    assert colour(flat(100), flat(120)) == pytest.approx(1 - 20 / 155)
    assert colour(flat(100), flat(255)) == 0.0


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_picture_is_like_itself_alone_and_white_is_worth_nothing(one, other):
    wanted, made = noise(one), noise(other)
    assert vision(wanted, wanted) == pytest.approx(1.0)
    assert vision(wanted, flat(255)) == 0.0
    for likeness in (structure, colour, vision):
        assert 0.0 <= likeness(wanted, made) <= 1.0
    assert vision(wanted, made) < 0.9 or one == other


def test_the_region_that_differs_is_named_first():
    made = flat(200)
    made[-5:, :8] = 0
    assert apart(flat(200), made)[0][0] == "bottom left"
    assert apart(flat(200), flat(200)) == []


def test_what_is_no_image_is_refused_and_another_size_is_scaled():
    with pytest.raises(ValueError, match="no image"):
        pixels(b"PNG?")
    stream = io.BytesIO()
    Image.fromarray(flat(9)).save(stream, "png")
    assert pixels(stream.getvalue(), size=(8, 16)).shape == (16, 8, 3)


def test_tasks_repeat_have_splits_and_name_wrong_options(tmp_path):
    for tasks, kinds in ((render_tasks, DOCUMENTS), (plot_tasks, PLOTS)):
        found = tasks(100)
        assert {task.metadata["kind"] for task in found} == set(kinds)
        assert {task.metadata["difficulty"] for task in found} == {1, 2, 3, 4, 5}
        assert sum(task.split == "heldout" for task in found) == 20
        with pytest.raises(ValueError, match="kind is 'poem'"):
            tasks(kind="poem")
        with pytest.raises(ValueError, match="difficulty is 6"):
            tasks(difficulty=6)
    with pytest.raises(ValueError, match=r"must be a folder with \.html or \.png files"):
        render_tasks(path=str(tmp_path))
    with pytest.raises(ValueError, match="see is 'smell'"):
        make("render", render_tasks()[0], see="smell")
    with pytest.raises(ValueError, match="unknown browser 'netscape'"):
        make("render", render_tasks()[0], browser="netscape")


@pytest.fixture(scope="module")
def loop():
    """One loop, and in it a browser that goes on between episodes."""
    report = open_browser().report()
    if not report.works:
        pytest.skip(f"no browser: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")
    with asyncio.Runner() as runner:
        yield runner


async def _played(env, task, *, idle):
    """The last step of an expert's episode, or of one that submits at once."""
    async with open_browser():
        step = await env.reset(seed=0)
        agent = expert(task, seed=0)
        try:
            while step.stop is None:
                step = await env.step(Action.call("submit") if idle else (await agent.act(step)).action)
            return step
        finally:
            await env.close()


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_the_document_itself_is_worth_one_and_nothing_is_worth_nothing(loop, kind):
    task = render_tasks(kind=kind, difficulty=5)[0]
    done = loop.run(_played(make("render", task), task, idle=False))
    assert (done.reward, done.stop) == (1.0, StopReason.GOAL)
    none = loop.run(_played(make("render", task), task, idle=True))
    assert (none.reward, none.stop) == (0.0, StopReason.SUBMITTED)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_figures_are_worth_one_in_the_end_and_mistakes_are_told(loop):
    async def main():
        async with make_backend("auto") as backend:
            for kind in PLOTS:
                task = plot_tasks(kind=kind, difficulty=5)[0]
                done = await _played(make("render-plot", task, backend=backend), task, idle=False)
                assert (done.reward, done.stop) == (1.0, StopReason.GOAL), kind
            env = make("render-plot", task, backend=backend)
            await env.reset(seed=0)
            assert "SyntaxError" in (await env.step(Action.call("render", code="for"))).text
            assert "0 figures" in (await env.step(Action.call("render", code="1"))).text
            assert "alike: 0.0" in (await env.step(Action.say("```python\nplt.figure()\n```"))).text
            await env.step(Action.call("render", code="for"))
            told = (await env.step(Action.call("submit"))).channels
            assert [told[name] for name in ("drawn", "made", "runs", "vision")] == [4.0, 1.0, 0.0, 0.0]
            await env.close()
            await check_env(lambda: make("render-plot", task, backend=backend), turns=3, deadline_s=120)

    loop.run(main())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_contract_holds_with_pictures_and_forks_are_exact(loop):
    async def main():
        task = render_tasks(kind="card")[0]
        env = make("render", task, see="both", tries=3)
        first = await env.reset(seed=0)
        drawn = await env.step(Action.call("render", html="<p>one</p>"))
        for step in (first, drawn):
            shown = [part.sha256 for part in step.observation[0].content if isinstance(part, ImagePart)]
            assert shown == list(step.images), "the pictures come with the step"
        fork = await env.fork()
        ends = []
        for one in (env, fork):
            await one.step(Action.call("render", html="<h1 style='color:red'>two</h1>"))
            ends.append(await one.step(Action.call("submit")))
        assert ends[0] == ends[1]
        assert 0.0 <= ends[0].reward < 1.0
        assert [ends[0].channels[name] for name in ("drawn", "made", "runs")] == [2.0, 2.0, 1.0]
        for one in (env, fork):
            await one.close()
        async with open_browser():
            await check_env(lambda: make("render", task), turns=3, deadline_s=120)

    loop.run(main())


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(300)
def test_nothing_runs_in_a_document_and_the_next_one_is_drawn(loop):
    async def main():
        canvas = HtmlCanvas("chromium")
        plain, _ = await canvas.picture("<p>plain</p>")
        ran, _ = await canvas.picture("<p>plain</p><script>document.body.style.background='red'</script>")
        assert ran == plain
        fetched, _ = await canvas.picture("<p>plain</p><link rel=stylesheet href=http://drawn.test/x.css>")
        assert fetched == plain
        for hostile in ('<meta http-equiv="refresh" content="0">', "<iframe src=file:///etc/passwd></iframe>"):
            image, why = await canvas.picture(f"<p>plain</p>{hostile}")
            assert image is not None or why
        assert (await canvas.picture("<p>plain</p>"))[0] == plain
        await canvas.close()
        await canvas.close()

    loop.run(main())
