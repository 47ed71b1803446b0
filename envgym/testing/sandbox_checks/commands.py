"""Commands: argv, the persistent shell, output, deadlines."""

import time

from envgym.sandbox import WARM_PYTHON, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check

__all__ = ["CHECKS"]


async def _argv_commands(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        result = await sandbox.exec(["sh", "-c", "pwd; printf err >&2; exit 7"])
        assert result.exit_code == 7, f"the exit status is the process's: {result}"
        assert result.stdout.decode().strip() == world.workdir, f"an argv runs in the workdir: {result}"
        assert result.stderr == b"err", f"standard error is kept apart: {result}"
        assert not result.ok, "status 7 is not ok"
        result = await sandbox.exec(["sh", "-c", "kill -9 $$"])
        assert result.exit_code == -9, f"a signal is a negative status: {result}"
        assert not result.timed_out, "killing itself is not a time-out"
        result = await sandbox.exec(
            ["sh", "-c", "cat; printf '%s' \"$EXTRA\""], stdin=b"in\x00put", env={"EXTRA": "é"}
        )
        assert result.stdout == b"in\x00put\xc3\xa9", f"stdin is bytes, NUL included, and env is added: {result}"
        result = await sandbox.exec(["sh", "-c", 'printf %s "$EXTRA"'])
        assert result.stdout == b"", "the environment of one command is not the next one's"
        result = await sandbox.exec(["cat"])
        assert result.ok, f"no stdin given means an empty one, not a wait: {result}"
        result = await sandbox.exec(["no-such-program-anywhere"])
        assert result.exit_code == 127, f"a missing program is the model's fault, so it is data: {result}"
        await sandbox.exec(["mkdir", "-p", "below"])
        result = await sandbox.exec(["pwd"], cwd="below")
        assert result.stdout.decode().strip().endswith("/below"), f"cwd is relative to the workdir: {result}"
        result = await sandbox.exec([WARM_PYTHON, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "x"])
        assert (result.exit_code, result.stdout) == (3, b"['x']\n"), (
            f"a warm interpreter is an interpreter: {result}"
        )


async def _the_shell(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        result = await sandbox.exec("cat given.txt; false")
        assert (result.exit_code, result.stdout) == (1, b"given\n"), (
            f"a string runs in the workdir's shell: {result}"
        )
        await sandbox.exec("mkdir -p deep && cd deep; plain=1; export shared='two words'; list=(a 'b c')")
        await sandbox.exec("greet() { echo \"hello $1\"; }; alias ll='echo listed'; set -o noclobber; umask 027")
        result = await sandbox.exec('basename "$PWD"; echo "$plain:$shared:${list[1]}"; greet you; umask')
        assert result.stdout == b"deep\n1:two words:b c\nhello you\n0027\n", f"shell state survives: {result}"
        result = await sandbox.exec(["sh", "-c", 'basename "$PWD"; echo "$shared"'])
        assert b"deep" not in result.stdout, f"an argv is not run in the shell's directory: {result}"
        assert b"two words" not in result.stdout, f"an argv has the world's environment, not the shell's: {result}"
        result = await sandbox.exec("exit 5")
        assert result.exit_code == 5, f"leaving the shell is the command's status: {result}"
        result = await sandbox.exec('greet again; basename "$PWD"')
        assert result.stdout == b"hello again\ndeep\n", f"the next shell starts from the last state: {result}"
        result = await sandbox.exec('cat; echo "if" (')
        assert result.exit_code != 0, f"a syntax error is a status, not the shell's end: {result}"
        result = await sandbox.exec("cat", stdin=b"to the shell")
        assert result.stdout == b"to the shell", f"a shell command may have stdin: {result}"
        result = await sandbox.exec("printf 'héllo\\n'; printf '%s' '\\'")
        assert result.stdout == "héllo\n\\".encode(), f"commands are passed unchanged: {result}"


async def _output(backend: SandboxBackend, world: World) -> None:
    limit = world.resources.output_bytes
    async with await backend.create(world) as sandbox:
        count = limit * 50
        result = await sandbox.exec(["sh", "-c", f"printf first; head -c {count} /dev/zero; printf last"])
        assert len(result.stdout) == limit, f"{limit} bytes are kept, not {len(result.stdout)}"
        assert result.stdout.startswith(b"first"), "the head of a long output is kept"
        assert result.stdout.endswith(b"last"), "the tail of a long output is kept"
        assert result.lost_bytes[0] == count + 9 - limit, f"lost bytes are counted: {result.lost_bytes}"
        result = await sandbox.exec(["printf", "\\377\\000\\376"])
        assert result.stdout == b"\xff\x00\xfe", f"output is bytes as written: {result}"
        assert "\ufffd" in result.text, "invalid UTF-8 is replaced in text"


_TREE = {
    "tree.sh": "echo early; sh session.sh & (setsid sh ignoring.sh &); sleep 97 & echo $! > stopped\n"
    "kill -STOP $!; echo $$ > first; sleep 97\n",
    "session.sh": "setsid sh -c 'echo $$ > session; sleep 97 & echo $! > below; wait'\n",
    "ignoring.sh": "trap '' HUP INT TERM; echo $$ > ignoring; sleep 97; true\n",
}


async def _deadlines(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        began = time.monotonic()
        for name, script in _TREE.items():
            await sandbox.write(name, script.encode())
        result = await sandbox.exec(["sh", "tree.sh"], timeout_s=1.5)
        assert result.timed_out, f"a deadline is reported: {result}"
        assert result.exit_code is None, f"a command killed at its deadline has no status: {result}"
        assert result.stdout == b"early\n", f"what was written before the deadline is kept: {result}"
        for stuck in ("while :; do :; done", "sleep 97; echo no", "trap '' TERM INT; sleep 97 & wait"):
            await sandbox.exec("kept=yes")
            result = await sandbox.exec(f"lost=1; {stuck}", timeout_s=0.5)
            assert result.timed_out, f"a stuck shell meets its deadline: {stuck!r} {result}"
            result = await sandbox.exec('echo "$kept"')
            assert result.stdout == b"yes\n", f"the shell goes on from its last state after {stuck!r}: {result}"
        assert time.monotonic() - began < 1.5 + 3 * 0.5 + 2 * SLACK_S, "a deadline ends a command when it says"
        names = "first session below ignoring stopped"
        result = await sandbox.exec(f"for f in {names}; do kill -0 $(cat $f) && echo lives; done 2>/dev/null; ls")
        assert b"lives" not in result.stdout, (
            f"the whole tree is killed at a deadline: sessions, double forks, what ignores or is stopped: {result}"
        )
        assert set(names.encode().split()) <= set(result.stdout.split()), f"all of it had begun: {result}"


CHECKS: tuple[Check, ...] = (
    _argv_commands,
    _the_shell,
    _output,
    _deadlines,
)
