"""Where sandboxes are about to be: a name each, and the groups that are made under it before anything else is.

Whoever made groups finds them again by their name, until the kernel has let go of them.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envgym.errors import EnvgymError, InfrastructureFailure
from envgym.limits import Resources
from envgym_sandboxes.cgroups import Groups
from envgym_sandboxes.processes import Processes
from envgym_sandboxes.state import remove_cgroup

__all__ = ["Places", "ReservedPlace"]

_PATIENCE_MS = 2000
_QUIET_S = 0.004


@dataclass(frozen=True, slots=True)
class ReservedPlace:
    """See `engine.Place`. among: the places that it is one of."""

    name: str
    groups: Groups | None
    among: "Places"

    def remove(self) -> None:
        """Remove the groups, which nothing is in."""
        self.among.leave(self.name)


class Places:
    """The places of one backend.

    grouped: whether groups are made, under the name of the processes' state. own: threads in each that are not the
    task's.
    groups: those of every place that was not left.
    """

    def __init__(
        self, backend: str, processes: Processes, numbers: Iterator[int], *, grouped: bool, own: int = 1
    ) -> None:
        self._backend, self._processes, self._numbers, self._grouped = backend, processes, numbers, grouped
        self._own = own
        self.groups: dict[str, Groups] = {}
        self._dying: list[Path] = []
        self._ready: ReservedPlace | None = None
        self._closed = False

    def reserve(self, resources: Resources) -> ReservedPlace:
        """A place with these bounds. One is kept ready for whoever asks for the same."""
        if not self._grouped:
            return ReservedPlace(f"{self._backend}-{os.getpid()}-{next(self._numbers)}", None, self)
        place, self._ready = self._ready, None
        if place is None or place.groups is None or place.groups.resources != resources:
            if place is not None:
                place.remove()
            place = self._make(resources)
        asyncio.get_running_loop().call_later(_QUIET_S, self._stock, resources)
        return place

    def _make(self, resources: Resources) -> ReservedPlace:
        number = next(self._numbers)
        name = f"{self._backend}-{os.getpid()}-{number}"
        try:
            groups = self.groups[name] = Groups(
                f"envgym-{self._processes.state.name}-{number}", resources, self._own
            )
        except OSError as error:
            raise InfrastructureFailure(f"no control groups for a {self._backend} sandbox: {error}") from error
        return ReservedPlace(name, groups, self)

    def _stock(self, resources: Resources) -> None:
        if self._ready is None and not self._closed:
            with contextlib.suppress(EnvgymError):  # whoever needs one will meet it, and say so
                self._ready = self._make(resources)

    def leave(self, name: str) -> None:
        """Remove a place's groups, which nothing is in any more; what is dying in them goes later."""
        if groups := self.groups.pop(name, None):
            self._dying[:] = [path for path in self._dying if not remove_cgroup(path)] + groups.remove()

    async def close(self) -> bool:
        """Remove what is left, whoever still has a place; the kernel has no event to wait for."""
        self._closed, self._ready = True, None
        for name in list(self.groups):
            self.leave(name)
        for _ in range(_PATIENCE_MS):
            self._dying[:] = [path for path in self._dying if not remove_cgroup(path)]
            if not self._dying:
                return True
            await asyncio.sleep(0.001)
        return False
