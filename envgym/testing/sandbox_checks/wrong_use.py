"""Wrong use: what no sandbox could take is refused everywhere in the same words, and nothing is lost by it."""

import math
import re
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import Tree, World
from envgym.testing.sandbox_checks.common import Check

__all__ = ["BOUNDS", "CHECKS", "COMMANDS", "FILES", "PORTS", "refused"]

Wrong = tuple[str, type[Exception], str, Callable[[Any], Awaitable[object]]]


def _timed(sandbox: Any, timeout_s: Any) -> Awaitable[object]:
    return sandbox.exec(["true"], timeout_s=timeout_s)  # type: ignore[no-any-return]


async def _entered(sandbox: Any, port: Any) -> None:
    async with sandbox.forward(port):
        return


COMMANDS: tuple[Wrong, ...] = (
    ("no command", TypeError, "command is None; .* str .* list", lambda s: s.exec(None)),
    ("a command of bytes", TypeError, "command is b'echo'; .* str .* list", lambda s: s.exec(b"echo")),
    ("a word of bytes", TypeError, r"command\[0\] is b'echo'; .* str", lambda s: s.exec([b"echo"])),
    ("an empty argv", ValueError, r"command is \[\]; .* program", lambda s: s.exec([])),
    ("a NUL in a command", ValueError, "command is .* NUL", lambda s: s.exec("a\0b")),
    ("a NUL in a word", ValueError, r"command\[1\] is .* NUL", lambda s: s.exec(["echo", "a\0"])),
    ("half a character", ValueError, "command is .* Unicode", lambda s: s.exec("echo \ud800")),
    ("a text as input", TypeError, r"stdin is 'abc'; .* bytes.*encode", lambda s: s.exec("cat", stdin="abc")),
    ("a list as environment", TypeError, "env is .* mapping", lambda s: s.exec("true", env=["A=1"])),
    ("a number as a variable", TypeError, r"env\['A'\] is 1; .* str", lambda s: s.exec("true", env={"A": 1})),
    ("a NUL in a variable", ValueError, r"env\['A'\] is .* NUL", lambda s: s.exec(["true"], env={"A": "\0"})),
    ("a name with =", ValueError, "env has 'A=B'", lambda s: s.exec(["true"], env={"A=B": "1"})),
    ("no shell's name", ValueError, "env has 'A.B'.* argv", lambda s: s.exec("true", env={"A.B": "1"})),
    ("a NUL in a directory", ValueError, "cwd is .* NUL", lambda s: s.exec("true", cwd="/a\0")),
    ("a number as directory", TypeError, "cwd is 5; .* str", lambda s: s.exec("true", cwd=5)),
    ("a string to start", TypeError, "argv is the string 'sleep 9'.*bash", lambda s: s.start("sleep 9")),
    ("an empty argv to start", ValueError, "argv is .* program", lambda s: s.start([])),
    ("a text as its input", TypeError, "stdin is 'x'; .* bytes", lambda s: s.start(["cat"], stdin="x")),
)

BOUNDS: tuple[Wrong, ...] = (
    ("output of 1e4", TypeError, "output_bytes is 10000.0; .* int", lambda s: s.exec("true", output_bytes=1e4)),
    ("output of nothing", ValueError, "output_bytes is 0; .* from 1", lambda s: s.exec("true", output_bytes=0)),
    ("output without end", ValueError, "output_bytes is .* to", lambda s: s.exec("true", output_bytes=1 << 40)),
    ("output of True", TypeError, "output_bytes is True", lambda s: s.exec("true", output_bytes=True)),
    ("time as a text", TypeError, "timeout_s is '5'; .* number", lambda s: s.exec("true", timeout_s="5")),
    *(
        (
            f"{wrong} seconds",
            ValueError,
            f"timeout_s is {wrong}; .* finite",
            partial(_timed, timeout_s=wrong),
        )
        for wrong in (math.nan, math.inf, 0, -1.0)
    ),
    ("endless waiting", ValueError, "wait_s is inf; .* finite", lambda s: s.poll("p1", wait_s=math.inf)),
    ("waiting for a text", TypeError, "wait_s is '1'; .* number", lambda s: s.poll("p1", wait_s="1")),
    ("a process's number", TypeError, "process is 1; .* str", lambda s: s.poll(1)),
    ("a signal's name", TypeError, "number is 'KILL'; .* signal.SIG", lambda s: s.signal("p1", "KILL")),
    ("a signal that is none", ValueError, "number is 65; .* 1 to 64", lambda s: s.signal("p1", 65)),
)

