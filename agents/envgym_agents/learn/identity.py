"""Which model an evaluation is of: a label for people, and a digest that says whether it is still the same model.

Labels are short, so two folders can have the same; that is refused, never resolved by taking the first.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envgym_agents.learn.folder import RunFolder
from envgym_agents.learn.report import GREEDY
from envgym_agents.learn.resolve import check_folder

__all__ = ["claim", "compared"]

_PARTS = ("*.safetensors", "*.bin", "*.json")
"""What makes a model folder: weights, and the configuration and tokenizer they are used with."""


def compared(agents: Sequence[str], models: Sequence[Path]) -> dict[str, Path]:
    """Label -> model folder: its last two path parts.

    Raises ValueError for what is no model folder, and for a label that names two of the agents and models.
    """
    for path in models:
        check_folder("model", path)
    labels = ["-".join(path.resolve().parts[-2:]).strip("/") for path in models]
    times = Counter([*agents, *labels, *(label + GREEDY for label in labels)])
    for label, count in times.items():
        if count > 1:
            paths = [str(path) for path, own in zip(models, labels, strict=True) if own == label]
            raise ValueError(
                f"{label!r} names {count} of what is to be compared ({', '.join(paths) or 'agents'}): a model is "
                "called by the last two parts of its path; name each once, under paths that end differently"
            )
    return dict(zip(labels, models, strict=True))


def claim(folder: RunFolder, label: str, path: Path) -> None:
    """Say in a run folder which model a label stands for, before it is played: its path and a digest of its files.

    Raises ValueError when the label stands for other weights there already.
    """
    stage, now = f"model-{label}", {"path": str(path.resolve()), "digest": _digest(path)}
    before = folder.done(stage)
    if before is None:
        folder.finish(stage, now)
    elif before["digest"] != now["digest"]:
        raise ValueError(
            f"{folder.path} holds the episodes of another model as {label!r}: {before['path']} (digest "
            f"{before['digest']}) is not {now['path']} as it is now ({now['digest']}); choose another folder"
        )


def _digest(path: Path) -> str:
    """Of a model folder's weights, configuration and tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted({file for pattern in _PARTS for file in path.glob(pattern)}):
        with open(file, "rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'blake2b').hexdigest()}\n".encode())
    return digest.hexdigest()
