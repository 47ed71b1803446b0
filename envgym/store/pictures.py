"""The bytes behind images, apart from the steps that show them: files of a store, named by their sha256."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from envgym.env import Step
from envgym.episode import Episode, Turn, Unfinished
from envgym.messages import ImagePart
from envgym.store.durable import write_whole
from envgym.store.folder import Places

__all__ = ["Pictures", "bare", "filled", "images_of", "look_up", "looked_up"]

Find = Callable[[ImagePart], bytes | None]
"""The bytes of an image, None where they are not to be had."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images of one store."""

    places: Places

    def put(self, content: bytes) -> str:
        """Write an image, once however often it comes; its sha256."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.places.image(sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        return sha256

    def keep(self, *steps: Step) -> None:
        """The bytes of what steps show; before anything is written that refers to them."""
        for step in steps:
            for content in step.images.values():
                self.put(content)

    def keep_all(self, episode: Episode) -> Episode:
        """The bytes of all that an episode shows; the episode without them."""
        self.keep(episode.root, *(turn.step for turn in episode.turns))
        return bare(episode)

    def find(self, image: ImagePart) -> bytes | None:
        """The bytes of an image, None where they are not here."""
        path = self.places.image(image.sha256)
        return path.read_bytes() if path.exists() else None


def images_of(step: Step) -> Iterator[ImagePart]:
    """The images that a step shows, in order."""
    for message in step.observation:
        if isinstance(message.content, tuple):
            yield from (part for part in message.content if isinstance(part, ImagePart))


def filled(step: Step, find: Find) -> Step:
    """The step with the bytes of its images, as far as they are found; itself where it shows none."""
    found = {image.sha256: content for image in images_of(step) if (content := find(image)) is not None}
    return replace(step, images=found) if found else step


def _turns(turns: tuple[Turn, ...], change: Callable[[Step], Step]) -> tuple[Turn, ...]:
    """The turns with their steps changed; those of which nothing changed stay as they are."""
    steps = [change(turn.step) for turn in turns]
    return tuple(
        turn if step is turn.step else replace(turn, step=step) for turn, step in zip(turns, steps, strict=True)
    )


def _changed(episode: Episode, change: Callable[[Step], Step]) -> Episode:
    root, turns = change(episode.root), _turns(episode.turns, change)
    same = root is episode.root and all(a is b for a, b in zip(turns, episode.turns, strict=True))
    return episode if same else replace(episode, root=root, turns=turns)


def looked_up(episode: Episode, find: Find) -> Episode:
    """The episode with the bytes of its images, as far as they are found."""
    return _changed(episode, lambda step: filled(step, find))


def look_up(found: Unfinished, find: Find) -> None:
    """Give an unfinished episode the bytes of its images."""
    found.began = replace(found.began, root=filled(found.began.root, find))
    found.turns[:] = _turns(tuple(found.turns), lambda step: filled(step, find))


def bare(episode: Episode) -> Episode:
    """The episode without the bytes of its images, which are in files."""
    return _changed(episode, lambda step: replace(step, images={}) if step.images else step)
