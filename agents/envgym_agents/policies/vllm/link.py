"""The near end of an engine: starts it, passes on what is asked, ends it.

`Server` is a process of another interpreter, which has vLLM; `Inside` is a thread of this one. Either calls `heard`
with every answer, from a thread of its own, and with one `Failed` for all when it is gone.
"""

import atexit
import contextlib
import importlib.util
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from envgym.errors import InfrastructureFailure
from envgym_agents.policies.vllm.engine import VllmEngine
from envgym_agents.policies.vllm.serving import Serving
from envgym_agents.policies.vllm.wire import ALL, Asked, Engine, EngineSettings, Failed, Ready, Said, receive, send

__all__ = ["VARIABLE", "Inside", "Link", "Opener", "Server", "VllmMissing", "find_python", "inside", "server"]

VARIABLE = "ENVGYM_VLLM_PYTHON"
"""Names the Python that has vLLM."""

_BESIDE = Path(".vllm-venv/bin/python")
_LAST_LINES = 30

# Imports our packages, and nothing else, from where they are here: that interpreter keeps its own torch.
_PROGRAM = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
class Ours(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if path is None and name in ("envgym", "envgym_agents"):
            return PathFinder.find_spec(name, sys.argv[1].split("\\n"))
sys.meta_path.insert(0, Ours())
from envgym_agents.policies.vllm.engine import VllmEngine
from envgym_agents.policies.vllm.server import serve
serve(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), VllmEngine)
"""

Heard = Callable[[Said], None]


class VllmMissing(ValueError):
    """No interpreter with vLLM is known; the message says how to get one."""


class Link(Protocol):
    """An engine that is there."""

    name: str

    def ask(self, message: Asked) -> None:
        """Pass a message on. Raises InfrastructureFailure when the engine is gone."""
        ...

    def close(self) -> None:
        """End the engine and wait until it is gone; idempotent."""
        ...


Opener = Callable[[EngineSettings, int, Heard], Link]
"""Makes an engine with the weights in a folder, which are of a version; blocks until it is there."""


def find_python(named: str | None = None) -> str:
    """The Python with vLLM: as named, else by the variable, else .vllm-venv here, else this one.

    Raises VllmMissing when there is none, or when that one has no vLLM.
    """
    chosen = named or os.environ.get(VARIABLE)
    if chosen is None and _BESIDE.exists():
        chosen = str(_BESIDE.absolute())
    if chosen is None and importlib.util.find_spec("vllm") is not None:
        return sys.executable
    if chosen is None:
        raise VllmMissing(
            "no Python with vLLM is known: run scripts/vllm_env.sh, or install vLLM into a virtual environment of "
            f"its own (it pins its own torch), and name its Python in sampler.python or {VARIABLE}"
        )
    try:
        code = "import importlib.util as i, sys; sys.exit(i.find_spec('vllm') is None)"
        done = subprocess.run([chosen, "-I", "-c", code], capture_output=True, timeout=120, check=False)
        why = "" if done.returncode == 0 else "it has no vLLM"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"it cannot be run: {error}"
    if why:
        raise VllmMissing(
            f"the Python for vLLM is {chosen!r}, and {why}: run scripts/vllm_env.sh, or name another in "
            f"sampler.python or {VARIABLE}"
        )
    return chosen


def server(python: str | None = None, *, start_s: float = 600.0) -> Opener:
    """Opens engines in processes of an interpreter with vLLM. Raises VllmMissing at once where there is none."""
    chosen = find_python(python)
    roots = [str(Path(file).resolve().parents[1]) for file in _homes()]
    program = [chosen, "-I", "-c", _PROGRAM, "\n".join(roots)]

    def opened(settings: EngineSettings, version: int, heard: Heard) -> Link:
        return Server(program, settings, version, heard, start_s=start_s)

    return opened


def _homes() -> list[str]:
    found = [importlib.util.find_spec(name) for name in ("envgym", "envgym_agents")]
    return [spec.origin for spec in found if spec is not None and spec.origin is not None]


class Server:
    """The process of an engine, in a session and process group of its own; its output is in its folder's log.

    program: what is run; a socket's number, the settings and the version are added. Raises InfrastructureFailure
    when the engine is not there within `start_s`, with the end of what it said.
    """

    def __init__(
        self, program: Sequence[str], settings: EngineSettings, version: int, heard: Heard, *,
        start_s: float = 600.0,
    ) -> None:  # fmt: skip
        self._heard, self._folder, self._closed = heard, Path(settings.folder), False
        self._lock = threading.Lock()
        self._log = self._folder / "engine.log"
        self._end, theirs = socket.socketpair()
        described = msgspec.json.encode(settings).decode()
        # what steers our interpreter would mislead the other one
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with theirs, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, str(theirs.fileno()), described, str(version)],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=environment, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)
        self.name = self._greeting(start_s)
        self._thread = threading.Thread(target=self._read, name="envgym-vllm-answers", daemon=True)
        self._thread.start()

    def ask(self, message: Asked) -> None:
        """Pass a message on. Raises InfrastructureFailure when the process is gone."""
        try:
            with self._lock:
                send(self._end, message)
        except OSError as error:
            raise InfrastructureFailure(f"the vLLM server is gone: {self._last_words() or error}") from error

    def close(self) -> None:
        """Kill the process group, wait for it, and remove its folder; idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._kill()
        self._end.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its leader is ours and not reaped: the number is its own
            self.process.wait()
        with contextlib.suppress(OSError):  # it may have closed its end
            self._end.shutdown(socket.SHUT_RDWR)  # wakes who reads

    def _greeting(self, start_s: float) -> str:
        """Wait until the engine is there."""
        self._end.settimeout(start_s)
        try:
            said = receive(self._end)
        except (OSError, ValueError) as error:
            said = Failed(ALL, f"it said nothing within {start_s:g} s ({error})")
        if isinstance(said, Ready):
            self._end.settimeout(None)
            return said.name
        why = said.text if isinstance(said, Failed) else "it ended before it was there"
        words = self._last_words()
        self.close()
        raise InfrastructureFailure(f"the vLLM server did not start: {why}{_below(words)}")

    def _read(self) -> None:
        why = "its process ended"
        try:
            while (said := receive(self._end)) is not None:
                if isinstance(said, Failed) and said.number == ALL:
                    why = said.text
                else:
                    self._heard(said)  # type: ignore[arg-type]  # an engine asks for nothing
        except (OSError, ValueError) as error:
            why = str(error)
        if not self._closed:
            words = self._last_words()
            self.close()
            self._heard(Failed(ALL, f"the vLLM server is gone: {why}{_below(words)}"))

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_LAST_LINES:])


