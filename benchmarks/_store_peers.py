"""The same episodes for every store, and what others make of them: JSONL, pickle, datasets, Minari, TorchRL.

Each peer writes them below a folder and gives the seconds that took, the path, and how a minibatch is drawn of it.
"""

import importlib.util
import json
import os
import pickle
import random
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from envgym.env import Step, StopReason
from envgym.episode import Episode, Turn
from envgym.messages import Message
from envgym.policy import VersionRun

__all__ = ["PROMPT", "SAMPLED", "TURNS", "episode", "of_peers", "rate", "raw_bytes", "size_of", "timed"]

TURNS, PROMPT, SAMPLED, BATCH = 20, 300, 200, 64
SECONDS = 2.0


def words(rng: np.random.Generator, size: int) -> str:
    """Text that compresses as text does."""
    known = ["def", "return", "the", "file", "assert", "value", "self", "import", "test", "0", "=", "error", "None"]
    return " ".join(known[index] for index in rng.integers(0, len(known), size // 5))


def episode(number: int) -> Episode:
    rng, turns = np.random.default_rng(number), []
    for index in range(TURNS):
        ids = rng.zipf(1.3, PROMPT + SAMPLED).clip(0, 50_000).astype(np.int32)
        logprobs = -rng.exponential(0.5, SAMPLED).astype(np.float32)
        turns.append(
            Turn(
                "agent",
                (Message(role="assistant", content=words(rng, 800)),),
                Step(observation=(Message(role="user", content=words(rng, 1200)),), reward=0.0),
                ids[:PROMPT], ids[PROMPT:], logprobs, (VersionRun(0, 1),), 0, index * (PROMPT + SAMPLED),
            )
        )  # fmt: skip
    return Episode(f"e{number:07d}", f"t{number % 100}", Step(), tuple(turns), number, StopReason.SUBMITTED)


def raw_bytes(found: list[Episode]) -> int:
    return sum(one.nbytes for one in found) + sum(
        len(turn.messages[0].content) + len(turn.step.text) for one in found for turn in one.turns
    )


def columns(one: Episode) -> dict[str, object]:
    """What peers are given: the same content in the types that they know."""
    return {
        "id": one.id,
        "prompt_ids": [turn.prompt_ids for turn in one.turns],
        "sampled_ids": [turn.sampled_ids for turn in one.turns],
        "logprobs": [turn.logprobs for turn in one.turns],
        "said": [turn.messages[0].content for turn in one.turns],
        "seen": [turn.step.text for turn in one.turns],
    }


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rate(draw: Callable[[list[int]], object], count: int, least: int = 2) -> float:
    """Minibatches of 64 a second."""
    chance, times = random.Random(0), []
    until = time.perf_counter() + SECONDS
    while len(times) < least or time.perf_counter() < until:
        chosen = [chance.randrange(count) for _ in range(min(BATCH, count))]
        times.append(timed(lambda chosen=chosen: draw(chosen)))
    return 1 / statistics.median(times)


def size_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


Written = tuple[float, Path, Callable[[list[int]], object]]
"""Seconds that writing took, where it lies, and how a minibatch is drawn."""


def jsonl(found: list[Episode], top: Path, dump: Callable[[object], bytes], load: Callable[[bytes], object]):
    path, offsets = top / "episodes.jsonl", []

    def write() -> None:
        with open(path, "wb") as file:
            for one in found:
                offsets.append(file.tell())
                file.write(dump(columns(one)) + b"\n")

    took = timed(write)

    def draw(chosen: list[int]) -> object:
        with open(path, "rb") as file:
            rows = []
            for number in chosen:
                file.seek(offsets[number])
                rows.append(load(file.readline()))
            return rows

    return took, path, draw


def with_json(found: list[Episode], top: Path):
    def dump(row: object) -> bytes:
        return json.dumps(row, default=lambda array: array.tolist()).encode()

    return jsonl(found, top, dump, json.loads)


def with_orjson(found: list[Episode], top: Path):
    import orjson

    return jsonl(found, top, lambda row: orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY), orjson.loads)


def with_pickle(found: list[Episode], top: Path):
    files = [found[at : at + 100] for at in range(0, len(found), 100)]

    def write() -> None:
        for number, part in enumerate(files):
            (top / f"{number}.pkl").write_bytes(pickle.dumps([columns(one) for one in part], protocol=5))

    def draw(chosen: list[int]) -> object:
        return [pickle.loads((top / f"{number // 100}.pkl").read_bytes())[number % 100] for number in chosen]

    return timed(write), top, draw


def with_datasets(found: list[Episode], top: Path):
    import datasets

    datasets.disable_progress_bars()
    path = top / "set"

    def write() -> None:
        rows = {name: [columns(one)[name] for one in found] for name in columns(found[0])}
        datasets.Dataset.from_dict(rows).save_to_disk(str(path))

    took = timed(write)
    opened = datasets.load_from_disk(str(path)).with_format(
        "numpy", columns=["prompt_ids", "sampled_ids", "logprobs"]
    )
    return took, path, lambda chosen: opened[chosen]


def with_minari(found: list[Episode], top: Path):
    import minari
    from gymnasium.spaces import Box, Dict, Text
    from minari.data_collector import EpisodeBuffer

    most = 2**31 - 1
    seen_space = Box(0, most, (PROMPT,), np.int32)
    said_space = Dict(
        ids=Box(0, most, (SAMPLED,), np.int32), logprobs=Box(-np.inf, 0, (SAMPLED,), np.float32), said=Text(2000)
    )

    def buffer(number: int, one: Episode) -> EpisodeBuffer:
        turns = one.turns
        return EpisodeBuffer(
            number,
            seed=number,
            options=None,
            observations=[*(turn.prompt_ids for turn in turns), turns[-1].prompt_ids],
            actions={
                "ids": [turn.sampled_ids for turn in turns],
                "logprobs": [turn.logprobs for turn in turns],
                "said": [turn.messages[0].content for turn in turns],
            },
            rewards=[0.0] * TURNS,
            terminations=[False] * (TURNS - 1) + [True],
            truncations=[False] * TURNS,
        )

    def write() -> None:
        buffers = [buffer(number, one) for number, one in enumerate(found)]
        spaces = {"observation_space": seen_space, "action_space": said_space}
        minari.create_dataset_from_buffers("bench/tokens-v0", buffers, **spaces)

    os.environ["MINARI_DATASETS_PATH"] = str(top)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wants to know an author
        took = timed(write)
    opened = minari.load_dataset("bench/tokens-v0")
    return took, top, lambda chosen: list(opened.iterate_episodes(sorted(set(chosen))))


def with_torchrl(found: list[Episode], top: Path):
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage

    storage = LazyMemmapStorage(len(found), scratch_dir=str(top))

    def row(one: Episode) -> TensorDict:
        text = np.zeros((TURNS, 2100), np.uint8)
        for index, turn in enumerate(one.turns):
            bytes_ = (turn.messages[0].content + turn.step.text).encode()[:2100]
            text[index, : len(bytes_)] = np.frombuffer(bytes_, np.uint8)
        tensors = {
            "prompt_ids": torch.from_numpy(np.stack([turn.prompt_ids for turn in one.turns])),
            "sampled_ids": torch.from_numpy(np.stack([turn.sampled_ids for turn in one.turns])),
            "logprobs": torch.from_numpy(np.stack([turn.logprobs for turn in one.turns])),
            "text": torch.from_numpy(text),
        }
        return TensorDict(tensors, batch_size=[])

    def write() -> None:
        for at in range(0, len(found), 100):
            rows = torch.stack([row(one) for one in found[at : at + 100]])
            storage.set(range(at, min(at + 100, len(found))), rows)

    took = timed(write)
    keys = storage._storage.exclude("text")
    return took, top, lambda chosen: keys[torch.tensor(chosen)].clone()


PEERS: dict[str, tuple[str, Callable[[list[Episode], Path], Written]]] = {
    "JSONL, json": ("json", with_json),
    "JSONL, orjson": ("orjson", with_orjson),
    "pickle, 100 a file": ("pickle", with_pickle),
    "datasets": ("datasets", with_datasets),
    "Minari, HDF5": ("minari", with_minari),
    "TorchRL memmap": ("torchrl", with_torchrl),
}


Peer = tuple[float, float, float]
"""Of a peer: MB/s written, minibatches a second, size relative to raw."""


def of_peers(few: list[Episode], scratch: Path) -> tuple[dict[str, Peer], list[str]]:
    """Every peer that is installed, and the names of the others."""
    found, left_out, raw = {}, [], raw_bytes(few)
    for name, (module, work) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            left_out.append(name)
            continue
        top = scratch / "peer"
        top.mkdir()
        took, path, draw = work(few, top)
        found[name] = (raw / took / 1e6, rate(draw, len(few)), size_of(path) / raw)
        shutil.rmtree(top)
    return found, left_out
