"""Taking the page of an episode away before the next one begins."""

from contextlib import suppress

from envgym.errors import EnvironmentFailure
from envgym.page import Page, Wanted
from envgym_environments.web.door import Door

__all__ = ["went_away"]

_AWAY = "(location.replace('about:blank'), true)"
_LOOKS = 20


async def went_away(page: Page, door: Door) -> bool:
    """Whether a page is empty now, and can be started again; else it must be closed, with its way to the site.

    So it must where it has more tabs, hangs, runs no scripts, always goes elsewhere, or knocked at the shut door
    meanwhile: then more may come. It replaces itself, so that its last words are said before it is gone.
    """
    with suppress(EnvironmentFailure):  # it gave no answer, or runs no scripts
        await page.run(_AWAY)
        for _ in range(_LOOKS):
            seen = await page.view(Wanted(tree=False))
            if door.refused or len(seen.tabs) != 1:
                break
            if seen.url == "about:blank":
                return True
    return False
