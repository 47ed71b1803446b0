"""AndroidControl as it is released, GZIP'd records of episodes: unpacked once into a folder for `folder_tasks`.

Li et al. 2024, "On the Effects of Data Scale on UI Control Agents" (arXiv 2406.03679); the fields are those of
google-research/android_control's README, accessibility trees those of android_env's protocol buffers. A click is
told as a point alone; of the tree the box is taken that it is in, so that rules about boxes hold (UI-R1, GUI-R1).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym_environments.gui.grounding.records import example, fields, is_records, records, signed

__all__ = ["EPISODES", "Bounds", "Recorded", "box_at", "recorded", "shards", "unpack"]

EPISODES = "episodes.jsonl"
"""The file of an unpacked folder that names all else."""
_SPLITS = "splits.json"
_SUFFIXES = ("", ".gz", ".tfrecord", ".tfrecords")
Bounds = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An episode of AndroidControl. trees: one for each screenshot, or none; actions and steps: one less."""

    number: int
    goal: str
    screenshots: tuple[bytes, ...]
    trees: tuple[bytes, ...]
    actions: tuple[Mapping[str, Any], ...]
    steps: tuple[str, ...]


def shards(path: Path) -> list[Path]:
    """The files of records that a path names: itself, or those of a folder, by name; none for anything else."""
    among = sorted(path.iterdir()) if path.is_dir() else [path]
    # the release's names end in numbers (android_control-00000-of-00020), which is no suffix
    return [one for one in among if one.is_file() and one.suffix in _SUFFIXES and is_records(one)]


def recorded(path: Path) -> Iterator[Recorded]:
    """The episodes of a file of records. Raises ValueError, which names file and record, for what is none."""
    for number, record in enumerate(records(path)):
        try:
            yield _episode(example(record))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, record {number}: {said}") from error


def _episode(found: Mapping[str, Sequence[Any]]) -> Recorded:
    texts = {name: [one.decode() for one in found[name]] for name in ("goal", "actions", "step_instructions")}
    actions = tuple(json.loads(one) for one in texts["actions"])
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("an action is no JSON object")
    shown, trees = tuple(found["screenshots"]), tuple(found.get("accessibility_trees", ()))
    counts = (len(texts["goal"]), len(shown), len(actions), len(texts["step_instructions"]))
    if counts != (1, len(actions) + 1, len(actions), len(actions)):
        raise ValueError(
            "it has {} goals, {} screenshots, {} actions and {} step_instructions; it must have one goal, and of "
            "screenshots one more than of actions".format(*counts)
        )
    if trees and len(trees) != len(shown):
        raise ValueError(f"it has {len(trees)} accessibility_trees for {len(shown)} screenshots")
    (number,) = found["episode_id"]
    return Recorded(int(number), texts["goal"][0], shown, trees, actions, tuple(texts["step_instructions"]))


def box_at(tree: bytes, x: float, y: float) -> Bounds | None:
    """The box of the smallest visible element around a point, in the foremost window that has one; None for none.

    tree: an AndroidAccessibilityForest. Raises ValueError for what is none.
    """
    windows = [_window(window) for number, window in fields(tree) if number == 1 and not isinstance(window, int)]
    for _, boxes in sorted(windows, key=lambda window: -window[0]):
        around = [box for box in boxes if box[0] <= x < box[2] and box[1] <= y < box[3]]
        if around:
            return min(reversed(around), key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))
    return None


def _window(window: memoryview) -> tuple[int, list[Bounds]]:
    """Its layer, and the boxes of its visible elements."""
    layer, boxes = 0, []
    for number, value in fields(window):
        if isinstance(value, int):
            layer = signed(value) if number == 4 else layer
        elif number == 11:  # the tree, whose field 1 are its nodes
            nodes = [node for field, node in fields(value) if field == 1 and not isinstance(node, int)]
            boxes += [box for node in nodes if (box := _node(node))]
    return layer, boxes


def _node(node: memoryview) -> Bounds | None:
    """The box of a node that can be seen: its field 2, where field 23 says so."""
    known = dict(fields(node))
    box = known.get(2, b"")
    if not known.get(23) or isinstance(box, int):
        return None
    sides = {number: signed(side) for number, side in fields(box) if isinstance(side, int)}
    left, top, right, bottom = (sides.get(number, 0) for number in (1, 2, 3, 4))
    return (left, top, right, bottom) if left < right and top < bottom else None


def unpack(source: str | Path, folder: str | Path, *, most: int | None = None, goals: bool = False) -> int:
    """Write a release's episodes as a folder that `folder_tasks` reads; how many they are.

    source: a file of records, or a folder of them; the release's ``splits.json`` beside them tells the splits.
    most: so many episodes, the first ones. goals: what is asked is the goal alone, not what each step is for.

    Raises ValueError where something is in the folder, and for files that are none of records, or damaged.
    """
    place, top = Path(source), Path(folder)
    if top.exists() and any(top.iterdir()):
        raise ValueError(f"{top} holds other things; name a new folder")
    if not (files := shards(place)):
        raise ValueError(f"{place} is no file of records, nor a folder with any")
    splits = _splits((place if place.is_dir() else place.parent) / _SPLITS)
    (top / "images").mkdir(parents=True)
    count = 0
    with (top / EPISODES).open("w", encoding="utf-8") as out:
        for file in files:
            for episode in recorded(file):
                if count == most:
                    return count
                try:
                    line = _unpacked(top, episode, splits.get(episode.number, "train"), goals)
                except (ValueError, TypeError) as error:  # of an accessibility tree, or of where a click is
                    raise ValueError(f"{file}, episode {episode.number}: {error}") from error
                out.write(json.dumps(line) + "\n")
                count += 1
    return count


def _splits(path: Path) -> dict[int, str]:
    """Episode -> its split, as the release's file tells."""
    if not path.is_file():
        return {}
    try:
        return {int(one): str(name) for name, ids in json.loads(path.read_text()).items() for one in ids}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not tell splits as lists of episodes: {error}") from error


def _unpacked(top: Path, episode: Recorded, split: str, goals: bool) -> dict[str, Any]:
    """An episode as a line, its screenshots written beside it; the last one, at which nothing is done, is not."""
    names = [f"{episode.number}-{at}.png" for at in range(len(episode.actions))]
    for name, content in zip(names, episode.screenshots, strict=False):
        (top / "images" / name).write_bytes(content)
    boxes = [_box(action, tree) for action, tree in zip(episode.actions, episode.trees, strict=False)]
    line: dict[str, Any] = {
        "episode_id": episode.number, "goal": episode.goal, "split": split, "screenshots": names,
        "actions": list(episode.actions),
    }  # fmt: skip
    if boxes:
        line["boxes"] = boxes
    if not goals:
        line["step_instructions"] = list(episode.steps)
    return line


def _box(action: Mapping[str, Any], tree: bytes) -> Bounds | None:
    return box_at(tree, action["x"], action["y"]) if "x" in action and "y" in action else None
