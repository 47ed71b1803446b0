"""`check_interpreter`: the contract of interpreters, executable, for ours and for third parties' ones.

Each check is one paragraph of `envgym.interpreter`; a failed one raises AssertionError with the sentence that was
broken. They use nothing but the contract; what an implementation adds to it is its own tests' matter.
"""

import time
from collections.abc import Awaitable, Callable

from envgym.errors import EnvgymError, SnapshotGone
from envgym.interpreter import CellResult, Interpreter

__all__ = ["check_interpreter"]

Open = Callable[[], Awaitable[Interpreter]]
_SLACK_S = 10.0
"""How late a busy machine may be."""


async def check_interpreter(open_one: Open, *, output_bytes: int) -> list[str]:
    """Run every check, each on an interpreter that `open_one` opened; returns the names of those that ran.

    output_bytes: what is kept of each output of a cell, `Resources.output_bytes` of its sandbox. Raises
    AssertionError.
    """
    for check in _CHECKS:
        async with await open_one() as one:
            await check(one)
    async with await open_one() as one:
        await _output(one, output_bytes)
    await _closing(await open_one())
    return [check.__name__.strip("_") for check in (*_CHECKS, _output, _closing)]


async def _value(one: Interpreter, code: str) -> str | None:
    """The value of a cell that must succeed."""
    result = await one.run(code)
    assert result.ok, f"the cell {code!r} must succeed: {result}"
    return result.value


def _is_error(result: CellResult, kind: str, *parts: str) -> None:
    assert result.error is not None, f"it must fail with {kind}: {result}"
    assert result.error.type == kind, f"it must fail with {kind}: {result}"
    for part in parts:
        assert part in "\n".join(result.error.traceback), f"the traceback must show {part!r}: {result}"


async def _raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], awaitable: Awaitable[object], what: str
) -> None:
    try:
        got = await awaitable
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind}; it gave {got!r}")


async def _cells(one: Interpreter) -> None:
    assert await _value(one, "x = 20") is None, "a statement has no value"
    assert await _value(one, "x += 1\nx * 2") == "42", "variables persist; the last expression's value is shown"
    assert await _value(one, "'a b'") == "'a b'", "a value is shown as its repr"
    assert await _value(one, "None") is None, "None is not shown"
    assert await _value(one, "x if x else None;\nx + 1") == "22", "only the last expression is shown"
    assert await _value(one, "for i in range(3):\n    i\n") is None, "a block has no value"
    assert await _value(one, "") is None, "an empty cell does nothing"
    assert await _value(one, "# a comment") is None, "nor does a comment"
    assert await _value(one, "def twice(n):\n    return 2 * n\ntwice(x)") == "42", "functions persist"
    result = await one.run("import sys; print('out'); print('err', file=sys.stderr); 7")
    assert (result.stdout, result.stderr, result.value) == ("out\n", "err\n", "7"), f"outputs are apart: {result}"
    result = await one.run("import subprocess; subprocess.run(['sh', '-c', 'echo child; echo no >&2'])")
    assert (result.stdout, result.stderr) == ("child\n", "no\n"), f"child processes write there too: {result}"
    assert await _value(one, "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.sleep(0, 'slept')") == "'slept'"
    assert await _value(one, "asyncio.run(asyncio.sleep(0, 'own'))") == "'own'", "a cell may run a loop of its own"
    assert await _value(one, "'é\\ud800'.encode('utf-8', 'replace')") == "b'\\xc3\\xa9?'", "text is Unicode"
    result = await one.run("import os; os.write(1, b'\\xff\\x00'); raise ValueError('\\ud800')")
    assert result.error is not None
    assert (result.stdout + result.error.message).encode(), f"what is shown can be stored: {result!r}"


