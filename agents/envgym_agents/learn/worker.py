"""One of the processes that a sharded learner is divided over: it does what rank 0 is asked for, with the others.

Rank 0 reads requests from the process that trains and sends them to all; each calls that method of its `Learner`.
It ends when it is told to, when the one that started it is gone, or with the first error: the work of a group in
which one is missing cannot be finished. Started by `crew`, or by torchrun (every rank but 0). Those that Ray places
(`cluster.learners`) are asked one by one, and do the same (`Rank`).
"""

import fcntl
import os
import pickle
import re
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.pack import Row
from envgym_agents.learn.ranks import Ranks
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.scoring import scorer_of
from envgym_agents.learn.shard import Divided, take, whole
from envgym_agents.learn.student import begin_model
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.tokenizer import load_tokenizer
from envgym_agents.weights import fill, fillable

__all__ = [
    "BEGIN_S", "LATE", "Begin", "Rank", "begins_within", "follow", "interface_of", "join", "serve",
]  # fmt: skip

_SIOCGIFADDR = 0x8915
"""Of ioctl: an interface's IPv4 address (linux/sockios.h)."""

_QUIET = b"quiet"
"""What rank 0 says while it has nothing to do, for worlds are played: so the others never wait for long."""
_BEAT_S = 60.0
"""How often it says so, at the least."""

BEGIN_S = 600.0
"""How long they wait for each other to be there, or as long as for an answer, if that is longer."""

LATE = re.compile(r"process (\d+) of the \d+ did not begin within \S+ s")
"""What those that were there say of one that was not."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a learner is made of. folder: the model that it begins with, which every process reads.

    reference: the folder of the frozen model beside it, None for none.
    """

    config: TrainConfig
    folder: Path
    lr: float
    weight_decay: float
    reference: Path | None = None
    demonstrations: Sequence[Row] = field(default_factory=tuple)


def begins_within(patience_s: float, begin_s: float = BEGIN_S) -> timedelta:
    """How long those that are there wait for the last one."""
    return timedelta(seconds=max(begin_s, patience_s))


def join(
    device: str, meeting: Any, *, rank: int, size: int, local: int, patience_s: float, begin_s: float = BEGIN_S
) -> DeviceMesh:
    """Enter the group of all processes. meeting: a store that they share; local: this one's GPU of its host.

    patience_s: how long an exchange waits for the slowest of them before it raises a RuntimeError. Raises one that
    names the first process that is not there within `begins_within`.
    """
    within = begins_within(patience_s, begin_s)
    meeting.set(f"envgym-{rank}", "is here")
    try:
        meeting.wait([f"envgym-{other}" for other in range(size)], within)
    except RuntimeError as error:
        late = next((other for other in range(size) if not meeting.check([f"envgym-{other}"])), None)
        if late is None:
            raise
        raise RuntimeError(
            f"process {late} of the {size} did not begin within {within.total_seconds():g} s"
        ) from error
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(local)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=patience_s)
    )
    return init_device_mesh(kind, (size,))


def _join_by_torchrun(device: str, patience_s: float) -> DeviceMesh:
    meeting, rank, size = next(rendezvous("env://", timeout=begins_within(patience_s)))
    local = int(os.environ.get("LOCAL_RANK", rank))
    return join(device, meeting, rank=rank, size=size, local=local, patience_s=patience_s)


def _join_here(device: str, file: Path, rank: int, size: int, *, patience_s: float, begin_s: float) -> DeviceMesh:
    """Processes of one host, which meet at a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting: Any = FileStore(str(file), size)
    meeting.set_timeout(begins_within(patience_s, begin_s))
    return join(device, meeting, rank=rank, size=size, local=rank, patience_s=patience_s, begin_s=begin_s)


def interface_of(address: str) -> str:
    """The network interface of this host that has an IPv4 address. Raises ValueError where none has.

    Without it gloo takes the one that the host's name leads to, which other hosts need not reach.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    raise ValueError(f"no network interface of this host has the address {address}")


