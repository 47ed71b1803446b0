"""Which model an evaluation is of: a label for people, and a digest that says whether it is still the same model.

Labels are short, so two folders can have the same; that is refused, never resolved by taking the first.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envgym_agents.hub import folder_of
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.folder import RunFolder
from envgym_agents.learn.report import GREEDY
from envgym_agents.learn.resolve import check_folder, check_sight
from envgym_agents.model import weights_digest

__all__ = ["claim", "compared"]


def compared(agents: Sequence[str], models: Sequence[Path], config: TrainConfig) -> dict[str, Path]:
    """Label -> model folder: its last two path parts, or both parts of its name on the hub.

    Raises ValueError for what is no model folder, for a model that sees where the configuration has it sampled as
    text, and for a label that names two of the agents and models.
    """
    folders = [folder_of(path) for path in models]
    for path in folders:
        check_folder("model", path)
        check_sight("model", path, config)
    named = (path.resolve() if path.exists() else path for path in models)
    labels = ["-".join(path.parts[-2:]).strip("/") for path in named]
    times = Counter([*agents, *labels, *(label + GREEDY for label in labels)])
    for label, count in times.items():
        if count > 1:
            paths = [str(path) for path, own in zip(models, labels, strict=True) if own == label]
            raise ValueError(
                f"{label!r} names {count} of what is to be compared ({', '.join(paths) or 'agents'}): a model is "
                "called by the last two parts of its path; name each once, under paths that end differently"
            )
    return dict(zip(labels, folders, strict=True))


def claim(folder: RunFolder, label: str, path: Path) -> None:
    """Say in a run folder which model a label stands for, before it is played: its path and a digest of its files.

    Raises ValueError when the label stands for other weights there already.
    """
    stage, now = f"model-{label}", {"path": str(path.resolve()), "digest": weights_digest(path)}
    before = folder.done(stage)
    if before is None:
        folder.finish(stage, now)
    elif before["digest"] != now["digest"]:
        raise ValueError(
            f"{folder.path} holds the episodes of another model as {label!r}: {before['path']} (digest "
            f"{before['digest']}) is not {now['path']} as it is now ({now['digest']}); choose another folder"
        )
