"""A script becomes a picture: a cell of a Python interpreter in a sandbox, whose one figure is taken.

Each script runs in a fork of an interpreter that has matplotlib loaded and did nothing else.
"""

from envgym.errors import EnvironmentFailure
from envgym.interpreter import Interpreter
from envgym.limits import Resources
from envgym.messages import ToolSpec
from envgym.registry import open_interpreter
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World
from envgym.tools import tool_spec

__all__ = ["PlotCanvas"]

_CELL_S = 30.0
_LOADED = "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt"


def render(code: str) -> None:
    """Run a Python script that leaves one figure of matplotlib open, and see how alike the figure is.

    Args:
        code: the whole script; it need not save or show the figure.
    """


class PlotCanvas:
    """A `Canvas` of scripts; the first picture makes a sandbox."""

    tool: ToolSpec = tool_spec(render)

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._sandbox: Sandbox | None = None
        self._loaded: Interpreter | None = None

    async def picture(self, source: str) -> tuple[bytes | None, str]:
        """See `Canvas`. There is none of a script that fails, or that leaves no figure or more than one."""
        async with await (await self._opened()).fork() as branch:
            result = await branch.run(source, timeout_s=_CELL_S)
            if result.error is not None:
                return None, result.text[-500:]
            if len(result.images) != 1:
                return None, f"the script leaves {len(result.images)} figures open; it must leave one"
            return result.images[0], ""

    async def parts(self) -> str:
        """See `Canvas`: a picture does not say what it is made of."""
        return ""

    async def _opened(self) -> Interpreter:
        if self._loaded is None:
            world = World(
                workdir="/work", resources=Resources(memory_bytes=1 << 30), preload=("matplotlib.pyplot",)
            )
            self._sandbox = await self._backend.create(world)
            self._loaded = await open_interpreter(self._sandbox, seed=0)
            ran = await self._loaded.run(_LOADED, timeout_s=4 * _CELL_S)
            if ran.error is not None:
                raise EnvironmentFailure(f"matplotlib is not there: {ran.text[-300:]}")
        return self._loaded

    async def close(self) -> None:
        """End interpreter and sandbox."""
        loaded, sandbox = self._loaded, self._sandbox
        self._loaded = self._sandbox = None
        for one in (loaded, sandbox):
            if one is not None:
                await one.close()
