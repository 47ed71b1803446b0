"""One of the processes that a sharded learner is divided over: it does what rank 0 is asked for, with the others.

Rank 0 reads requests from the process that trains and sends them to all; each calls that method of its `Learner`.
It ends when it is told to, when the one that started it is gone, or with the first error: the work of a group in
which one is missing cannot be finished. Started by `crew`, or by torchrun (every rank but 0).
"""

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
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
from envgym_agents.learn.shard import Divided, whole
from envgym_agents.learn.student import begin_model
from envgym_agents.learn.update import Learner, adamw

__all__ = ["Begin", "follow", "join", "serve"]

_IDLE = timedelta(days=7)
"""How long the others wait while rank 0 has nothing to do: worlds are played. Who dies is noticed at once."""


_MEETING = timedelta(minutes=10)


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


def join(device: str, *, store: Path | None, rank: int, size: int) -> DeviceMesh:
    """Enter the group of all processes. store: a file that they meet at; None: as torchrun's environment says."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    backend = "nccl" if kind == "cuda" else "gloo"
    meeting: Any
    if store is None:
        meeting, rank, size = next(rendezvous("env://", timeout=_MEETING))
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all of them are on this host
        meeting = FileStore(str(store), size)
        meeting.set_timeout(_MEETING)
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, timeout=_IDLE)
    return init_device_mesh(kind, (size,))


def made(asked: Begin, mesh: DeviceMesh) -> Learner:
    """The learner that is asked for, divided over the mesh."""
    config, device = asked.config, mesh.device_type

    def divided(model: Any, *, trains: bool) -> Divided:
        scorer = Scorer(
            model, temperature=config.model.temperature, chunk=config.learner.chunk,
            checkpointed=config.learner.checkpoint and trains, share=config.learner.share == "auto",
        )  # fmt: skip
        return Divided(scorer, mesh)

    model, tokenizer = begin_model(config, asked.folder)
    scorer = divided(model, trains=True)
    return Learner(
        scorer,
        adamw(model, lr=asked.lr, weight_decay=asked.weight_decay),
        max_tokens=config.max_tokens,
        device=device,
        reference=divided(begin_model(config, asked.reference)[0], trains=False) if asked.reference else None,
        demonstrations=asked.demonstrations,
        ranks=Ranks(dist.get_rank(), dist.get_world_size()),
        tokenizer=tokenizer,
    )


def serve(mesh: DeviceMesh, requests: Connection | None) -> None:
    """Do what is asked until the end. requests: rank 0's, from who trains; the others hear of it from rank 0."""
    learner: Learner | None = None
    while True:
        box: list[Any] = [_next(requests) if requests is not None else None]
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            return
        name, values, named = pickle.loads(box[0])
        found: Any = None
        if name == "begin":
            learner = made(values[0], mesh)
        elif name == "weights" and learner is not None:
            with learner.scorer.apart() as model:
                found = {name: weight.cpu() for name, weight in whole(dict(model.named_parameters())).items()}
        else:
            found = getattr(learner, name)(*values, **named)
        if requests is not None:
            requests.send_bytes(pickle.dumps(("done", found)))


def follow(device: str) -> None:
    """A rank of torchrun's other than 0: do what is asked until rank 0 has ended the run."""
    mesh = join(device, store=None, rank=0, size=0)
    serve(mesh, None)
    dist.destroy_process_group()


def _next(requests: Connection) -> bytes | None:
    """A request, as it was sent; None at the end, that of who trains included."""
    try:
        return requests.recv_bytes() or None
    except (EOFError, OSError):
        return None


def _watch(line: Connection) -> None:
    """End this process when the other end of `line` is closed, whatever it is doing then."""
    try:
        line.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """``worker STORE RANK SIZE DEVICE THREADS LIFELINE [REQUESTS]``: descriptors by number, "-": no store."""
    store, rank, size, device, threads, line, *requests = arguments
    lifeline = Connection(int(line), writable=False)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    if threads != "-":
        torch.set_num_threads(int(threads))
    asks = Connection(int(requests[0])) if requests else None
    try:
        mesh = join(device, store=None if store == "-" else Path(store), rank=int(rank), size=int(size))
        serve(mesh, asks)
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
