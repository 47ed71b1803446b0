"""Byte code made ahead of time, so that no run of the tests compiles what has not changed.

Modules are stamped with their source's hash: a changed file never runs its old body, whatever its time says.
Test files are stored the way pytest stores them after rewriting their assertions. Nothing is imported or run.
"""

import compileall
import os
from collections.abc import Sequence
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode
from types import CodeType

from _pytest.assertion import rewrite

__all__ = ["precompile"]


def precompile(tree: Path, tests: Sequence[str], *, workdir: str) -> None:
    """Compile every module below `tree`, and the test files with pytest's rewriting, as seen under `workdir`."""
    mode = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(tree, quiet=2, invalidation_mode=mode, stripdir=str(tree), prependdir=workdir)
    for name in tests:
        _precompile_test(tree / name, f"{workdir}/{name}")


def _precompile_test(path: Path, seen_as: str) -> None:
    """Write ``__pycache__/NAME.TAG-pytest-VERSION.pyc``, which pytest uses while it agrees with the source."""
    try:
        stamp, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]
    except SyntaxError:
        return  # pytest will say so when it collects the file
    target = Path(cache_from_source(str(path))).with_name(path.name[:-3] + rewrite.PYC_TAIL)
    target.parent.mkdir(exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}")
    with temporary.open("wb") as file:
        rewrite._write_pyc_fp(file, stamp, _seen_as(code, seen_as))
    os.replace(temporary, target)


def _seen_as(code: CodeType, name: str) -> CodeType:
    """The code with its file name, and that of all code inside it, replaced."""
    constants = tuple(_seen_as(one, name) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)
