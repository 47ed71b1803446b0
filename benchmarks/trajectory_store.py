"""The store beside JSONL, `datasets`, Minari, TorchRL, pickle and the floor: write, read, minibatches, size,
memory.

The same episodes for all: 20 turns of 500 tokens (ids and log-probabilities) and about 2 kB of text. Rates are of
raw bytes. Peers that are not installed (`pip install -e '.[peers]'`) are left out and named. Files lie in
memory, so that what is compared is the work and not a disk. `python benchmarks/trajectory_store.py --quick`.
"""

import importlib.util
import json
import os
import pickle
import random
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from _harness import Row, finish, options, scratch_folder

from envgym.env import Step, StopReason
from envgym.episode import Episode, Turn
from envgym.messages import Message
from envgym.policy import VersionRun
from envgym.store import StoreReader, StoreWriter

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


# -- peers: each writes `found` below `top` and gives (seconds to write, path, draw minibatch) -------------------


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


PEERS: dict[str, tuple[str, Callable[[list[Episode], Path], object]]] = {
    "JSONL, json": ("json", with_json),
    "JSONL, orjson": ("orjson", with_orjson),
    "pickle, 100 a file": ("pickle", with_pickle),
    "datasets": ("datasets", with_datasets),
    "Minari, HDF5": ("minari", with_minari),
    "TorchRL memmap": ("torchrl", with_torchrl),
}


def floor_of_minibatches(found: list[Episode], top: Path) -> float:
    """Slices of three mapped columns of fixed lengths, copied: what can be had at all."""
    parts = {}
    for name in ("prompt_ids", "sampled_ids", "logprobs"):
        path = top / name
        with open(path, "wb") as file:
            for one in found:
                for turn in one.turns:
                    file.write(getattr(turn, name).tobytes())
        kind = np.float32 if name == "logprobs" else np.int32
        parts[name] = np.memmap(path, kind, "r"), TURNS * (PROMPT if name == "prompt_ids" else SAMPLED)

    def draw(chosen: list[int]) -> object:
        return [
            np.concatenate([values[n * size : (n + 1) * size] for n in chosen]) for values, size in parts.values()
        ]

    return rate(draw, len(found))


# -- ours --------------------------------------------------------------------------------------------------------


def scanned(path: Path) -> float:
    """Seconds to read the files of a store once, as they lie there."""
    buffer = bytearray(1 << 22)

    def read() -> None:
        for file in sorted(path.rglob("turns.*")):
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    np.frombuffer(buffer, np.int64).sum()

    return statistics.median(timed(read) for _ in range(3))


