"""What is asked of the file manager: files moved, removed and put in order, graded by what lies where."""

import numpy as np

from envgym_environments.gui.problem import TASK, Problem, Way, named

__all__ = ["discard", "move", "tidy"]

_PROGRAM = ("thunar",)


def _files(rng: np.random.Generator, level: int, folders: int) -> tuple[dict[str, str], list[str], list[str]]:
    """Files, their names, and folders, in each of which a file is, so that it is there."""
    words = named(rng, 2 + level + folders)
    names, inside = [f"{word}.txt" for word in words[folders:]], words[:folders]
    texts = {name: f"{int(rng.integers(2, 1000))} {name.removesuffix('.txt')}\n" for name in names}
    return texts | {f"{folder}/keep.txt": f"{folder}\n" for folder in inside}, names, inside


def _select(name: str) -> Way:
    return (("click", f"@table cell:{name}"),)


def _into(names: list[str], source: str, folder: str) -> Way:
    """Cut files in their folder one by one, and paste each into another one, from outside of both.

    Where thunar shows what is pasted, or what goes, its threads race for what is selected then: the job selects the
    file that it has moved, where that is still shown.
    """
    out = (("press", "ctrl+x"), ("click", "@push button:Open Parent"))
    paste = (("click", "@menu:Edit"), ("click", "@menu item:Paste Into Folder"))
    way: Way = ()
    for name in names:
        way += (*_select(source), ("press", "Return"), *_select(name), *out, *_select(folder), *paste)
    return way


def _in_a_folder(rng: np.random.Generator, level: int, folders: int) -> tuple[dict[str, str], list[str], list[str]]:
    """As `_files`, where all files but those of the folders lie in one more, the last."""
    files, names, inside = _files(rng, level, folders + 1)
    del files[f"{inside[-1]}/keep.txt"]
    return {f"{inside[-1]}/{name}" if name in names else name: text for name, text in files.items()}, names, inside


def move(rng: np.random.Generator, level: int) -> Problem:
    """A file from one folder into another."""
    files, names, (folder, source) = _in_a_folder(rng, level, 1)
    moved = f"{source}/{names[0]}"
    wanted = {f"{folder}/{names[0]}" if name == moved else name: text for name, text in files.items()}
    prompt = f"{TASK}In the file manager, move {moved} into the folder {folder}. Leave all else as it is."
    return Problem(prompt, _PROGRAM, _into(names[:1], source, folder), files, wanted)


def discard(rng: np.random.Generator, level: int) -> Problem:
    """Files removed for good: as many as half the level, and one more."""
    files, names, _folders = _files(rng, level, 0)
    gone = names[: 1 + level // 2]
    wanted = {name: text for name, text in files.items() if name not in gone}
    told = f"delete {' and '.join(gone)} for good, not into the trash."
    prompt = f"{TASK}In the file manager, {told} Leave all else as it is."
    way = tuple(step for name in gone for step in (*_select(name), ("press", "shift+Delete"), ("press", "Return")))
    return Problem(prompt, _PROGRAM, way, files, wanted)


def tidy(rng: np.random.Generator, level: int) -> Problem:
    """Files of one folder into two others, each into its own."""
    files, names, (*folders, source) = _in_a_folder(rng, level, 2)
    each = 1 + level // 3
    parts = [names[:each], names[each : 2 * each]]
    place = {
        f"{source}/{name}": f"{folder}/{name}" for folder, part in zip(folders, parts, strict=True) for name in part
    }
    wanted = {place.get(name, name): text for name, text in files.items()}
    told = " and ".join(f"{' and '.join(part)} into {folder}" for folder, part in zip(folders, parts, strict=True))
    way = tuple(step for folder, part in zip(folders, parts, strict=True) for step in _into(part, source, folder))
    prompt = f"{TASK}In the file manager, of the files in {source} move {told}. Leave all else as it is."
    return Problem(prompt, _PROGRAM, way, files, wanted)
