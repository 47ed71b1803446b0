"""The display's beginning and end, and what it is asked: one request after the other, from a mailbox."""

import base64
import contextlib
import os
import select
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from envgym_sandboxes.desktop.inside.actions import Hand
from envgym_sandboxes.desktop.inside.dbus import BusGone
from envgym_sandboxes.desktop.inside.home import digests
from envgym_sandboxes.desktop.inside.keys import Keyboard
from envgym_sandboxes.desktop.inside.png import Png
from envgym_sandboxes.desktop.inside.programs import Programs, StartFailed
from envgym_sandboxes.desktop.inside.rest import FRAME_MS, NO_PROC, START_MS, descendants, settle
from envgym_sandboxes.desktop.inside.tree import Tree
from envgym_sandboxes.desktop.inside.x11 import XDisplay
from envgym_sandboxes.inside.mailbox import Mailbox

__all__ = ["main"]

_START_S = 60.0


class Desktop:
    """Everything of one display."""

    def __init__(self, top: str, size: tuple[int, int], *, alone: bool) -> None:
        self._programs = programs = Programs(top, os.getcwd(), size, alone=alone)
        self._x = XDisplay(programs.display)
        self._tree = Tree(programs.env["DBUS_SESSION_BUS_ADDRESS"])
        programs.until(self._x.supports, _START_S, lambda: "no window manager")
        self.rest(_START_S)
        programs.keep()
        self._x.keep()
        self._keyboard = Keyboard(self._x, lambda: self.rest(5.0))
        self._hand = Hand(self._x, self._keyboard, self._tree, self.rest)
        self._png = Png(size)
        self._beside = ThreadPoolExecutor(1)
        self._home()

    def rest(self, within_s: float, *, starting: bool = False) -> bool:
        """Wait until nobody does anything, nor will very soon."""
        self._x.sync()
        return settle(os.getpid(), within_s, soon_ms=START_MS if starting else FRAME_MS)

    def _home(self) -> None:
        """The pointer where nothing is."""
        self._x.move(self._x.size[0] - 1, self._x.size[1] - 1)
        self._x.sync()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a request gives."""
        if self._programs.lost():
            raise StartFailed("a program of the display itself has ended")
        with self._programs.watching.still():
            answered: dict[str, Any] = getattr(self, f"do_{asked['op']}")(asked)
        return answered

    def do_launch(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See `Screen.launch`."""
        before = set(self._x.windows())
        try:
            started = self._programs.launch(asked["argv"], asked["env"])

            def why() -> str:
                return f"{asked['argv'][0]} shows no window: {self._programs.said('program')}"

            def there() -> bool:
                if started.poll() not in (None, 0):
                    raise StartFailed(why())
                return bool(set(self._x.windows()) - before)

            self._programs.until(there, asked["within_s"], why)
        except StartFailed as error:
            return {"fault": str(error)}
        self.rest(asked["within_s"], starting=True)
        self._tree.look()  # the first look gives a program something to do, which is part of its start
        return {"fault": "", "settled": self.rest(asked["within_s"], starting=True)}

    def do_act(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See `Screen.act`."""
        fault = self._hand.do(asked["kind"], asked["given"])
        return {"fault": fault, "settled": self.rest(asked["settle_s"])}

    def do_thorough(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Whether `clear` finds what programs leave outside of their home."""
        return {"thorough": self._programs.thorough}

    def do_view(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See `Screen.view`."""
        seen: dict[str, Any] = {"cut": 0}
        # compressed while programs tell their trees
        image = self._beside.submit(self._png.of, self._x.frames.take()) if asked["image"] else None
        if asked["tree"]:
            seen["tree"], seen["cut"] = self._tree.look()
        if asked["windows"]:
            active = self._x.active()
            seen["windows"] = [
                {"title": self._x.title(one), "box": self._x.box(one), "active": one == active}
                for one in self._x.windows()
            ]
        if asked["files"]:
            seen["files"] = digests(str(self._programs.home))
        if image is not None:
            seen["image"] = base64.b64encode(image.result()).decode()
        return seen

    def do_clear(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See `Screen.clear`."""
        self._programs.clear()
        self._x.restore()
        self._keyboard.forget()
        self._home()
        settled = self.rest(_START_S)
        self._tree.forget()
        return {"settled": settled}

    def do_watch(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A VNC server; where it listens, or why there is none. See `DesktopScreen.watched`."""
        try:
            return {"fault": "", "port": self._programs.watching.begin(control=asked["control"])}
        except OSError as error:
            return {"fault": f"{error}; it said: {self._programs.said('vnc')}"}

    def do_unwatch(self, asked: dict[str, Any]) -> dict[str, Any]:
        """No VNC server any more."""
        self._programs.watching.end()
        return {}

    def do_close(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The end."""
        self._programs.end()
        return {"closed": True}


def main(given: dict[str, Any]) -> NoReturn:
    """The whole life of a display, in the workdir, the home of its programs. `given`: see `open_desktop`."""
    try:  # by it is known when programs rest, and which there are to end; landlock refuses what access(2) allows
        os.listdir("/proc")
    except PermissionError:
        sys.exit(NO_PROC)
    top = tempfile.mkdtemp(prefix="desktop-")
    code = 1
    try:
        desktop = Desktop(f"{top}/desk", (given["width"], given["height"]), alone=given["alone"])
        mailbox = Mailbox(top, given["most"], str)
        assert mailbox.fd is not None
        mailbox.say({"ready": top, "knock": False})
        code = _serve(desktop, mailbox, mailbox.fd)
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        shutil.rmtree(top, ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)


def _serve(desktop: Desktop, mailbox: Mailbox, fd: int) -> int:
    while True:
        select.select([fd], [], [])
        for head, _body in mailbox.requests():
            try:
                answer = desktop.answer(dict(head))
            except (StartFailed, BusGone) as error:
                answer = {"failed": str(error)}
            mailbox.say({"id": head["id"], **answer})
            if "closed" in answer:
                return 0
