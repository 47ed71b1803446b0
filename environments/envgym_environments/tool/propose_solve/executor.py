"""Runs proposed programs in a sandbox and says what they give: the one judge of `propose-solve`.

A program runs in processes of its own, each with another hash seed; one whose outputs differ between them has no
answer (Absolute Zero asks it of all runs and tries two). What is right never enters the sandbox, so
that a program can forge nothing but its own output.
"""

import base64
import json
from collections.abc import Sequence

from envgym.limits import Resources
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World
from envgym_environments.tool.propose_solve.programs import Refused, literal, same

__all__ = ["Executor"]

_RUNS = 2
_RUN = """
import ast, base64, json, sys
program, inputs = json.loads(base64.b64decode(sys.stdin.read()))
sys.setrecursionlimit(400)
given = []
for text in inputs:
    try:
        names = {"__name__": "program"}
        exec(compile(program, "program", "exec"), names)
        given.append(["ok", repr(names["f"](*ast.literal_eval(text)))[:5000]])
    except BaseException as error:
        given.append(["error", type(error).__name__ + ": " + str(error)[:200]])
sys.stdout.write(json.dumps(given))
"""


class Executor:
    """Programs run in one sandbox, made when the first does.

    seconds: of processor time, for all inputs of a run.
    """

    def __init__(self, backend: SandboxBackend, *, seconds: float) -> None:
        self._backend, self._seconds = backend, seconds
        self._sandbox: Sandbox | None = None

    async def outputs(self, program: str, inputs: Sequence[str]) -> tuple[str, ...]:
        """The program's output of each input, as literals. Raises Refused where it has not one and the same."""
        first, *others = [await self._run(program, inputs, seed) for seed in range(_RUNS)]
        for other in others:
            if not all(map(same, first, other)):
                raise Refused("its output is not the same every time")
        return first

    async def _run(self, program: str, inputs: Sequence[str], seed: int) -> tuple[str, ...]:
        if self._sandbox is None:
            resources = Resources(
                memory_bytes=512 << 20, output_bytes=1 << 20, command_cpu_s=self._seconds, command_s=60.0
            )
            self._sandbox = await self._backend.create(World(resources=resources))
        packed = base64.b64encode(json.dumps([program, list(inputs)]).encode())
        done = await self._sandbox.exec(["python3", "-c", _RUN], stdin=packed, env={"PYTHONHASHSEED": str(seed)})
        if done.timed_out or done.out_of_memory:
            raise Refused("it took more time or memory than there is")
        try:
            given = json.loads(done.stdout)
            rows = [(str(kind), str(text)) for kind, text in given]
        except (ValueError, TypeError):
            raise Refused("it ended its process") from None
        if len(rows) != len(inputs):
            raise Refused("it wrote results of its own")
        for kind, text in rows:
            if kind != "ok":
                raise Refused(f"it fails: {text[:300]}")
            literal(text)
        return tuple(text for _, text in rows)

    async def close(self) -> None:
        """Close the sandbox; idempotent."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
