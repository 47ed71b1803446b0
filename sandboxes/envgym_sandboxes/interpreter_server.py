"""Starts a fork server in a sandbox.

The sources of `inside` go in as the input of a Python that knows none of them. What the server is asked is not its
matter.
"""

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from envgym.errors import EnvironmentFailure
from envgym.sandbox import WARM_PYTHON, Sandbox
from envgym_sandboxes.interpreter_line import Down, Line

__all__ = ["BOOT", "Options", "begin"]

_START_S = 60.0
_HERE = Path(__file__).resolve().parent
_ALONE = ("capture", "protocol", "tree")  # modules of this package that need the standard library only
BOOT = """
import base64, importlib.abc, importlib.util, json, sys, zlib
given = json.loads(zlib.decompress(base64.b64decode(sys.stdin.buffer.read())))
sources = given["sources"]
class Sources(importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        whole = any(one.startswith(name + ".") for one in sources)
        return importlib.util.spec_from_loader(name, self, is_package=whole) if name in sources else None
    def exec_module(self, module):
        exec(compile(sources[module.__name__], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Sources())
main = importlib.import_module(given["main"]).main
del sys.meta_path[0]
main(given)
"""
"""A program that runs ``main(given)`` of a module whose sources come as its input, with all that it is given."""


class Options(NamedTuple):
    """See `open_interpreter`."""

    preload: tuple[str, ...]
    own: bool
    seed: int | None
    branches: int
    copy_bytes: int


async def begin(sandbox: Sandbox, options: Options) -> Line:
    """A line to a new fork server. Raises EnvironmentFailure, SandboxDied."""
    output_bytes = sandbox.world.resources.output_bytes
    given = {
        "sources": _sources(),
        "main": "envgym_sandboxes.inside.main",
        "workdir": sandbox.world.workdir,
        "preload": options.preload,
        "most": output_bytes // 2,
        "settings": {
            "own": options.own,
            "copy_bytes": options.copy_bytes,
            "limit": output_bytes,
            "most": options.branches,
            "cpu_s": sandbox.world.resources.command_cpu_s,
            "seed": options.seed,
        },
    }
    packed = base64.b64encode(zlib.compress(json.dumps(given).encode()))
    process = await sandbox.start([WARM_PYTHON, "-c", BOOT], stdin=packed)
    line = Line(sandbox, process)
    try:
        await line.ready(_START_S)
    except Down as error:
        raise EnvironmentFailure(
            f"no Python interpreter could be started in sandbox {sandbox.id}: {error}"
        ) from None
    return line


@cache
def _sources() -> dict[str, str]:
    """Module names and texts."""
    alone = {f"envgym_sandboxes.{name}": _HERE / f"{name}.py" for name in _ALONE}
    inside = {f"envgym_sandboxes.inside.{path.stem}": path for path in (_HERE / "inside").glob("*.py")}
    inside["envgym_sandboxes.inside"] = inside.pop("envgym_sandboxes.inside.__init__")
    return {"envgym_sandboxes": ""} | {name: path.read_text() for name, path in (alone | inside).items()}
