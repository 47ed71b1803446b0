"""The pages of the package `miniwob`, and how a problem of theirs begins and is read; only its HTML files are used.

Each page draws its problem with `Math.random`, so a seed decides it. Time plays no part: the day is fixed, the
countdown is out of sight, and the reward is the page's own before it is discounted by the time taken.
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from envgym.errors import SandboxUnavailable

__all__ = [
    "BEGIN",
    "FIXED_DAY",
    "FLIGHTS",
    "ORIGIN",
    "READY",
    "RELOADED",
    "STATE",
    "TIMED",
    "address",
    "all_pages",
    "begin",
    "begin_on",
    "html_folder",
    "page_names",
    "size",
]

ORIGIN = "http://miniwob.test"

FLIGHTS = ("flight.AA", "flight.Alaska", "flight.Alaska-auto")
"""FlightWoB's pages: an airline's form in a frame, beside what is asked. Each reset loads them again."""

TIMED = frozenset(("chase-circle", "moving-items", "simon-says", "stock-market"))
"""Pages that go on moving while nobody acts: what is seen depends on the clock, so they are no case for replay."""

_KEEPING = """
choose-date choose-date-easy choose-date-medium choose-date-nodelay click-pie drag-items drag-items-grid
drag-sort-numbers email-inbox-important form-sequence social-media use-colorwheel use-colorwheel-2 use-slider
use-slider-2
"""
RELOADED = frozenset(_KEEPING.split()) | TIMED | {*FLIGHTS}
"""Pages that keep something of one problem in the next: each reset loads them again. The others were compared:
after something was clicked in them, a reset shows what a page shows that was just loaded."""

FIXED_DAY = """(() => {
  const Real = Date, base = Real.UTC(2026, 0, 15, 12), began = performance.now();
  const now = () => base + Math.floor(performance.now() - began);
  window.Date = class Date extends Real {
    constructor(...given) { if (given.length) super(...given); else super(now()); }
    static now() { return now(); }
  };
})();"""

READY = "document.querySelector('iframe#wrap') && !WOB_TASK_READY ? null : ''"
"""Whether what a frame shows is there, too: null until then. Its own script says so."""

BEGIN = """(seed => {
  if (typeof core === 'undefined' || typeof genProblem !== 'function') return 'no page of MiniWoB';
  core.EPISODE_MAX_TIME = 2e9;
  if (window.jQuery) jQuery.fx.off = true;
  if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
  if (!core.cover_div) core.startEpisode();
  core.clearTimer();
  Math.seedrandom(seed);
  core.startEpisodeReal();
  clearInterval(core.CD_TIMER);
  document.getElementById('reward-display').style.display = 'none';
  const canvas = document.getElementById('click-canvas');
  if (canvas) canvas.style.display = 'none';
  return '';
})"""

STATE = """(() => {
  if (typeof core === 'undefined') return null;
  const frame = document.querySelector('iframe#wrap')?.contentDocument;
  const all = (which) => [document, ...(frame ? [frame] : [])].flatMap((one) => [...one.querySelectorAll(which)]);
  const fields = all('input,select,textarea').map(
    (f) => [f.type, f.type === 'checkbox' || f.type === 'radio' ? f.checked : f.value]);
  const cover = document.getElementById('sync-task-cover'), own = ['reward-display', 'click-canvas'];
  const shown = (one) => one !== cover && !one.closest('#reward-display')
    && !own.includes(one.id) && !['SCRIPT', 'STYLE'].includes(one.tagName);
  const seen = all('body *').filter(shown).map((one) => {
    const box = one.getBoundingClientRect();
    const text = [...one.childNodes].filter((t) => t.nodeType === 3).map((t) => t.nodeValue.trim()).join(' ');
    // where a speck is hangs on frames in click-pie, whose wheel is folded to one; nobody could aim at it
    const speck = box.width < 3 && box.height < 3;
    return [one.tagName, text, ...(speck ? [] : [box.x, box.y, box.width, box.height].map(Math.round))];
  });
  return {done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON ?? ''),
    utterance: core.getUtterance(), seen, fields};
})()"""


@cache
def html_folder() -> Path:
    """Where the package has its HTML files. Raises SandboxUnavailable where it is not installed."""
    found = find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise SandboxUnavailable("the pages of MiniWoB++ are not here; fix: pip install 'envgym[web]'")
    return Path(found.submodule_search_locations[0]) / "html"


@cache
def page_names() -> tuple[str, ...]:
    """Every page by name, but for `FLIGHTS`, which are played where they are named."""
    return tuple(sorted(path.stem for path in (html_folder() / "miniwob").glob("*.html")))


def address(page: str) -> str:
    """The address of a page."""
    if page in FLIGHTS:
        return f"{ORIGIN}/flight/{page.removeprefix('flight.')}/wrapper.html"
    return f"{ORIGIN}/miniwob/{page}.html"


def all_pages() -> tuple[str, ...]:
    """Every page that there is, by name."""
    return (*page_names(), *FLIGHTS)


def size(page: str) -> tuple[int, int]:
    """Width and height in which all of a page is seen, in pixels."""
    return (560, 700) if page in FLIGHTS else (480, 320)


def begin(seed: str) -> str:
    """The expression that begins the problem of a seed in the page, whatever was played in it before."""
    return f"{BEGIN}({json.dumps(seed)})"


def begin_on(page: str, seed: str) -> str:
    """The same where that page is loaded; null where another one is, or it is not there yet."""
    there = f"document.readyState === 'complete' && location.href === {json.dumps(address(page))}"
    return f"{there} ? {begin(seed)} : null"