def columns_read(path: Path) -> float:
    """Seconds to read and check every column of every turn."""

    def read() -> None:
        with StoreReader(path) as reader:
            for column in reader.table("turns").columns:
                for chunk in column.chunks:
                    for buffer in chunk.buffers():
                        if buffer is not None and buffer.size >= 8:
                            np.frombuffer(buffer, np.int64, buffer.size // 8).sum()

    return statistics.median(timed(read) for _ in range(3))


STREAM = """
import json, resource, sys, threading, time
from envgym.store import StoreReader
most = 0
def look():
    global most
    while True:
        with open("/proc/self/status") as file:
            facts = dict(line.split(":", 1) for line in file)
        most = max(most, int(facts["VmRSS"].split()[0]))
        time.sleep(0.02)
threading.Thread(target=look, daemon=True).start()
began, tokens = time.perf_counter(), 0
with StoreReader(sys.argv[1]) as reader:
    for episode in reader:
        tokens += episode.sampled_tokens
print(json.dumps({"rss_mb": most / 1000, "seconds": time.perf_counter() - began, "tokens": tokens}))
"""


def streamed(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def renamed(found: list[Episode], lap: int) -> Iterator[Episode]:
    return (replace(one, id=f"{lap}-{one.id}") for one in found)


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
        took, path, draw = work(few, top)  # type: ignore[misc]  # as the heading says
        found[name] = (raw / took / 1e6, rate(draw, len(few)), size_of(path) / raw)
        shutil.rmtree(top)
    return found, left_out


def ours(found: list[Episode], laps: int, scratch: Path) -> dict[str, float]:
    """All figures of the store."""
    raw, store, logged, figures = raw_bytes(found) / 1e6, scratch / "store", scratch / "logged", {}

    def live() -> None:
        with StoreWriter(logged) as writer:
            for one in found:
                writer.append(one)

    with StoreWriter(scratch / "warm") as writer:  # the first one imports and allocates
        writer.extend(found[:10])
    with StoreWriter(store) as writer:
        figures["hot ms"] = timed(lambda: writer.extend(found)) * 1e3 / raw
    figures["live ms"] = timed(live) * 1e3 / raw
    shutil.rmtree(logged)
    with StoreReader(store) as reader:
        figures["drawn ms"] = 1e3 / rate(reader.tokens().take, len(found))
    figures["read ms"], figures["scan ms"] = columns_read(store) * 1e3, scanned(store) * 1e3
    figures["hot size"] = size_of(store) / raw / 1e6
    with StoreWriter(store) as writer:
        figures["cold ms"] = timed(lambda: writer.compact("cold")) * 1e3 / raw
    figures["cold size"] = size_of(store) / raw / 1e6
    shutil.rmtree(store)
    with StoreWriter(store) as writer:
        for lap in range(laps):
            writer.extend(renamed(found, lap))
    return figures | streamed(store) | {"GB": size_of(store) / 1e9}


def main() -> None:
    given = options(__doc__)
    count = 600 if given.quick else 10_000
    laps = 2 if given.quick else 10  # of the same episodes, for a store of about 10 GB
    found = [episode(number) for number in range(count)]
    with scratch_folder() as scratch:
        peers, left_out = of_peers(found, scratch)
        (scratch / "floor").mkdir()
        floor = 1e3 / floor_of_minibatches(found, scratch / "floor")
        shutil.rmtree(scratch / "floor")
        mine = ours(found, laps, scratch)
    by = "JSONL, orjson" if "JSONL, orjson" in peers else "JSONL, json"  # the bar is for the former
    line_ms, json_size = 1e3 / peers[by][0], peers["JSONL, json"][2]
    fastest = max(peers, key=lambda name: peers[name][1])
    streaming = f"memory of a streaming pass over {mine['GB']:.1f} GB"
    # bars are bounds from above: of time per byte or batch, of size, of memory; few episodes show what a shard
    # costs at all, not what a byte of it does
    rows = [
        Row("hot shards, time to write 1 MB", mine["hot ms"], line_ms, by, "ms", None if given.quick else 1 / 3),
        Row("log, then hot shards, 1 MB", mine["live ms"], line_ms, by, "ms"),
        Row("hot shards into a cold one, 1 MB", mine["cold ms"], line_ms, by, "ms"),
        Row("a minibatch of 64", mine["drawn ms"], 1e3 / peers[fastest][1], fastest, "ms", 1.0),
        Row("a minibatch of 64", mine["drawn ms"], floor, "floor: mapped columns", "ms", 1 / 0.8),
        Row("all columns, read and checked", mine["read ms"], mine["scan ms"], "raw scan", "ms", 2.0),
        Row("size, hot", mine["hot size"], json_size, "JSONL, json", "of raw"),
        Row("size, cold", mine["cold size"], json_size, "JSONL, json", "of raw", 1 / 3),
        Row(streaming, mine["rss_mb"], 500, "the bar", "MB", 500, absolute=True),
    ]
    for name, (written, drawn, size) in peers.items():
        rows.append(Row(f"{name}: time to write 1 MB", 1e3 / written, mine["hot ms"], "hot shards", "ms"))
        rows.append(Row(f"{name}: a minibatch of 64", 1e3 / drawn, mine["drawn ms"], "hot shards", "ms"))
        rows.append(Row(f"{name}: size", size, mine["hot size"], "hot shards", "of raw"))
    if left_out:
        print(f"not installed, left out: {', '.join(left_out)}")
    finish("trajectory_store", rows, given, episodes=count, raw_bytes=raw_bytes(found), left_out=left_out)


if __name__ == "__main__":
    main()
