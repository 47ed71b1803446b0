"""What a function gives for many drawn arguments, and what that costs: the script of a measured process.

Nothing that it says needs to be believed: what calls gave is compared, outside, with what the answer's code gives
for the same arguments, and the processor time is the kernel's (`worker`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgym.sandbox import Shell
from envgym_environments.code_repair.kinds.measured.play import Told, run_jobs

__all__ = ["Calls", "Cost", "cost_of"]

SCRIPT = '''
import hashlib, importlib, itertools, sys

function = getattr(importlib.import_module(job["module"]), job["function"])
PLAIN = (type(None), bool, int, float, str, bytes, complex)
ODD = chr(0)
counted = 0


def plain(value, depth=0):
    """A text that is equal for equal plain data; ODD stands for what is none."""
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if depth > 8:
        return ODD
    if kind in (list, tuple):
        return kind.__name__ + "[" + ",".join([plain(one, depth + 1) for one in value]) + "]"
    if kind in (set, frozenset):
        return kind.__name__ + "[" + ",".join(sorted([plain(one, depth + 1) for one in value])) + "]"
    if isinstance(value, dict):
        rows = [plain(key, depth + 1) + ":" + plain(one, depth + 1) for key, one in value.items()]
        return "dict[" + ",".join(sorted(rows)) + "]"
    if hasattr(kind, "__next__"):
        return "iterator[" + ",".join([plain(one, depth + 1) for one in itertools.islice(value, 100000)]) + "]"
    return ODD


def outcome(args, kwargs):
    try:
        return "gave " + plain(function(*args, **kwargs))
    except Exception as error:
        return "raised " + type(error).__name__


def trace(frame, event, argument):
    global counted
    if event == "call":
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
    counted += 1
    return trace


if job["count"]:
    sys.settrace(trace)
found = [outcome(args, kwargs) for args, kwargs in job["calls"]]
sys.settrace(None)
texts = [one.encode("utf-8", "surrogatepass") for one in found]
say("outcomes", [hashlib.blake2b(one, digest_size=16).hexdigest() for one in texts],
    counted, sum(ODD in one for one in found), sum(one.startswith("raised") for one in found))
'''
"""job: module, function, calls (pairs of arguments and named ones), count (whether the interpreter's steps are)."""


_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class Calls:
    """Which function is called with what."""

    module: str
    function: str
    source_root: str
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the calls gave, as digests (() where they did not come to their end), and cost.

    cpu_s: processor seconds, import included. steps: instructions of the interpreter, 0 where they were not
    counted. odd, raised: how many gave what is no plain data, or raised.
    """

    outcomes: tuple[str, ...]
    cpu_s: float
    steps: int
    odd: int
    raised: int


async def cost_of(shell: Shell, calls: Calls, *, count: bool = False, limit_s: float = 30.0) -> Cost:
    """Make the calls in a process of their own. Steps are counted at the price of a much longer run."""
    job = {"module": calls.module, "function": calls.function, "calls": list(calls.calls), "count": count}
    (told,) = await run_jobs(shell, SCRIPT, [job], source_root=calls.source_root, limit_s=limit_s)
    return _cost(told)


def _cost(told: Told) -> Cost:
    match told.first("outcomes") if told.ok else None:
        case [list(found), int(steps), int(odd), int(raised)] if 0 <= steps < _MOST_STEPS and all(
            isinstance(one, str) for one in found
        ):
            return Cost(tuple(found), told.cpu_s, steps, odd, raised)
        case _:
            return Cost((), told.cpu_s, 0, 0, 0)
