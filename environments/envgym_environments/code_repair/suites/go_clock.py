"""Another date for programs in Go, which ask the kernel's page for it and hear of no preloaded library.

The standard package `time` is compiled anew with a `Now` that is later (`go test -overlay`); the toolchain stays as
it is. Monotonic readings, so durations, deadlines and sleeps, are as always; file times and what asks the kernel by
itself (`unix.ClockGettime`, C code) stay at the true date.
"""

import json
import re

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["go_clock", "later_text"]

_PLACE = "/tmp/envgym-conditions"  # below the sandbox's own root
_NOW = re.compile(r"^func Now\(\) Time \{\n(?:\t.*\n)*?\tsec, nsec, mono := (?:now|runtimeNow)\(\)\n", re.MULTILINE)


def later_text(text: str, later_s: int) -> str | None:
    """The package's `time.go` with a `Now` that is later by so many seconds; None where it has no such line."""
    found = _NOW.search(text)
    return None if found is None else f"{text[: found.end()]}\tsec += {later_s}\n{text[found.end() :]}"


async def knows_clock(sandbox: Sandbox, suite: Suite) -> bool:
    """Whether `go` is found as the suite's commands find it, and has a `time.Now` that is known."""
    return (await _later(sandbox, suite, 1))[1] is not None


async def go_clock(sandbox: Sandbox, suite: Suite, later_s: int) -> dict[str, str]:
    """The variables by which `go test` compiles tests whose date is later.

    Raises EnvironmentFailure where the sandbox's toolchain has no `time.Now` that is known.
    """
    place, text = await _later(sandbox, suite, later_s)
    if text is None:
        raise EnvironmentFailure(
            f"the date of Go programs cannot be shifted: {place!r} has no `time.Now` that is known; fix: certify "
            "where go 1.16 or later is on the path"
        )
    await sandbox.write(f"{_PLACE}/time.go", text.encode())
    overlay = json.dumps({"Replace": {place: f"{_PLACE}/time.go"}})
    await sandbox.write(f"{_PLACE}/overlay.json", overlay.encode())
    return {"GOFLAGS": f"-overlay={_PLACE}/overlay.json"}


async def _later(sandbox: Sandbox, suite: Suite, later_s: int) -> tuple[str, str | None]:
    """Where the toolchain's `time.go` is (or what `go` said), and its text with a later `Now` if there is one."""
    told = await sandbox.exec(["sh", "-c", "go list -f '{{.Dir}}' time"], env=dict(suite.env))
    lines = told.text.strip().splitlines()
    if not told.ok or not lines:
        return told.text[-200:], None
    flags = (await sandbox.exec(["sh", "-c", "go help build"], env=dict(suite.env), output_bytes=1 << 20)).text
    place = f"{lines[-1]}/time.go"
    return place, later_text((await sandbox.read(place)).decode(), later_s) if "-overlay" in flags else None