async def _errors(one: Interpreter) -> None:
    result = await one.run("def half(n):\n    return 1 / n\n\nkept = 1\nhalf(0)")
    _is_error(result, "ZeroDivisionError", "line 5, in <module>", "half(0)", "line 2, in half", "return 1 / n")
    assert result.error is not None
    assert result.error.message == "division by zero", f"the message is the exception's: {result}"
    first = result.error.traceback[1]
    assert "line 5" in first, f"the traceback begins at the cell, not in the interpreter: {result}"
    assert result.state == "kept", f"an exception keeps the variables: {result}"
    assert await _value(one, "kept") == "1", "what a cell did before it failed stays"
    _is_error(await one.run("half(0)"), "ZeroDivisionError", "half(0)", "return 1 / n")
    _is_error(await one.run("x = = 1"), "SyntaxError", "x = = 1", "^")
    _is_error(await one.run("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e"), "KeyError",
              "ZeroDivisionError", "direct cause", "1 / 0")  # fmt: skip
    _is_error(await one.run("input('? ')"), "EOFError")
    _is_error(await one.run("exit(3)"), "SystemExit")
    _is_error(
        await one.run("class Odd:\n    def __repr__(self):\n        raise ValueError('no')\nOdd()"), "ValueError"
    )
    _is_error(await one.run("def deep(n):\n    return deep(n + 1)\ndeep(0)"), "RecursionError", "deep(n + 1)")
    assert await _value(one, "kept") == "1", "all of that leaves the variables alone"


async def _output(one: Interpreter, limit: int) -> None:
    count = 40 * limit
    result = await one.run(f"print('first' + 'x' * {count} + 'last')")
    assert result.ok, f"a flood is no failure: {result.error}"
    assert result.stdout.startswith("first"), "the head of a long output is kept"
    assert result.stdout.endswith("last\n"), "the tail of a long output is kept"
    assert len(result.stdout) < 2 * limit + 200, f"{limit} bytes are kept, not {len(result.stdout)}"
    assert result.lost_bytes == (count + 10 - limit, 0), f"lost bytes are counted: {result.lost_bytes}"
    assert "left out" in result.stdout, "a mark stands for what is left out"
    result = await one.run(f"'y' * {count}")
    assert result.value is not None, "a long value is shown"
    assert len(result.value) < 2 * limit + 200, "a long value is bounded like an output"
    assert "left out" in result.value, "and marked like one"


async def _deadlines(one: Interpreter) -> None:
    began = time.monotonic()
    result = await one.run("kept = 1\nprint('early')\nwhile True:\n    pass", timeout_s=0.5)
    assert result.timed_out, f"a deadline is reported: {result}"
    _is_error(result, "KeyboardInterrupt", "in <module>")
    assert result.stdout == "early\n", f"what was written before the deadline is kept: {result}"
    assert result.state == "kept", f"an interrupt keeps the variables: {result}"
    assert await _value(one, "kept") == "1", "what was done before the deadline stays"
    stubborn = (
        "kept = 2\nimport time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException: pass"
    )
    result = await one.run(stubborn, timeout_s=0.5)
    assert (result.timed_out, result.state) == (True, "rolled back"), f"who ignores an interrupt is ended: {result}"
    assert await _value(one, "kept") == "1", "the variables are then what they were before the cell"
    assert time.monotonic() - began < 5 + _SLACK_S, "a deadline ends a cell when it says"
    await _raises(ValueError, one.run("1", timeout_s=0), "a deadline of zero")


async def _deaths(one: Interpreter) -> None:
    await one.run("x = [1]; import os, ctypes, signal")
    for code in (
        "x.append(2); os._exit(0)",
        "x.append(2); print('said'); os.kill(os.getpid(), signal.SIGKILL)",
        "x.append(2); ctypes.string_at(0)",
        "x.append(2); import builtins; vars(builtins).clear()",
        "x.append(2); os.closerange(3, 4096)",
    ):
        result = await one.run(code)
        _is_error(result, "CellDied")
        assert result.state == "rolled back", f"the end of its process undoes a cell's variables: {code!r} {result}"
        assert ("said" in code) == (result.stdout == "said\n"), f"what it wrote before is kept: {result}"
        assert await _value(one, "x") == "[1]", f"the state before the cell goes on after {code!r}"
    assert await _value(one, "x.append(2)\nx") == "[1, 2]", "and it goes on as before"


