"""The display of the contract `envgym.screen`, inside any sandbox whose image has the programs for it.

The sources of `inside` run in the sandbox under Debian's Python, with nothing but its standard library. Only the
contract of `Sandbox` is used: its walls, limits and end are the display's.
"""

import base64
import json
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envgym.errors import EnvironmentFailure, InfrastructureFailure, SandboxDied, SandboxUnavailable
from envgym.sandbox import Sandbox
from envgym.screen import Acted, Box, Node, ScreenAction, ScreenView, Wait, Window
from envgym_sandboxes.desktop.inside.rest import NO_PROC
from envgym_sandboxes.interpreter_line import Down, Line
from envgym_sandboxes.interpreter_server import BOOT

__all__ = ["PACKAGES", "VIEWER_PACKAGE", "DesktopScreen", "open_desktop"]

PACKAGES = ("xvfb", "openbox", "dbus-daemon", "at-spi2-core", "libxtst6", "python3")
"""Debian's packages that a display needs, without any application."""
VIEWER_PACKAGE = "tigervnc-scraping-server"
"""Debian's package that shows a display by VNC."""
_PYTHON = "/usr/bin/python3"
_START_S = 120.0
_SLACK_S = 60.0
_LEAST, _MOST = 200, 4096
_HERE = Path(__file__).resolve().parents[1]


async def open_desktop(
    sandbox: Sandbox, *, width: int = 800, height: int = 600, settle_s: float = 3.0, alone: bool = False
) -> "DesktopScreen":
    """Start a display in a sandbox: X server, window manager, private buses; no program yet.

    width, height: pixels. settle_s: how long an action waits at most for all programs to rest. The workdir is the
    home of programs: `clear` empties it. alone: nothing else uses this sandbox, so that `clear` also removes every
    file that is new anywhere in it (not in /usr, and only where the sandbox has layers of its own). Raises
    ValueError for an option that cannot be; SandboxUnavailable when packages are missing, or where /proc is hidden;
    SandboxDied.
    """
    for name, value in (("width", width), ("height", height)):
        if not _LEAST <= value <= _MOST:
            raise ValueError(f"{name} is {value}; it must be {_LEAST} to {_MOST} pixels")
    if not 0 < settle_s <= 60:
        raise ValueError(f"settle_s is {settle_s}; it must be above 0 and at most 60")
    given = {
        "sources": _sources(),
        "main": "envgym_sandboxes.desktop.inside.main",
        "most": sandbox.world.resources.output_bytes // 2,
        "width": width,
        "height": height,
        "alone": alone,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(given).encode()))
    # bytecode is not written: the home is to be as it was
    line = Line(sandbox, await sandbox.start([_PYTHON, "-B", "-c", BOOT], stdin=packed))
    try:
        await line.ready(_START_S)
    except Down as error:
        hidden = NO_PROC in str(error)
        fix = (
            "Use a sandbox that shows its own processes: namespace, docker or local"
            if hidden
            else f"It needs Debian's packages {', '.join(PACKAGES)}: apt-get install --no-install-recommends "
            + " ".join(PACKAGES)
        )
        why = NO_PROC if hidden else error
        raise SandboxUnavailable(f"no display could be started in sandbox {sandbox.id}: {why}. {fix}") from None
    screen = DesktopScreen(sandbox, line, (width, height), settle_s)
    await screen.learn()
    return screen


@cache
def _sources() -> dict[str, str]:
    """Module names and texts of what runs inside."""
    here = "envgym_sandboxes.desktop.inside"
    inside = {f"{here}.{path.stem}": path for path in (_HERE / "desktop/inside").glob("*.py")}
    del inside[f"{here}.__init__"]
    alone = {"envgym_sandboxes.inside.mailbox": _HERE / "inside/mailbox.py"}
    alone["envgym_sandboxes.protocol"] = _HERE / "protocol.py"
    packages = ("envgym_sandboxes", "envgym_sandboxes.inside", "envgym_sandboxes.desktop")
    empty = dict.fromkeys((*packages, here), "")
    return empty | {name: path.read_text() for name, path in (inside | alone).items()}


