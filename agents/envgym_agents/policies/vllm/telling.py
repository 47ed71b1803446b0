"""How likely a model folder's model finds given ids, by vLLM: a teacher that is not in the learner's memory.

The engine is begun with the first question and ends with `close`. It gets no weights; the folder is read where it
is. Synchronous: a learner asks, and waits.
"""

import itertools
import os
import queue
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from envgym.errors import InfrastructureFailure
from envgym_agents.policies.vllm.link import Link, Opener
from envgym_agents.policies.vllm.wire import EngineSettings, Failed, Said, Tell, Told

__all__ = ["Telling"]


class Telling:
    """A context manager over the engine. opened, settings: as of `VllmPolicy`; the folder is set here.

    Not for several threads at once.
    """

    def __init__(self, folder: str | Path, opened: Opener, settings: EngineSettings) -> None:
        self._folder, self._opened, self._settings = Path(folder).absolute(), opened, settings
        self._heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._link: Link | None = None

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """For each context [L] the log-probabilities of its ids but the first [L - 1], in nats.

        Raises ValueError for a context that the engine refuses (longer than its model's), InfrastructureFailure
        where it is gone.
        """
        if self._link is None:
            self._link = self._opened(self._linked(), 0, self._heard.put)
        numbers = [next(self._numbers) for _ in contexts]
        for number, ids in zip(numbers, contexts, strict=True):
            self._link.ask(Tell(number, tuple(int(one) for one in ids)))
        found: dict[int, NDArray[np.float32]] = {}
        while len(found) < len(contexts):
            said = self._heard.get()
            if isinstance(said, Told):
                found[said.number] = np.array(said.logprobs, np.float32)
            elif isinstance(said, Failed) and said.refused:
                self.close()  # the others' answers are of no use any more
                raise ValueError(f"the teacher in {str(self._folder)!r} refuses a context: {said.text}")
            else:
                self.close()
                raise InfrastructureFailure(f"the teacher in {str(self._folder)!r} gave no answer: {said}")
        return [found[number] for number in numbers]

    def _linked(self) -> EngineSettings:
        """The settings with a folder of its own, of links to the files: it is removed with the engine."""
        beside = Path(tempfile.mkdtemp(prefix=f"envgym-vllm-{os.getpid()}-"))
        for file in self._folder.iterdir():
            if file.is_file():
                (beside / file.name).symlink_to(file)
        return msgspec.structs.replace(self._settings, folder=str(beside))

    def close(self) -> None:
        """End the engine; idempotent. A further question begins another."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._heard = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
