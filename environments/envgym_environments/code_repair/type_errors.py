"""How many type errors a patch adds, as mypy counts them: texts are read in a process of its own, nothing is run.

The checker sees the changed modules alone: no configuration, no plugin, no other module, no cache, and no comment
that would silence it. It runs where the grader does, in a folder of its own that is removed behind it. Where there
is nothing to say (no Python, a module that does not parse, too much of it, too slow) the answer is None, not 0.
"""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from envgym_environments.code_repair.memo import Memo, digest_of

__all__ = ["check_there_is_a_checker", "new_type_errors"]

_MOST_FILES, _MOST_CHARACTERS, _LIMIT_S = 20, 400_000, 60.0
_SILENCERS = re.compile(r"#\s*(?:type:\s*ignore|mypy:|pyright:)")
_OPTIONS = ("--config-file=", "--cache-dir=/dev/null", "--follow-imports=skip", "--ignore-missing-imports",
            "--check-untyped-defs", "--no-site-packages", "--no-error-summary", "--hide-error-context",
            "--no-color-output", "--explicit-package-bases", "--namespace-packages")  # fmt: skip
_ERROR = re.compile(r"^.*?:\d+: error: ", re.MULTILINE)

Texts = Mapping[str, str | None]
"""Path -> text; None where there is no file."""


def check_there_is_a_checker() -> None:
    """Raises ValueError where mypy is not installed."""
    if importlib.util.find_spec("mypy") is None:
        raise ValueError("types is True, which needs mypy; it is not installed here: pip install 'envgym[types]'")


async def new_type_errors(base: Texts, changed: Texts, memo: Memo) -> int | None:
    """Errors of the changed Python modules less those that they had; below 0 where a patch mends some."""
    paths = sorted(path for path in changed if path.endswith(".py"))
    if not paths:
        return None
    before, after = (
        {path: text for path in paths if (text := texts.get(path)) is not None} for texts in (base, changed)
    )
    counts = [await _remembered(texts, memo) for texts in (before, after)]
    return None if counts[0] is None or counts[1] is None else counts[1] - counts[0]


async def _remembered(texts: Mapping[str, str], memo: Memo) -> int | None:
    if not texts:
        return 0
    if len(texts) > _MOST_FILES or sum(map(len, texts.values())) > _MOST_CHARACTERS:
        return None

    async def count() -> Any:
        return await asyncio.to_thread(_counted, texts)

    key = digest_of("types", "1", json.dumps(sorted(texts.items())))
    found: int | None = await memo.get(key, count)
    return found


def _counted(texts: Mapping[str, str]) -> int | None:
    """The errors that mypy finds in these modules, None where it stops before it has seen them all."""
    if any(".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute() for path in texts):
        return None
    with tempfile.TemporaryDirectory(prefix="envgym-types-") as folder:
        for path, text in texts.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_SILENCERS.sub("# ", text).encode("utf-8", "surrogatepass"))
        command = [sys.executable, "-I", "-m", "mypy", *_OPTIONS, "--", *sorted(texts)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MYPY", "PYTHON"))}
        try:
            done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
    return len(_ERROR.findall(done.stdout.decode("utf-8", "replace"))) if done.returncode in (0, 1) else None