async def _forks(one: Interpreter) -> None:
    await one.run("import random; random.seed(5); x = [1]; f = lambda: x; g = (n for n in range(9)); next(g)")
    async with await one.fork() as left, await one.fork() as right:
        for branch in (one, left, right):
            assert branch.unforked == (), f"nothing of this is beyond a fork: {branch.unforked}"
        draws = {await _value(branch, "random.random(), next(g), len(x)") for branch in (one, left, right)}
        assert len(draws) == 1, f"a fork has its original's future, random numbers included: {draws}"
        await left.run("f().append('left'); y = 1")
        await one.run("f().append('one')")
        assert await _value(right, "x") == "[1]", "nothing done in a branch is seen in a sibling"
        assert await _value(one, "x") == "[1, 'one']", "nothing done in a fork is seen in its parent"
        _is_error(await right.run("y"), "NameError")
        async with await left.fork() as below:
            assert await _value(below, "f() is x, x, y") == "(True, [1, 'left'], 1)", (
                "a fork of a fork continues it"
            )
            await left.close()
            assert await _value(below, "y + 1") == "2", "a branch outlives the one that it was forked from"
        await right.run("import os; os._exit(1)")
    assert await _value(one, "x") == "[1, 'one']", "what happens to a fork leaves its parent alone"


async def _files(one: Interpreter) -> None:
    await one.run(
        "open('a.txt', 'w').write('one'); import os; os.mkdir('d'); os.chdir('d'); log = open('log', 'w')"
    )
    await one.run("log.write('begin '); log.flush()")
    async with await one.fork() as fork:
        if fork.directory == one.directory or fork.unforked:
            return  # it says that files are shared, or that it cannot tell which are open
        await fork.run(
            "open('../a.txt', 'w').write('fork'); log.write('fork'); log.flush(); open('new', 'w').close()"
        )
        await one.run("log.write('one'); log.flush()")
        assert await _value(one, "open('../a.txt').read(), open('log').read(), os.listdir()") == (
            "('one', 'begin one', ['log'])"
        ), "files of relative names are each branch's own"
        assert await _value(fork, "open('../a.txt').read(), open('log').read(), sorted(os.listdir())") == (
            "('fork', 'begin fork', ['log', 'new'])"
        ), "and a fork begins with its parent's, open ones included"


async def _snapshots(one: Interpreter) -> None:
    await one.run("x = 1")
    kept = await one.snapshot()
    await one.run("x = 2")
    for _ in range(2):
        async with await one.restore(kept) as again:
            assert await _value(again, "x") == "1", "a restored state is the very state"
            await again.run("x = 3")
    assert await _value(one, "x") == "2", "restoring leaves the branch alone"
    await one.release(kept)
    await _raises(SnapshotGone, one.restore(kept), "restoring what was released")
    await _raises(SnapshotGone, one.release(kept), "releasing once too often")


async def _looking(one: Interpreter) -> None:
    assert await one.names() == (), "a new interpreter has no variables"
    await one.run("b = [1, 2]; a = 'x'; _hidden = 1\ndef f(n):\n    return n\nclass C: pass\nc = C()")
    names = {variable.name: variable for variable in await one.names()}
    assert list(names) == ["C", "a", "b", "c", "f"], f"the user's variables, sorted: {names}"
    assert (names["b"].type, names["b"].text) == ("list", "[1, 2]"), f"type and repr: {names['b']}"
    assert "0x" not in names["c"].text, f"no address, which would differ every time: {names['c']}"
    before = await one.digest()
    async with await one.fork() as fork:
        assert await fork.digest() == before, "the same variables have the same digest"
        await fork.run("b.append(3)")
        assert await fork.digest() != before, "other content, other digest"
        await fork.run("b.pop()")
        assert await fork.digest() == before, "how a state was reached does not count"
        await fork.run("def f(n):\n    return n + 1")
        assert await fork.digest() != before, "a function is what it does"
    await one.run(
        "class Loud:\n    def __repr__(self):\n        global b\n        b = 0\n        return ''\nloud = Loud()"
    )
    await one.names()
    assert await _value(one, "b") == "[1, 2]", "looking changes nothing, whatever a repr does"


async def _closing(one: Interpreter) -> None:
    fork = await one.fork()
    await one.close()
    await one.close()
    await _raises(ValueError, one.run("1"), "a cell after close")
    await _raises(ValueError, one.fork(), "a fork after close")
    assert await _value(fork, "1") == "1", "a branch is not closed with another"
    kept = await fork.snapshot()
    await fork.close()
    await _raises((ValueError, EnvgymError), fork.restore(kept), "a kept state after the last branch is closed")


_CHECKS: tuple[Callable[[Interpreter], Awaitable[None]], ...] = (
    _cells,
    _errors,
    _deadlines,
    _deaths,
    _forks,
    _files,
    _snapshots,
    _looking,
)
