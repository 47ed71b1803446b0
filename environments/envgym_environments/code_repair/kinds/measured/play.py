"""Jobs for `worker`: what is sent, and what is believed of what comes back. It judges nothing."""

import base64
import json
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envgym.sandbox import WARM_PYTHON, Shell
from envgym_environments.code_repair.boot import BOOT, Program

__all__ = ["Told", "run_jobs"]

_PROGRAM = Program(("referee", "supervisor", "kinds.measured.alone", "kinds.measured.worker"))


@dataclass(frozen=True, slots=True)
class Told:
    """What one job did. lines: (seconds since it began, event) as its process said them, which may be lies.

    cpu_s: processor seconds of the process, by the kernel. late: it was stopped. ok: it ended
    by itself with status 0.
    """

    lines: tuple[tuple[float, Sequence[Any]], ...]
    cpu_s: float
    late: bool
    ok: bool

    def first(self, name: str) -> Sequence[Any] | None:
        """The rest of the first event of this name."""
        return next((event[1:] for _, event in self.lines if event[0] == name), None)

    def seconds(self, name: str) -> float | None:
        """When the first event of this name was said."""
        return next((at for at, event in self.lines if event[0] == name), None)


async def run_jobs(
    shell: Shell, script: str, jobs: Sequence[Any], *, source_root: str, limit_s: float, alone: bool = True
) -> list[Told]:
    """Run the script once for each job (plain data), in a process of its own, `limit_s` seconds each at most.

    alone: the script may start threads and no process. What a worker that was killed or stopped
    leaves out counts as a job that did not end by itself.
    """
    nonce = secrets.token_hex(16)
    known = {"jobs": len(jobs), "source_root": source_root, "script": script, "alone": alone}
    given = [{"job": base64.b64encode(pickle.dumps(job)).decode(), "limit_s": limit_s} for job in jobs]
    stdin = _PROGRAM.input(known, {"nonce": nonce, "jobs": given})
    done = await shell.exec([WARM_PYTHON, "-c", BOOT], stdin=stdin, timeout_s=30.0 + len(jobs) * (limit_s + 5.0))
    mark = nonce.encode() + b" "
    lines = [line[len(mark) :] for line in done.stdout.split(b"\n") if line.startswith(mark)]
    found = [_told(line) for line in lines[: len(jobs)]]
    return [*found, *[Told((), 0.0, late=False, ok=False)] * (len(jobs) - len(found))]


def _told(line: bytes) -> Told:
    try:
        row: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):  # what was said lies nested just as deep as the worker could read
        return Told((), 0.0, late=False, ok=False)
    lines = tuple(
        (float(at), event)
        for at, event in row["lines"]
        if isinstance(event, list) and event and isinstance(event[0], str)
    )
    late = bool(row["late"])
    return Told(lines, float(row["cpu_s"]), late, row["status"] == 0 and not late)