class DesktopScreen:
    """See `envgym.screen.Screen`. Made by `open_desktop`."""

    def __init__(self, sandbox: Sandbox, line: Line, size: tuple[int, int], settle_s: float) -> None:
        self.sandbox, self.size = sandbox, size
        self._line, self._settle_s = line, settle_s
        self._closed = False
        self.thorough = False

    async def learn(self) -> None:
        """Ask what `thorough` is."""
        self.thorough = (await self._ask("thorough", 0.0))["thorough"]

    async def _ask(self, op: str, most_s: float, **given: Any) -> dict[str, Any]:
        if self._closed:
            raise RuntimeError(f"{op} on a display that is closed; open another")
        try:
            answer = await self._line.ask({"op": op, **given}, within_s=most_s + _SLACK_S)
        except Down as error:
            raise InfrastructureFailure(f"the display in sandbox {self.sandbox.id} is gone: {error}") from None
        if "failed" in answer:
            raise InfrastructureFailure(f"the display in sandbox {self.sandbox.id}: {answer['failed']}")
        return answer

    async def launch(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, within_s: float = 60.0
    ) -> None:
        """See the contract."""
        if isinstance(argv, str) or not argv:
            raise ValueError(f"argv is {argv!r}; it must be a program and its arguments, as a sequence")
        given = {"argv": list(argv), "env": dict(env or {}), "within_s": within_s}
        answer = await self._ask("launch", 2 * within_s, **given)
        if answer["fault"]:
            raise EnvironmentFailure(f"in sandbox {self.sandbox.id}: {answer['fault']}")

    async def act(self, action: ScreenAction) -> Acted:
        """See the contract."""
        settle_s = action.seconds if isinstance(action, Wait) else self._settle_s
        asked = {"kind": type(action).__name__, "given": asdict(action), "settle_s": settle_s}
        answer = await self._ask("act", settle_s, **asked)
        return Acted(answer["fault"], answer["settled"])

    async def view(
        self, *, tree: bool = True, image: bool = False, windows: bool = False, files: bool = False
    ) -> ScreenView:
        """See the contract."""
        seen = await self._ask("view", 0.0, tree=tree, image=image, windows=windows, files=files)
        return ScreenView(
            size=self.size,
            tree=tuple(map(_node, seen["tree"])) if tree else None,
            image=base64.b64decode(seen["image"]) if image else None,
            windows=tuple(Window(one["title"], Box(*one["box"]), one["active"]) for one in seen["windows"])
            if windows
            else None,
            cut=seen["cut"],
            files=seen.get("files"),
        )

    async def clear(self) -> None:
        """See the contract."""
        await self._ask("clear", _START_S)

    @asynccontextmanager
    async def watched(self, *, control: bool = False) -> AsyncIterator[tuple[str, int]]:
        """See the contract. Raises SandboxUnavailable where the sandbox has no `VIEWER_PACKAGE`."""
        answer = await self._ask("watch", _START_S, control=control)
        if answer["fault"]:
            raise SandboxUnavailable(
                f"the display in sandbox {self.sandbox.id} cannot be watched: {answer['fault']}. It needs Debian's "
                f"package {VIEWER_PACKAGE}: apt-get install --no-install-recommends {VIEWER_PACKAGE}"
            )
        try:
            async with self.sandbox.forward(answer["port"]) as place:
                yield place
        finally:
            if not self._closed:
                with suppress(InfrastructureFailure, SandboxDied):  # with the display its server ends
                    await self._ask("unwatch", 0.0)

    async def ended(self) -> None:
        """See the contract."""
        if not self._closed:
            with suppress(SandboxDied):
                await self._line.ended()

    async def close(self) -> None:
        """See the contract."""
        if self._closed:
            return
        try:
            await self._ask("close", 0.0)
            await self._line.ended()
        except InfrastructureFailure:  # it is gone: that is what was wanted
            pass
        finally:
            self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _node(told: dict[str, Any]) -> Node:
    return Node(
        told["ref"], told["role"], told["name"], Box(*told["box"]), told["depth"], tuple(told["states"]),
        told.get("text"),
    )  # fmt: skip
