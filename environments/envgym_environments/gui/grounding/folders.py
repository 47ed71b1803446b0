"""Screenshots with known answers in folders of this disk: two foreign shapes in, one of them out.

ScreenSpot's (also ScreenSpot-Pro's and UI-R1's): JSON files that list ``{img_filename, bbox, instruction, ..}``,
and the images in the same folder or one below it. ``bbox`` is left, top, width, height in ScreenSpot, whose entries
say ``data_source`` or ``data_type``; left, top, right, bottom in the others. An entry may have ``action`` (and
``input_text``) in place of ``bbox``, as UI-R1's have.
AndroidControl's: JSON or JSON lines of episodes, ``{goal, screenshots, actions, step_instructions}``, with the
field names of its records and the screenshots as files; ``boxes`` may say what each click is in. Its own files of
records are unpacked into that once (`android.unpack`).
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.errors import EnvironmentFailure
from envgym.task import Task, TaskSet
from envgym_environments.gui.grounding.android import shards
from envgym_environments.gui.grounding.answers import ACTIONS, NO_TEXT
from envgym_environments.gui.grounding.rewards import Truth

__all__ = ["Entry", "entry_of", "folder_tasks", "image_size", "media_type", "write_folder"]

_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
"""JPEG's markers that are followed by the size."""
_ANDROID = {
    "input_text": "type", "navigate_back": "press_back", "navigate_home": "press_home", "status": "complete",
}  # fmt: skip
"""AndroidControl's names of what has another one here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One screenshot, what is asked, and what is right. image: a path below the folder."""

    folder: Path
    image: str
    instruction: str
    truth: Truth
    split: str

    def content(self) -> bytes:
        """The image's bytes. Raises EnvironmentFailure where they are gone."""
        try:
            return (self.folder / self.image).read_bytes()
        except OSError as error:
            raise EnvironmentFailure(f"image {self.image} of {self.folder} cannot be read: {error}") from error


def folder_tasks(path: str | Path) -> TaskSet:
    """The tasks of a folder, or of one JSON file in it.

    Raises ValueError, which names file and entry, for what cannot be read: a shape that is none of the two, an
    image that is not there, a box outside its image.
    """
    place = Path(path).absolute()
    if not place.exists():
        raise ValueError(f"there is nothing at {place}: path names a folder, or a JSON file in one")
    if shards(place):
        raise ValueError(
            f"{place} holds AndroidControl's records, which are unpacked once: envgym grounding unpack {path} "
            "--out FOLDER, and then path=FOLDER"
        )
    files = sorted([*place.rglob("*.json"), *place.rglob("*.jsonl")]) if place.is_dir() else [place]
    if not files:
        raise ValueError(f"{place} holds no .json or .jsonl file: it is no folder of tasks")
    tasks = []
    for file in files:
        for number, entry in enumerate(_entries(file)):
            tasks.append(_task(place if place.is_dir() else place.parent, file, number, entry))
    return TaskSet(tasks)


def _task(folder: Path, file: Path, number: int, entry: Entry) -> Task:
    truth = entry.truth
    known: dict[str, Any] = {
        "kind": "folder", "source": "folder", "folder": str(entry.folder), "image": entry.image,
        "instruction": entry.instruction, "action": truth.action, "text": truth.text,
        "box": truth.box and list(truth.box), "point": truth.point and list(truth.point),
    }  # fmt: skip
    name = file.relative_to(folder).with_suffix("").as_posix()
    return Task(
        id=f"grounding/folder/{name}/{number}", prompt=entry.instruction, split=entry.split, seed=number,
        metadata=known,
    )  # fmt: skip


def entry_of(known: Mapping[str, Any]) -> Entry:
    """The entry that a task's metadata tell of."""
    box, point = known["box"], known["point"]
    truth = Truth(known["action"], box and tuple(box), point and tuple(point), known["text"])
    return Entry(Path(known["folder"]), known["image"], known["instruction"], truth, "")


