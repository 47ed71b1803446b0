"""A learner's processes on the nodes of a Ray cluster, as the process that trains sees them: `Crew`, from afar.

Their places are kept together (a placement group): all of them have room, or none begins. Each does what it is
asked for with the others, as the processes of one host do. Folders are carried, so the hosts share no disk.
"""

import os
import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from envgym.errors import HostLost, LearnerDied
from envgym_agents.learn.checkpoint import latest, place_checkpoint
from envgym_agents.learn.cluster.begun import Member, begun, ended, raised
from envgym_agents.learn.cluster.carried import Carried
from envgym_agents.learn.cluster.placement import Placed
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.crew import lost
from envgym_agents.learn.worker import Begin, Rank, begins_within, interface_of, join

__all__ = ["LearnerRank", "PlacedCrew"]

_TOLD_S = 60.0
"""How long after the first failure the others are waited for: who is gone is often told after who lost him."""


class LearnerRank:
    """One process of a learner: a plain class; Ray makes an actor of it."""

    def __init__(self, config: TrainConfig, number: int, size: int) -> None:
        self._number, self._size, self._patience_s = number, size, config.learner.patience_s
        self._device = "cuda" if config.cluster.learner_gpus else "cpu"
        self._meeting: Any = None
        self._rank: Rank
        if config.threads is not None:
            torch.set_num_threads(config.threads)

    def meet(self, address: str) -> int:
        """Have all meet on this host, of this address, at the port that is returned. Only there is it listened."""
        listening = socket.create_server((address, 0))
        port = int(listening.getsockname()[1])
        self._meeting = TCPStore(
            address, port, self._size, is_master=True, timeout=begins_within(self._patience_s),
            wait_for_workers=False, master_listen_fd=listening.detach(),
        )  # fmt: skip
        return port

    def address(self) -> str:
        """Of this process's node, as the others reach it."""
        from ray.util import get_node_ip_address

        return str(get_node_ip_address())  # type: ignore[no-untyped-call]

    def join(self, address: str, port: int) -> None:
        """Enter the group of all, which meets there."""
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface_of(self.address()))
        within = begins_within(self._patience_s)
        meeting = self._meeting or TCPStore(address, port, self._size, is_master=False, timeout=within)
        mesh = join(self._device, meeting, rank=self._number, size=self._size, local=0, patience_s=self._patience_s)
        self._rank = Rank(mesh)

    def begin(self, pickled: bytes, folder: Carried, reference: Carried | None) -> None:
        """Make this process's part of a learner whose folders were carried here."""
        asked: Begin = pickle.loads(pickled)
        with ExitStack() as stack:
            here = stack.enter_context(folder.laid())
            beside = None if reference is None else stack.enter_context(reference.laid())
            config = asked.config.model_copy(update={"device": self._device})
            self._rank.do("begin", replace(asked, config=config, folder=here, reference=beside))

    def load(self, checkpoint: Carried, state: bool) -> dict[str, Any]:
        """As `Learner.load`, of a checkpoint that was carried here."""
        with checkpoint.laid() as path:
            found: dict[str, Any] = self._rank.do("load", path, state=state)
            return found

    def save(self, step: int, progress: Mapping[str, Any], beside: Mapping[str, Any] | None) -> Carried | None:
        """The checkpoint that `Learner.save` writes, on rank 0; None on the others."""
        with TemporaryDirectory(prefix="envgym-") as folder:
            self._rank.do("save", Path(folder), step, progress, beside=beside)
            made = latest(folder)
            return None if made is None else Carried.of(made)

    def do(self, asked: bytes) -> bytes:
        """Whatever else is asked for, as it was pickled; so is what rank 0 returns."""
        name, values, named = pickle.loads(asked)
        found = self._rank.do(name, *values, **named)
        return pickle.dumps(found if self._number == 0 else None)


