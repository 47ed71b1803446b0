"""A model by its name on the Hugging Face hub: found as that library finds it, and then a folder like any other.

The hub is asked where a network is there; else, or with HF_HUB_OFFLINE=1, what its cache has (HF_HOME) is taken.
Only weights in safetensors, configuration, tokenizer and processor are taken: no code of a repository is run. Where
a shape is enough, no weights are.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

__all__ = ["SAFELY", "folder_of"]

SAFELY: Mapping[str, Any] = MappingProxyType({"local_files_only": True, "trust_remote_code": False})
"""How transformers is to read a folder: nothing is fetched, and no code that lies in it is run."""

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_WEIGHTS = "*.safetensors"
_FILES = ("*.json", _WEIGHTS, "*.jinja", "*.txt", "*.model")


def folder_of(name: str | Path, *, weights: bool = True) -> Path:
    """The folder of a model: `name` itself where it is one, else of the hub's ``organisation/name[@revision]``.

    weights: False where configuration and tokenizer are enough: they alone are fetched. What is neither is given
    back as it is. Raises ValueError, one line, for a hub name that is not to be had.
    """
    path, text = Path(name), str(name)
    if path.exists() or not _NAME.fullmatch(text):
        return path
    repository, _, revision = text.partition("@")
    try:
        found = _fetched(repository, revision or None, weights)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = " ".join(str(error).split())[:160]
        raise ValueError(
            f"{text!r} is no folder here, and no model of the Hugging Face hub that can be had now: no network or "
            f"no such model, and no copy in the cache ({type(error).__name__}: {why}); fetch it where there is a "
            f"network (hf download {repository}), or give a folder that holds it"
        ) from None
    if weights and not any(found.glob("*.safetensors")):
        raise ValueError(f"{text!r}: what the hub or its cache has of it holds no safetensors; give a whole folder")
    return found


@lru_cache(maxsize=64)  # a name means one model for a whole process, and the hub is asked once
def _fetched(repository: str, revision: str | None, weights: bool) -> Path:
    wanted = [pattern for pattern in _FILES if weights or pattern != _WEIGHTS]
    return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
