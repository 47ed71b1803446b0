"""How a program of this project begins in a sandbox: loaded already, or from source that is sent along.

What is sent to its standard input is what everybody may know, the sources, and then what the program itself reads:
secrets, once it has closed its memory. A warm interpreter has the modules, and then nobody reads the sources.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

__all__ = ["BOOT", "Program"]

_PACKAGE = "envgym_environments.code_repair"

BOOT = """
import json, os, sys
def read(size):
    data = b""
    while len(data) < size and (more := os.read(0, size - len(data))):
        data += more
    return data
request = json.loads(read(int(read(8))))
sources = read(int(read(8)))
if request["program"] not in sys.modules:
    for name, source in json.loads(sources).items():
        if name not in sys.modules:
            sys.modules[name] = type(sys)(name)
            exec(compile(source, name.rpartition(".")[2] + ".py", "exec"), sys.modules[name].__dict__)
sys.modules[request["program"]].start(request)
"""
"""What a Python in the sandbox is told to run."""


class Program:
    """Modules of this package, in an order in which they can be imported; the last one has ``start(request)``."""

    def __init__(self, parts: Sequence[str]) -> None:
        texts = {
            f"{_PACKAGE}.{name}": files(_PACKAGE).joinpath(f"{name.replace('.', '/')}.py").read_text()
            for name in parts
        }
        self._name = f"{_PACKAGE}.{parts[-1]}"
        self._sources = json.dumps(texts).encode()

    def input(self, known: Mapping[str, Any], secret: Mapping[str, Any]) -> bytes:
        """Its standard input. known: the request that it is started with. secret: what it reads itself."""
        public = json.dumps({**known, "program": self._name}).encode()
        told = b"".join(b"%8d" % len(part) + part for part in (public, self._sources))
        return told + json.dumps(secret).encode()