FILES: tuple[Wrong, ...] = (
    ("a number as path", TypeError, "path is 5; .* str", lambda s: s.read(5)),
    ("a path of bytes", TypeError, "path is b'f'; .* str", lambda s: s.read(b"f")),
    ("a NUL in a path", ValueError, "path is .* NUL", lambda s: s.read("a\0b")),
    ("a text as content", TypeError, "content is 'text'; .* bytes.*encode", lambda s: s.write("f", "text")),
    ("a NUL in what is written", ValueError, "path is .* NUL", lambda s: s.write("a\0b", b"")),
    ("a source that is none", TypeError, "source is None; .* str", lambda s: s.put(None, "x")),
    ("a target that is none", TypeError, "target is None; .* str", lambda s: s.get("given.txt", None)),
)

PORTS: tuple[Wrong, ...] = tuple(
    (f"port {wrong!r}", kind, f"port is {wrong!r}; ", partial(_entered, port=wrong))
    for wrong, kind in (
        (0, ValueError),
        (99999, ValueError),
        ("80", TypeError),
        (80.0, TypeError),
        (None, TypeError),
    )
)


async def refused(sandbox: Sandbox | None, wrong: Wrong) -> None:
    """Raise AssertionError unless asking for what is wrong raises as it says."""
    what, kind, pattern, ask = wrong
    met: Exception | None = None
    try:
        await ask(sandbox)
    except Exception as error:
        met = error
    assert type(met) is kind, f"{what} must raise {kind.__name__}, not {met!r}"
    assert re.search(pattern, str(met)), f"{what}: the error says name, value and what to give: {met}"


