"""A browser for the tests here, and pages on sites of their own."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from envgym.browsing import open_browser
from envgym.page import Browser, Folder, Page, PageLimits, PageSpec

LIMITS = PageLimits(act_s=60.0, settle_s=30.0)
"""So that a loaded machine is not taken for a page that hangs."""

QUICK = PageLimits(act_s=5.0, settle_s=2.0)
"""For pages that do hang."""


@pytest.fixture(scope="session", autouse=True)
def chromium():
    report = open_browser().report()
    if not report.works:
        pytest.skip(f"no browser: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")


@pytest.fixture(scope="module")
def loop():
    """One loop for a module's tests, so that they share a browser."""
    with asyncio.Runner() as runner:
        browser = open_browser()
        runner.run(warm(browser))
        yield runner
        runner.run(browser.close())


async def warm(browser: Browser) -> None:
    await (await browser.page(PageSpec({}))).close()


Play = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture
def site(tmp_path):
    """``site(index, name=content, ...)`` writes the files of http://a.test and gives the place."""

    def written(index: str, **others: str) -> Folder:
        (tmp_path / "index.html").write_text(f"<!doctype html>{index}")
        for name, content in others.items():
            (tmp_path / f"{name}.html").write_text(content)
        return Folder(str(tmp_path))

    return written


@pytest.fixture
def play(loop, site):
    """``play(work, index, limits=..., name=content)`` runs ``work(page)`` with a page on such a site."""

    def run(work: Callable[[Page], Coroutine[Any, Any, Any]], index: str, **more: Any) -> Any:
        limits, sites = more.pop("limits", LIMITS), more.pop("sites", {})
        spec_parts = {name: more.pop(name) for name in ("storage", "scripts", "accept_dialogs") if name in more}
        folder = site(index, **more)
        spec = PageSpec({"http://a.test": folder, **sites}, start="http://a.test/", limits=limits, **spec_parts)

        async def whole() -> Any:
            async with open_browser() as browser, await browser.page(spec) as page:
                return await work(page)

        return loop.run(whole())

    assert inspect.isfunction(run)
    return functools.wraps(run)(run)