def made(asked: Begin, mesh: DeviceMesh) -> Learner:
    """The learner that is asked for, divided over the mesh."""
    config, device = asked.config, mesh.device_type

    def divided(folder: Path, *, trains: bool) -> tuple[Divided, Any]:
        def scorer(model: Any) -> Scorer:
            return scorer_of(config, model, trains=trains)

        empty = None if config.model.lora_rank else fillable(folder)
        if empty is not None:
            own = partial(fill, folder=folder, device=device, place=take)
            return Divided(empty, mesh, scorer, own), load_tokenizer(folder)
        whole, tokenizer = begin_model(config, folder)  # adapters, and names that only the library knows
        return Divided(whole, mesh, scorer), tokenizer

    scorer, tokenizer = divided(asked.folder, trains=True)
    return Learner(
        scorer,
        adamw(scorer.model, lr=asked.lr, weight_decay=asked.weight_decay),
        max_tokens=config.max_tokens,
        device=device,
        reference=divided(asked.reference, trains=False)[0] if asked.reference else None,
        demonstrations=asked.demonstrations,
        ranks=Ranks(dist.get_rank(), dist.get_world_size()),
        tokenizer=tokenizer,
    )


class Rank:
    """This process's part of a learner, and what is asked of it."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._learner: Learner | None = None

    def do(self, name: str, *values: Any, **named: Any) -> Any:
        """What a method of the learner returns; "begin" makes it, "weights" are those of some names, on rank 0.

        All ranks do the same at the same time.
        """
        if name == "begin":
            self._learner = made(values[0], self._mesh)
            return None
        if name == "weights" and self._learner is not None:
            with self._learner.scorer.apart() as model:
                asked = {name: weight for name, weight in model.named_parameters() if name in values[0]}
                return whole(asked, keep=dist.get_rank() == 0)
        return getattr(self._learner, name)(*values, **named)


def serve(mesh: DeviceMesh, requests: Connection | None, *, patience_s: float) -> None:
    """Do what is asked until the end. requests: rank 0's, from who trains; the others hear of it from rank 0."""
    rank, beat_s = Rank(mesh), min(_BEAT_S, patience_s / 4)
    while True:
        box: list[Any] = [_next(requests, beat_s) if requests is not None else None]
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            return
        if box[0] == _QUIET:
            continue
        name, values, named = pickle.loads(box[0])
        found = rank.do(name, *values, **named)
        if requests is not None:
            requests.send_bytes(pickle.dumps(("done", found)))


def follow(device: str, *, patience_s: float) -> None:
    """A rank of torchrun's other than 0: do what is asked until rank 0 has ended the run."""
    serve(_join_by_torchrun(device, patience_s), None, patience_s=patience_s)
    dist.destroy_process_group()


def _next(requests: Connection, beat_s: float) -> bytes | None:
    """A request, as it was sent; `_QUIET` where none comes in time; None at the end, also of who trains."""
    try:
        return (requests.recv_bytes() or None) if requests.poll(beat_s) else _QUIET
    except (EOFError, OSError):
        return None


def _watch(line: Connection) -> None:
    """End this process when the other end of `line` is closed, whatever it is doing then."""
    try:
        line.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """``worker STORE RANK SIZE DEVICE THREADS PATIENCE_S BEGIN_S LIFELINE [REQUESTS]``: descriptors, "-": none."""
    store, rank, size, device, threads, patience, begin, line, *requests = arguments
    patience_s, begin_s = float(patience), float(begin)
    lifeline = Connection(int(line), writable=False)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    if threads != "-":
        torch.set_num_threads(int(threads))
    asks = Connection(int(requests[0])) if requests else None
    try:
        here = store != "-"
        if here:
            mesh = _join_here(device, Path(store), int(rank), int(size), patience_s=patience_s, begin_s=begin_s)
        else:
            mesh = _join_by_torchrun(device, patience_s)
        serve(mesh, asks, patience_s=patience_s)
    except Exception as error:  # the boundary: who trains is told, and raises it
        traceback.print_exc()
        if asks is not None:
            told = ("failed", f"{type(error).__name__}: {error}", isinstance(error, ValueError))
            asks.send_bytes(pickle.dumps(told))
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