def _entries(file: Path) -> Iterator[Entry]:
    for number, raw in enumerate(_read(file)):
        try:
            if not isinstance(raw, dict):
                raise ValueError(f"it is {type(raw).__name__} and no object")
            yield from _episode(file, raw) if "screenshots" in raw else [_spot(file, raw)]
        except (ValueError, TypeError, KeyError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{file}, entry {number}: {said}") from error


def _read(file: Path) -> list[Any]:
    try:
        text = file.read_text(encoding="utf-8")
        found = [json.loads(line) for line in text.splitlines() if line.strip()] if file.suffix == ".jsonl" else (
            json.loads(text)
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error
    return found if isinstance(found, list) else [found]


def _spot(file: Path, raw: Mapping[str, Any]) -> Entry:
    """An entry of ScreenSpot, ScreenSpot-Pro or UI-R1."""
    image = _image(file, str(raw["img_filename"]))
    size = image_size(image)
    instruction, action = _text(raw, "instruction"), _unified(str(raw.get("action", "click")))
    if "bbox" not in raw and action == "click":
        raise ValueError("it has neither 'bbox' nor an 'action' that needs none")
    box = _numbers(raw["bbox"], 4, "bbox") if "bbox" in raw else None
    if box is not None:
        if "data_source" in raw or "data_type" in raw:
            box = (box[0], box[1], box[0] + box[2], box[1] + box[3])
        if not (0 <= box[0] < box[2] <= size[0] + 1 and 0 <= box[1] < box[3] <= size[1] + 1):
            raise ValueError(f"bbox {list(box)} (left, top, right, bottom) is not inside {image.name}, {size}")
    truth = Truth(action, box, None, str(raw.get("input_text", NO_TEXT)))
    return Entry(file.parent, image.relative_to(file.parent).as_posix(), instruction, truth, _split(raw, "heldout"))


def _episode(file: Path, raw: Mapping[str, Any]) -> Iterator[Entry]:
    """The steps of an episode of AndroidControl: one screenshot more than actions, or as many."""
    goal, actions, shown = _text(raw, "goal"), raw["actions"], raw["screenshots"]
    steps = raw.get("step_instructions") or [""] * len(actions)
    if not (len(actions) <= len(shown) <= len(actions) + 1 and len(steps) == len(actions)):
        raise ValueError(
            f"it has {len(shown)} screenshots, {len(actions)} actions and {len(steps)} step_instructions; each "
            "action has one of each, and after the last there may be one more screenshot"
        )
    boxes = raw.get("boxes") or [None] * len(actions)
    if len(boxes) != len(actions):
        raise ValueError(f"it has {len(boxes)} boxes for {len(actions)} actions; null stands for one without")
    for name, action, step, box in zip(shown, actions, steps, boxes, strict=False):
        image = _image(file, str(name))
        asked = f"{goal}\nNow: {step}" if step else goal
        yield Entry(
            file.parent, image.relative_to(file.parent).as_posix(), asked, _android(action, image, box),
            _split(raw, "train"),
        )  # fmt: skip


def _unified(kind: str) -> str:
    """An action's name in the unified space."""
    name = _ANDROID.get(kind, kind)
    if name not in ACTIONS:
        raise ValueError(f"action {kind!r} is none of the unified space: {', '.join(ACTIONS)}")
    return name


def _android(action: Mapping[str, Any], image: Path, box: Any) -> Truth:
    name = _unified(str(action["action_type"]))
    if name in ("click", "long_press"):
        x, y = _numbers((action["x"], action["y"]), 2, "x, y")
        wide, high = image_size(image)
        if not (0 <= x <= wide and 0 <= y <= high):
            raise ValueError(f"the point {x:g}, {y:g} is not on {image.name}, {wide} x {high}")
        return Truth(name, None if box is None else _numbers(box, 4, "boxes"), (x, y))
    text = {"type": "text", "scroll": "direction", "open_app": "app_name"}.get(name)
    return Truth(name, text=NO_TEXT if text is None else str(action[text]))


def _split(raw: Mapping[str, Any], otherwise: str) -> str:
    return str(raw.get("split", otherwise))


def _text(raw: Mapping[str, Any], name: str) -> str:
    text = raw[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} is {text!r}; it must be a text")
    return text


def _numbers(given: Any, count: int, name: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple) or len(given) != count:
        raise ValueError(f"{name} is {given!r}; it must be {count} numbers")
    if not all(isinstance(part, int | float) and not isinstance(part, bool) for part in given):
        raise ValueError(f"{name} is {given!r}; it must be {count} numbers")
    return tuple(float(part) for part in given)


def _image(file: Path, name: str) -> Path:
    """An image beside a file or in a folder there. Raises ValueError for one outside, or that is not there."""
    top = file.parent.resolve()
    for place in (top, *sorted(one for one in top.iterdir() if one.is_dir())):
        found = (place / name).resolve()
        if not found.is_relative_to(top):
            raise ValueError(f"image {name!r} is outside {top}")
        if found.is_file():
            return file.parent / found.relative_to(top)
    raise ValueError(f"image {name!r} is not in {top}, nor in a folder there")


def media_type(content: bytes) -> str:
    """Of a PNG or a JPEG; "" for anything else."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    return "image/jpeg" if content.startswith(b"\xff\xd8") else ""


def image_size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG or a JPEG, from its head. Raises ValueError for anything else."""
    with path.open("rb") as file:  # a data set has tens of thousands of them
        content = file.read(24)
        kind = media_type(content)
        content += file.read() if kind == "image/jpeg" else b""
    try:
        if kind == "image/png":
            wide, high = struct.unpack(">II", content[16:24])
            return wide, high
        at = 2
        while kind:
            marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4])
            if marker in _FRAMES:
                high, wide = struct.unpack(">HH", content[at + 5 : at + 9])
                return wide, high
            at += 2 + length
    except (struct.error, IndexError):
        pass
    raise ValueError(f"image {path.name} is no whole PNG or JPEG")


def write_folder(folder: str | Path, questions: Iterable[tuple[Task, Any]]) -> int:
    """Write questions (`Screens.ask`) with their tasks as a folder of UI-R1's shape; how many there are.

    `folder_tasks` reads the same instructions, images and truths from it. Raises ValueError where something is.
    """
    top = Path(folder)
    if top.exists() and any(top.iterdir()):
        raise ValueError(f"{top} holds other things; name a new folder")
    (top / "images").mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for task, question in questions:
        name = f"{len(entries):06d}.{'jpg' if media_type(question.image) == 'image/jpeg' else 'png'}"
        (top / "images" / name).write_bytes(question.image)
        truth: Truth = question.truth
        entry = {"img_filename": name, "instruction": question.text, "split": task.split, "action": truth.action}
        if truth.box is not None:
            entry["bbox"] = list(truth.box)
        if truth.text != NO_TEXT:
            entry["input_text"] = truth.text
        entries.append(entry)
    (top / "tasks.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return len(entries)