def _below(words: str) -> str:
    return f"; the end of what it wrote:\n{words}" if words else ""


def inside(make: Callable[[EngineSettings], Engine] | None = None) -> Opener:
    """Opens engines in a thread of this process. Raises VllmMissing where this interpreter has no vLLM.

    make: another engine than vLLM's.
    """
    if make is None:
        if importlib.util.find_spec("vllm") is None:
            raise VllmMissing(
                f"this interpreter, {sys.executable}, has no vLLM, so none can run inside it: set sampler.place to "
                "'server', or run envgym in an environment that has vLLM"
            )
        make = VllmEngine
    maker = make

    def opened(settings: EngineSettings, version: int, heard: Heard) -> Link:
        return Inside(maker, settings, version, heard)

    return opened


class Inside:
    """An engine in a thread of this process. A broken one says so, and stays unusable."""

    def __init__(
        self, make: Callable[[EngineSettings], Engine], settings: EngineSettings, version: int, heard: Heard
    ) -> None:
        self._inbox: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._heard, self._folder, self._gone = heard, Path(settings.folder), False
        ready: queue.SimpleQueue[Said] = queue.SimpleQueue()

        def work() -> None:
            try:
                engine = make(settings)
            except Exception as error:  # vLLM says in many ways that it cannot have a model
                ready.put(Failed(ALL, f"{type(error).__name__}: {error}"))
                return
            ready.put(Ready(engine.name, os.getpid()))
            Serving(engine, self._inbox, self._say, version=version).run()

        self._thread = threading.Thread(target=work, name="envgym-vllm", daemon=True)
        self._thread.start()
        said = ready.get()
        if not isinstance(said, Ready):
            self.close()
            raise InfrastructureFailure(f"vLLM did not start: {said.text if isinstance(said, Failed) else said}")
        self.name = said.name

    def ask(self, message: Asked) -> None:
        """Pass a message on. Raises InfrastructureFailure when the engine is gone."""
        if self._gone:
            raise InfrastructureFailure("the vLLM engine in this process is gone")
        self._inbox.put(message)

    def close(self) -> None:
        """End the thread and remove the folder; idempotent."""
        self._gone = True
        self._inbox.put(None)
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, said: Said) -> None:
        if isinstance(said, Failed) and said.number == ALL:
            self._gone = True
            shutil.rmtree(self._folder, ignore_errors=True)
        self._heard(said)
