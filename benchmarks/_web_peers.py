"""BrowserGym and MiniWoB++'s own Selenium environment, each in a process of its own that plays when it is told to.

`Peer` is this side: it starts the process and asks it for one reset or one step at a time, so that they take turns.
BrowserGym drives a browser by a synchronous API that no event loop may be near, and what it needs lies in a folder
beside the environment, with an older Playwright: hence a process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from _harness import beside

__all__ = ["CLICK", "KINDS", "Peer", "missing"]

KINDS = {
    "browsergym": "BrowserGym",
    "browsergym-tuned": "BrowserGym without its sleeps",
    "selenium-screenshots": "MiniWoB++ on Selenium, with screenshots",
    "selenium": "MiniWoB++ on Selenium, without",
}

# what Debian's Chromium needs to be started by those who expect one that they have downloaded
_CHROME = (
    '#!/bin/sh\nexec {chromium} --no-sandbox --disable-background-networking --disable-component-update "$@"\n'
)
CLICK = (150.0, 200.0)
"""Where nothing is: a click that ends no problem."""


def missing(kind: str) -> str:
    """What is not here of what a peer needs; "" for nothing."""
    lacking = [] if shutil.which("chromium") else ["chromium"]
    if kind.startswith("browsergym"):
        if not (beside() / "browsergym" / "miniwob").is_dir():
            lacking.append(f"browsergym-miniwob in {beside()} (`make bars` puts it there)")
    else:
        lacking += [] if shutil.which("chromedriver") else ["chromedriver (apt-get install chromium-driver)"]
        lacking += [] if find_spec("selenium") else ["selenium"]
    return ", ".join(lacking)


class Peer:
    """A peer's environment on one page, in its process. Raises RuntimeError with its last words when that ends."""

    def __init__(self, kind: str, page: str) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, page, self._scratch.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._answer()  # it has begun

    def _answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the peer ended: {self._errors.read().decode(errors='replace')[-2000:]}")
        return float(json.loads(line))

    def ms(self, what: str) -> float:
        """Milliseconds of one "reset" or "step", as its own process saw them."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        self._scratch.cleanup()


Moves = dict[str, Callable[[], object]]


def _browsergym(page: str, tuned: bool, scratch: Path) -> tuple[Moves, Callable[[], object]]:
    """Reset and step of BrowserGym's environment, and its end."""
    chrome = scratch / "chromium-1117" / "chrome-linux" / "chrome"  # where Playwright 1.44 looks for its own
    chrome.parent.mkdir(parents=True)
    chrome.write_text(_CHROME.format(chromium=shutil.which("chromium")))
    chrome.chmod(0o755)
    html = Path(str(find_spec("miniwob").submodule_search_locations[0])) / "html" / "miniwob"  # type: ignore[union-attr,index]
    os.environ |= {"PLAYWRIGHT_BROWSERS_PATH": str(scratch), "MINIWOB_URL": f"file://{html}/"}
    sys.path.append(str(beside()))
    import browsergym.miniwob  # noqa: F401  # registers its environments
    import gymnasium
    from browsergym.core.action.highlevel import HighLevelActionSet

    quick = {"pre_observation_delay": 0.0, "slow_mo": 0} if tuned else {}
    actions = HighLevelActionSet(subsets=["coord"]).to_python_code
    env = gymnasium.make(f"browsergym/miniwob.{page}", action_mapping=actions, **quick)
    click = f"mouse_click({CLICK[0]}, {CLICK[1]})"
    return {"reset": lambda: env.reset(seed=0), "step": lambda: env.step(click)}, env.close


def _selenium(page: str, screenshots: bool) -> tuple[Moves, Callable[[], object]]:
    """Reset and step of MiniWoB++'s environment, and its end."""
    os.environ |= {
        "MINIWOB_CHROME_BINARY": str(shutil.which("chromium")),
        "MINIWOB_CHROMEDRIVER": str(shutil.which("chromedriver")),
    }
    from miniwob.action import ActionTypes
    from miniwob.environment import MiniWoBEnvironment

    env = MiniWoBEnvironment(page)
    env.set_record_screenshots(screenshots)
    env.reset(seed=0)
    click = env.create_action(ActionTypes.CLICK_COORDS, coords=list(CLICK))
    return {"reset": lambda: env.reset(seed=0), "step": lambda: env.step(click)}, env.close


def main(kind: str, page: str, scratch: str) -> None:
    """Play what is told on standard input, a word a line, and say how many ms each took."""
    out, sys.stdout = sys.stdout, sys.stderr
    if kind.startswith("browsergym"):
        moves, close = _browsergym(page, kind.endswith("tuned"), Path(scratch))
    else:
        moves, close = _selenium(page, kind.endswith("screenshots"))
    print(0.0, file=out, flush=True)
    try:
        for line in sys.stdin:
            began = time.perf_counter()
            moves[line.strip()]()
            print((time.perf_counter() - began) * 1000, file=out, flush=True)
    finally:
        close()


if __name__ == "__main__":
    main(*sys.argv[1:])
