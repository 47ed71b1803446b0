"""The store beside JSONL, `datasets`, Minari, TorchRL, pickle and the floor: speed, size and memory.

The same episodes for all: 20 turns of 500 tokens (ids and log-probabilities) and about 2 kB of text. Rates are of
raw bytes. Peers that are not installed (`pip install -e '.[peers]'`) are left out and named. Files lie in
memory, so that what is compared is the work and not a disk. `python benchmarks/trajectory_store.py --quick`.
"""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from _harness import Row, finish, options, scratch_folder
from _store_peers import PROMPT, SAMPLED, TURNS, episode, of_peers, rate, raw_bytes, size_of, timed

from envgym.episode import Episode
from envgym.store import StoreReader, StoreWriter


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
