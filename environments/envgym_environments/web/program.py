"""A web application that runs as a program in a sandbox of its own, for one episode.

Its network is the sandbox's: none. A request comes in by the sandbox's forwarded port, to which a socket of this
process leads (`tap`) that the episode's browser alone is told of. A reset is a fresh sandbox in the world's base
state, in which the program is started. Each time a document is asked for, the sandbox is snapshot, database and all
other files: from there the document can be loaded again, by a program that is started anew.
"""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from envgym.errors import EnvgymError, EnvironmentFailure, ReplayDiverged
from envgym.page import UnixSocket
from envgym.sandbox import Sandbox, SandboxBackend, SandboxSnapshot
from envgym.task import World
from envgym_environments.web.database import Database
from envgym_environments.web.service import ANSWER_S, Anchor, Kept
from envgym_environments.web.tap import Tap

__all__ = ["Program", "WebApp"]

_BESIDE = ("-journal", "-wal")
_MOST_WORLDS = 8
"""For so many of a backend's worlds programs wait: more are not played at once, and each has its memory."""

_LOOK_S, _PAUSE_S = 20.0, 1.0
"""One look whether what waits has ended, which ends sooner with its program; and between two: it may talk on."""

_KNOCK = b"OPTIONS * HTTP/1.0\r\n\r\n"
"""Whatever is answered to it says that somebody listens; no application takes it for a visit."""


@dataclass(frozen=True, slots=True)
class WebApp:
    """A web application as a program.

    name: of its host, which is NAME.test. start: the program and its arguments, run in the world's workdir. port:
    where it listens for HTTP/1 on the sandbox's loopback. database: the path of its SQLite file, absolute or
    relative to the workdir. env: variables beside the world's. start_s: within which it listens. answer_s: within
    which it begins to answer. ignored: tables that do not count (sessions, visits). It changes its files while it
    answers and not otherwise, and what counts is in its files: a restored one is started anew. Raises ValueError
    for what cannot be.
    """

    name: str
    start: tuple[str, ...]
    database: str
    port: int = 8000
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 60.0
    answer_s: float = ANSWER_S
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum() or not self.name.isascii() or self.name != self.name.lower():
            raise ValueError(f"WebApp.name is {self.name!r}; it must be small letters, digits and '-'")
        if isinstance(self.start, str) or not self.start:
            raise ValueError(f"WebApp.start is {self.start!r}; it must be a program and its arguments, as a tuple")
        if isinstance(self.ignored, str):
            raise ValueError(f"WebApp.ignored is {self.ignored!r}; it must be names of tables, as a tuple")
        if not self.database:
            raise ValueError("WebApp.database is ''; it must be the path of the application's SQLite file")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"WebApp.port is {self.port}; it must be 1 to 65535")
        for name in ("start_s", "answer_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"WebApp.{name} is {getattr(self, name)}; it must be positive")


@dataclass(slots=True)
class _Running:
    """A program that listens. target: where its port is reached. listening: ends that."""

    sandbox: Sandbox
    process: str
    target: tuple[str, int]
    listening: AsyncExitStack

    async def lives(self, *, wait_s: float = 0.0) -> bool:
        """Whether the program runs; wait_s: how long its end is waited for. Raises SandboxDied."""
        return (await self.sandbox.poll(self.process, wait_s=wait_s)).running

    async def close(self) -> None:
        await self.listening.aclose()
        await self.sandbox.close()


async def _started(app: WebApp, sandbox: Sandbox) -> _Running:
    """Start the program in a sandbox, which is closed where that fails."""
    listening = AsyncExitStack()
    try:
        process = await sandbox.start(list(app.start), env=dict(app.env))
        target = await listening.enter_async_context(sandbox.forward(app.port))
        await _listens(app, sandbox, process, target)
    except BaseException:
        await listening.aclose()
        await sandbox.close()
        raise
    return _Running(sandbox, process, target, listening)


async def _listens(app: WebApp, sandbox: Sandbox, process: str, target: tuple[str, int]) -> None:
    """Until the program answers anything. Raises EnvironmentFailure."""
    said = b""
    told = f"the web application {app.name!r}, {' '.join(app.start)[:200]}"
    try:
        async with asyncio.timeout(app.start_s):
            while not await _knocked(target):
                status = await sandbox.poll(process, wait_s=0.01)
                said = (said + status.stdout + status.stderr)[-500:]
                if not status.running:
                    raise EnvironmentFailure(
                        f"{told}, has ended with {status.exit_code}: {said.decode(errors='replace').strip()}"
                    )
    except TimeoutError:
        raise EnvironmentFailure(
            f"{told}, does not answer on port {app.port} within {app.start_s:g} s (WebApp.start_s); "
            f"it said: {said.decode(errors='replace').strip()}"
        ) from None


async def _knocked(target: tuple[str, int]) -> bool:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(*target)
        try:
            writer.write(_KNOCK)
            return bool(await reader.read(1))
        finally:
            writer.close()
            await writer.wait_closed()
    return False


class _Place:
    """What episodes of one application on one backend share.

    waiting: programs that were started ahead, the first one first, each with what lets go of it when it has ended,
    by itself or with its backend: a closed backend is held by nobody.
    """

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Task[_Running], asyncio.Task[None]] = {}
        self.pristine: bytes | None = None

    def begin(self, fresh: Coroutine[None, None, _Running]) -> None:
        """One more is started, and waits."""
        begun = asyncio.create_task(fresh)
        self.waiting[begun] = asyncio.create_task(self._until_it_ends(begun))

    def first(self) -> "asyncio.Task[_Running]":
        """The one that was started first, which waits no more."""
        begun = next(iter(self.waiting))
        self.waiting.pop(begun).cancel()
        return begun

    async def _until_it_ends(self, begun: "asyncio.Task[_Running]") -> None:
        await asyncio.wait((begun,))
        failed = begun.cancelled() or begun.exception() is not None
        if failed and not begun.cancelled() and not isinstance(begun.exception(), EnvgymError):
            return  # raised where it is taken
        with suppress(EnvgymError):
            while not failed and await begun.result().lives(wait_s=_LOOK_S):  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(_PAUSE_S)
        self.waiting.pop(begun, None)
        if not failed:
            with suppress(EnvgymError):  # of a sandbox that is gone nothing is left to be closed
                await begun.result().close()


