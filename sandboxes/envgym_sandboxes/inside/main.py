"""The fork server's beginning and end: a private place, the imports that all branches share, a mailbox, a loop."""

import contextlib
import ctypes
import gc
import importlib
import itertools
import os
import shutil
import sys
import tempfile
from typing import Any, NoReturn

from envgym_sandboxes.inside.family import Settings
from envgym_sandboxes.inside.mailbox import Mailbox
from envgym_sandboxes.inside.server import Server
from envgym_sandboxes.inside.service import Service

__all__ = ["main"]

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""A fork keeps one thread only, so that the others' work would never be done."""
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def main(given: dict[str, Any]) -> NoReturn:
    """The server's whole life, in the workdir. `given`: workdir's name in the world, preload, most, settings."""
    code, top = 1, ""
    try:
        cwd = os.getcwd()
        root = cwd[: -len(given["workdir"])] if cwd.endswith(given["workdir"]) else ""
        top = _private_directory()
        mailbox = Mailbox(top, given["most"], lambda text: text.replace(f"{root}/", "/") if root else text)
        _prepare(given["preload"])
        server = Server(Settings(cwd, top, **given["settings"]))
        service = Service(server, mailbox.say)
        if mailbox.fd is None:
            server.knocked = lambda: _take(mailbox, service)
        else:
            server.knocked = mailbox.make_room
            server.add(mailbox.fd, lambda: _take(mailbox, service))
        mailbox.say({"ready": top, "knock": mailbox.fd is None})
        try:
            server.loop()
            code = 0
        finally:
            service.close()
            server.gather()
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        if top:
            shutil.rmtree(top, ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)


def _take(mailbox: Mailbox, service: Service) -> None:
    for head, body in mailbox.requests():
        service.take(head, body)


def _private_directory() -> str:
    """A new directory; its name is the same every time that the same is done, since programs see it."""
    home = os.path.expanduser("~")
    above = f"{home if os.access(home, os.W_OK) else tempfile.gettempdir()}/.interpreters"
    os.makedirs(above, mode=0o700, exist_ok=True)
    for number in itertools.count(1):
        try:
            os.mkdir(f"{above}/{number}", 0o700)
            break
        except FileExistsError:
            continue
    return f"{above}/{number}"


def _prepare(preload: list[str]) -> None:
    """Adopt orphans from now on; import what all branches share, but not from the workdir, which is the agent's."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("600")  # when memory runs out, rather a branch than all of them
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that no cell can open its standard output and answer in its name
    sys.path[:] = [path for path in sys.path if path]
    for module in preload:
        importlib.import_module(module)
    sys.path.insert(0, "")
    gc.collect()
    gc.freeze()  # keeps collections in forks from copying the shared pages