async def _wrong_arguments(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.exec("kept=yes")
        for wrong in (*COMMANDS, *BOUNDS, *FILES, *PORTS):
            await refused(sandbox, wrong)
        result = await sandbox.exec("echo $kept")
        assert result.stdout == b"yes\n", f"wrong arguments cost a sandbox nothing: {result}"


async def _paths_are_paths(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.write(Path("sub/file"), b"text")
        assert await sandbox.read(Path("sub/file")) == b"text", "a pathlib.Path is a path"
        result = await sandbox.exec(["cat", Path("file")], cwd=Path(world.workdir, "sub"), timeout_s=1e9)  # type: ignore[list-item]
        assert result.stdout == b"text", f"a directory too, and time is no matter: {result}"


async def _no_snapshot_no_world(backend: SandboxBackend, world: World) -> None:
    given: Any = backend
    asked: tuple[tuple[str, Callable[[Any], Awaitable[object]]], ...] = (
        ("world is None; .* World", lambda _: given.create(None)),
        ("snapshot is 'x'; .* SandboxSnapshot", lambda _: given.restore("x")),
        ("snapshot is 'x'; .* SandboxSnapshot", lambda _: given.retain("x")),
        ("snapshot is 'x'; .* SandboxSnapshot", lambda _: given.release("x")),
        ("snapshot is 'x'; .* SandboxSnapshot", lambda _: given.export_snapshot("x", "/nonexistent/x")),
    )
    for pattern, ask in asked:
        await refused(None, (pattern, TypeError, pattern, ask))
    async with await backend.create(world) as sandbox:
        wrong = ("a comparison with a text", TypeError, "since is 'x'; .* SandboxSnapshot", lambda s: s.diff("x"))
        await refused(sandbox, wrong)


_WORLDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("World.setup", {"setup": ("a\0",)}),
    ("World.env", {"env": {"A": "\0"}}),
    ("World.workdir", {"workdir": "relative"}),
    *(("World.workdir", {"workdir": taken}) for taken in ("/usr", "/proc", "/etc/x")),
    ("World.files", {"files": {"/work/a": "", "/work/a/b": ""}}),
    ("World.files", {"files": {"/tmp": ""}}),
    ("World.trees", {"trees": (Tree(source="/nonexistent", target="/work/t"),)}),
    ("network", {"network": "yes"}),
    ("World.preload", {"preload": ("no module",)}),
)
_RESOURCES: tuple[tuple[str, Any], ...] = (
    *(("cpus", wrong) for wrong in (0.0001, 1e9, math.inf)),
    ("pids", 1 << 40),
    ("memory_bytes", 1.5e9),
    ("command_s", math.inf),
)


async def _impossible_worlds(backend: SandboxBackend, world: World) -> None:
    own = world.resources
    bounds = [(name, {"resources": own.model_copy(update={name: value})}) for name, value in _RESOURCES]
    for name, update in (*_WORLDS, *bounds):
        wrong = world.model_copy(update=update)  # which checks nothing
        met: Exception | None = None
        try:
            await backend.create(wrong)
        except Exception as error:
            met = error
        assert isinstance(met, ValueError), f"a world with {update} is refused with ValueError, not {met!r}"
        assert name in str(met), f"a refusal of {update} names the field: {met}"


async def _preload_of_nothing(backend: SandboxBackend, world: World) -> None:
    wanted = world.model_copy(update={"preload": ("envgym_no_such_module",)})
    try:
        sandbox = await backend.create(wanted)
    except ValueError as error:
        said = str(error)
        assert "World.preload" in said, f"what cannot be imported is refused by field: {said}"
        assert "envgym_no_such_module" in said, f"what cannot be imported is refused by name: {said}"
        return
    async with sandbox:  # without a warm interpreter nothing is imported before it is used
        result = await sandbox.exec("echo runs")
        assert result.stdout == b"runs\n", f"a world whose modules nobody imports works: {result}"


async def _errors_of_files_name_them(backend: SandboxBackend, world: World) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        here, there = Path(scratch, "here"), f"{world.workdir}/given.txt"
        async with await backend.create(world) as sandbox:
            asked: tuple[tuple[str, Awaitable[object], type[OSError], str], ...] = (
                ("read", sandbox.read("nope"), FileNotFoundError, "nope"),
                ("read of a directory", sandbox.read(world.workdir), IsADirectoryError, world.workdir),
                ("write", sandbox.write(world.workdir, b""), IsADirectoryError, world.workdir),
                ("write below a file", sandbox.write(f"{there}/x", b""), NotADirectoryError, f"{there}/x"),
                ("get", sandbox.get("nope", here), FileNotFoundError, "nope"),
                ("put", sandbox.put(here, "x"), FileNotFoundError, str(here)),
                (
                    "put below a file",
                    sandbox.put(__file__, f"{there}/x"),
                    NotADirectoryError,
                    f"{there}/x",
                ),
            )
            for what, asking, kind, path in asked:
                met: Exception | None = None
                try:
                    await asking
                except Exception as error:
                    met = error
                assert type(met) is kind, f"{what} raises {kind.__name__}, not {met!r}"
                assert met.filename == path, f"{what}: the error's filename is {path!r}: {met!r}"
                assert repr(path) in str(met), f"{what}: the error says which file: {met}"


CHECKS: tuple[Check, ...] = (
    _wrong_arguments,
    _paths_are_paths,
    _no_snapshot_no_world,
    _impossible_worlds,
    _preload_of_nothing,
    _errors_of_files_name_them,
)