_PLACES: "WeakKeyDictionary[SandboxBackend, dict[str, _Place]]" = WeakKeyDictionary()


class Program:
    """Implements `web.service.Service` in a sandbox of a world.

    ahead: so many programs are started before they are asked for, while episodes play, and wait on the backend
    until it is closed. Raises ValueError for less than none.
    """

    def __init__(self, app: WebApp, world: World, backend: SandboxBackend, *, ahead: int = 0) -> None:
        if ahead < 0:
            raise ValueError(f"ahead is {ahead}; it must be 0 or more programs that wait")
        self.name, self.asked = app.name, None  # type: str, Anchor | None
        self._app, self._world, self._backend, self._ahead = app, world, backend, ahead
        self._world_name = f"{app} {world.model_dump_json()}"
        self._place = _PLACES.setdefault(backend, {}).setdefault(self._world_name, _Place())
        self._tap = Tap(self._note, app.answer_s)
        self.door, self.quiet = self._tap.door, False  # nobody knows what its pages do by themselves
        self._running: _Running | None = None
        self._own: dict[str, SandboxSnapshot] = {}
        self._held = ""
        self._pristine = b""
        self._seen: tuple[bytes, str] = (b"", "")

    @property
    def origin(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.name}.test"

    @property
    def sandbox(self) -> Sandbox:
        """Where the program runs now. Raises RuntimeError before `reset`."""
        return self._there().sandbox

    def _there(self) -> _Running:
        if self._running is None:
            raise RuntimeError(f"the web application {self.name!r} is not started: call reset() first")
        return self._running

    async def open(self) -> UnixSocket:
        """See `Service`."""
        return UnixSocket(await self._tap.open())

    async def reset(self) -> None:
        """A fresh sandbox with the program started in it."""
        await self._end()
        self._run(await self._taken())
        self._pristine = self._place.pristine = await self._content()

    async def put(self, anchor: Anchor) -> None:
        """A sandbox in the state of an anchor, with the program started in it."""
        if anchor.sandbox is None:
            raise ValueError(f"this anchor of {anchor.path!r} has no sandbox: it is of an application elsewhere")
        await self._end()
        if self._place.pristine is None:  # an episode begins here that was not reset
            fresh = await self._taken()
            self._run(fresh)
            self._place.pristine = await self._content()
            await self._end()
        self._pristine = self._place.pristine
        self._run(await _started(self._app, await self._backend.restore(anchor.sandbox)))

    def _run(self, running: _Running) -> None:
        self._running, self._tap.target = running, running.target

    async def _taken(self) -> _Running:
        """One that waits and lives, else a new one; others are started in their place."""
        place, taken = self._place, None
        while taken is None and place.waiting:
            taken = await _living(place.first())
        taken = taken or await self._fresh()
        while len(place.waiting) < self._ahead:
            place.begin(self._fresh())
        await self._thinned()
        return taken

    async def _thinned(self) -> None:
        """Of other worlds no more wait than `_MOST_WORLDS`: the ones that were asked for longest ago are closed."""
        places = _PLACES[self._backend]
        places[self._world_name] = places.pop(self._world_name)  # the newest is the last
        for name in [name for name, place in places.items() if place.waiting][:-_MOST_WORLDS]:
            while places[name].waiting:
                begun = places[name].first()
                if not begun.done():
                    begun.cancel()
                    await asyncio.wait((begun,))
                if (ready := await _living(begun)) is not None:
                    await ready.close()

    async def _fresh(self) -> _Running:
        return await _started(self._app, await self._backend.create(self._world))

    async def _note(self, path: str, sent: str) -> None:
        """A document is asked for: what it will be made of. Of the ones before only what is held is kept."""
        taken = await self._there().sandbox.snapshot()
        self._own[taken.id] = taken
        self.asked = Anchor(path, sent, sandbox=taken)
        await self._let_go({taken.id, self._held})

    async def hold(self, anchor: Anchor) -> None:
        """Release what was taken for other documents."""
        self._held = anchor.sandbox.id if anchor.sandbox else ""
        await self._let_go({one.sandbox.id for one in (anchor, self.asked) if one is not None and one.sandbox})

    async def _let_go(self, but: set[str]) -> None:
        for name in [name for name in self._own if name not in but]:
            if (taken := self._own.pop(name, None)) is not None:  # a note may let go of it meanwhile
                await self._backend.release(taken)

    async def sound(self) -> None:
        """Wait until nothing is being answered. Raises EnvironmentFailure where the application failed."""
        await self._tap.quiet()
        crashed, self._tap.crashed = self._tap.crashed, None
        if crashed is not None:
            kind = type(crashed).__name__
            raise EnvironmentFailure(f"the web application {self.name!r} failed: {kind}: {crashed}") from crashed

    async def digest(self) -> str:
        """See `Service`."""
        content = await self._content()
        if content != self._seen[0]:
            database = self._opened(content)
            try:
                self._seen = content, database.digest()
            except sqlite3.DatabaseError as error:
                told = f"the database {self._app.database!r} of {self.name!r} (WebApp.database) cannot be read"
                raise EnvironmentFailure(f"{told}: {error}") from error
            finally:
                database.close()
        return self._seen[1]

    async def copied(self) -> Database:
        """See `Service`."""
        await self.digest()  # what cannot be read is found here, and not by who judges
        return self._opened(await self._content())

    def _opened(self, content: bytes) -> Database:
        return Database(self._pristine or content, content, ignored=self._app.ignored)

    async def _content(self) -> bytes:
        """The bytes of the database as it is now, with what is written beside it."""
        await self.sound()
        sandbox, name = self._there().sandbox, self._app.database
        try:
            content, beside = await sandbox.read(name), {}
        except OSError as error:
            raise EnvironmentFailure(
                f"the database {name!r} of {self.name!r} (WebApp.database) cannot be read: {error}"
            ) from error
        for ending in _BESIDE:
            with suppress(FileNotFoundError):
                beside[ending] = await sandbox.read(name + ending)
        if content[18:20] == b"\1\1" and not any(beside.values()):
            return content
        return await asyncio.to_thread(_whole, content, beside)

    async def keep(self, anchor: Anchor) -> Kept:
        """The digest of the rows that there are now, and the anchor's snapshot."""
        assert anchor.sandbox is not None
        now = await self.digest()
        await self._backend.retain(anchor.sandbox)
        return Kept(now, anchor.sandbox)

    async def catch_up(self, kept: Kept, task: str) -> None:
        """The rows must be those that there were. Raises ReplayDiverged."""
        if (now := await self.digest()) != kept.now:
            raise ReplayDiverged(
                f"the database of task {task!r} was restored as something else (digest {now} instead of "
                f"{kept.now}): what {self.name!r} changed since its last document was loaded came out otherwise"
            )

    async def release(self, kept: Kept) -> None:
        """See `Service`."""
        if kept.sandbox is not None:
            await self._backend.release(kept.sandbox)

    async def _end(self) -> None:
        running, self._running = self._running, None
        self.asked, self._tap.target = None, None
        await self._tap.cut()
        await self._let_go(set())
        if running is not None:
            await running.close()

    async def close(self) -> None:
        """End program and sandbox. Idempotent."""
        await self._tap.close()
        await self._end()


async def _living(begun: "asyncio.Task[_Running]") -> _Running | None:
    """What was started ahead; None where that failed, or it has died since: it is tried again, in the open."""
    try:
        await asyncio.wait((begun,))
    except asyncio.CancelledError:
        begun.cancel()  # nobody else knows of it
        raise
    if begun.cancelled() or isinstance(begun.exception(), EnvgymError):
        return None
    running = begun.result()
    with suppress(EnvgymError):
        if await running.lives():
            return running
    with suppress(EnvgymError):  # of a sandbox that is gone nothing is left to be closed
        await running.close()
    return None


def _whole(content: bytes, beside: Mapping[str, bytes]) -> bytes:
    """A database file with what its journal or log says, as one file without them. Raises EnvironmentFailure."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "database")
        for ending, written in {"": content, **beside}.items():
            with open(path + ending, "wb") as file:
                file.write(written)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            return connection.serialize()
        except sqlite3.DatabaseError as error:
            raise EnvironmentFailure(f"the application's database cannot be read: {error}") from error
        finally:
            connection.close()