@dataclass(slots=True)
class PlacedCrew:
    """A context manager of a learner's processes on their nodes (`cluster.learners` of them).

    Raises HostLost where there is no room for all, or one is not there, within `cluster.start_s`.
    """

    config: TrainConfig
    ray: Any
    placed: Sequence[Placed]
    _ranks: list[Member] = field(init=False, default_factory=list)
    _open: ExitStack = field(init=False, default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            group = self._kept(stack)
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In

            size = len(self.placed)
            for number, one in enumerate(self.placed):
                where = In(group, placement_group_bundle_index=number)
                self._ranks.append(
                    begun(self.ray, LearnerRank, one, self.config, number, size, at_once=1, where=where)
                )
                stack.callback(ended, self.ray, self._ranks[-1])
            start_s = self.config.cluster.start_s
            address = self._everyone("address", within_s=start_s)
            port = self._answers("meet", [self._ranks[0].actor.meet.remote(address)], within_s=start_s)[0]
            self._everyone("join", address, port, within_s=start_s)
            self._open = stack.pop_all()
        return self

    def _kept(self, stack: ExitStack) -> Any:
        """The places, all of them at once, each on the node that it was given."""
        from ray.util.placement_group import placement_group, remove_placement_group

        bundles = [
            {
                name: amount
                for name, amount in (("CPU", one.need.cpus), ("GPU", one.need.gpus), ("memory", one.need.memory))
                if amount
            }
            for one in self.placed
        ]
        nodes = [{"ray.io/node-id": one.node.id} for one in self.placed]
        group = placement_group(bundles, strategy="PACK", bundle_label_selector=nodes)

        def gone() -> None:
            with suppress(self.ray.exceptions.RayError, ValueError):
                remove_placement_group(group)

        stack.callback(gone)
        if not group.wait(self.config.cluster.start_s):
            raise HostLost(
                f"{len(bundles)} learner(s) had no place in cluster.start_s = {self.config.cluster.start_s:g} s, "
                f"though there was room before: {'; '.join(one.name for one in self.placed)}"
            )
        return group

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def ask(self, name: str, *values: Any, **named: Any) -> Any:
        """As `Crew.ask`; what names a folder is carried there, or back."""
        carried: dict[str, Callable[..., Any]] = {"begin": self._begin, "load": self._load, "save": self._save}
        if name in carried:
            return carried[name](*values, **named)
        return pickle.loads(self._everyone("do", pickle.dumps((name, values, named)), asked=name))

    def _begin(self, asked: Begin) -> None:
        reference = None if asked.reference is None else Carried.of(asked.reference)
        self._everyone("begin", pickle.dumps(asked), Carried.of(asked.folder), reference)

    def _load(self, path: Path, *, state: bool = True) -> dict[str, Any]:
        progress: dict[str, Any] = self._everyone("load", Carried.of(path), state)
        return progress

    def _save(
        self, folder: Path, step: int, progress: Mapping[str, Any], *, beside: Mapping[str, Any] | None = None
    ) -> None:
        place_checkpoint(folder, step, self._everyone("save", step, progress, beside).lay)

    def _everyone(self, method: str, *values: Any, asked: str = "", within_s: float | None = None) -> Any:
        """What a method returned on rank 0, after all have done it. asked: how it is named in an error."""
        given = [self.ray.put(value) for value in values]  # once, and not once for each
        answers = [getattr(rank.actor, method).remote(*given) for rank in self._ranks]
        return self._answers(asked or method, answers, within_s=within_s)[0]

    def _answers(self, asked: str, answers: list[Any], *, within_s: float | None = None) -> list[Any]:
        """All of them, in order. Raises ValueError where a method raised one, LearnerDied where a rank is lost.

        within_s: while they begin, and nothing is lost yet: then it is HostLost.
        """
        number_of = {answer: number for number, answer in enumerate(answers)}
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        waiting = answers
        while waiting:
            ready, waiting = self.ray.wait(waiting, num_returns=1, timeout=_TOLD_S if errors else within_s)
            if not ready:
                break
            try:
                found[number_of[ready[0]]] = self.ray.get(ready[0])
            except self.ray.exceptions.RayError as failed:
                errors[number_of[ready[0]]] = raised(self.ray, failed)
        if waiting and not errors:
            errors = {number_of[one]: HostLost(f"no answer within {within_s:g} s") for one in waiting}
        if not errors:
            return [found[number] for number in range(len(answers))]
        gone = {number: one for number, one in errors.items() if isinstance(one, HostLost)} or errors
        number, error = next(iter(gone.items()))
        if isinstance(error, ValueError):
            raise error
        if within_s is not None:
            raise HostLost(f"{self._ranks[number].placed.name} did not begin ({asked!r}): {error}")
        rank, where = f"{number} of the {len(self._ranks)}", f"on {self._ranks[number].placed.node.address}"
        how = "is gone" if isinstance(error, HostLost) else "broke"
        raise LearnerDied(lost(rank, where, how, asked, str(error)))
