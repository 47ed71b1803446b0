"""What all benchmarks share: the machine's facts, medians, one table, one JSON file.

A row compares our figure with one measured in the same run (a floor or a peer); the bar bounds the figure or the
ratio. A quick run has the same shape and fewer repeats; its figures are for seeing that it works.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["Row", "beside", "facts", "finish", "medians_of", "options", "scratch_folder"]

_PACKAGES = ("envgym", "gymnasium", "numpy", "pydantic", "torch", "transformers", "pyarrow")


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: ours against a reference, in `unit`; `bar` bounds the ratio, or ours where `absolute`.

    Of a reference of 0 there is no ratio, and a bar of it is not met.
    """

    name: str
    ours: float
    reference: float
    reference_name: str
    unit: str
    bar: float | None = None
    absolute: bool = False

    @property
    def ratio(self) -> float | None:
        return self.ours / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None where there is none."""
        if self.bar is None:
            return None
        judged = self.ours if self.absolute else self.ratio
        return judged is not None and judged <= self.bar


def options(
    doc: str,
    arguments: Sequence[str] | None = None,
    *,
    more: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
) -> argparse.Namespace:
    """The options of every benchmark, --quick and --json FILE, and those that `more` adds."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to compare")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    more(parser)
    return parser.parse_args(arguments)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that goes away again, in memory where the machine has a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


def beside() -> Path:
    """Where peers lie without all that they depend on: PEERS names it, else it is of the environment (setup's)."""
    return Path(os.environ.get("PEERS") or Path(sys.prefix) / "peers")


def medians_of(repeats: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each over `repeats` rounds after one that does not count.

    A round measures each once, so that all see the same load and a process equally warm.
    """
    rounds = [[measure() for measure in measures] for _ in range(repeats + 1)][1:]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


def facts() -> dict[str, object]:
    """What a figure depends on: machine, versions, load, date."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": versions,
        "load": [round(value, 2) for value in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }


def _strict(value: object) -> object:
    """What JSON can hold: a number that is not finite becomes its name, and no reader takes it for a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _strict(one) for name, one in value.items()}
    return [_strict(one) for one in value] if isinstance(value, (list, tuple)) else value


def finish(name: str, rows: Sequence[Row], given: argparse.Namespace, **notes: object) -> None:
    """Print the table and write the JSON file, if one is wanted."""
    width = max((len(row.name) for row in rows), default=0)
    other = max((len(row.reference_name) for row in rows), default=0)
    print(f"{'':{width}}  {'ours':>10}  {'reference':>10}  {'':{other}}  {'ratio':>8}  bar")
    for row in rows:
        bar = (
            ""
            if row.bar is None
            else f"{'' if row.absolute else 'ratio '}<= {row.bar:g}{'' if row.met else '  MISSED'}"
        )
        print(
            f"{row.name:{width}}  {row.ours:10.4g}  {row.reference:10.4g}  {row.reference_name:{other}}  "
            f"{'none' if row.ratio is None else f'{row.ratio:.3g}':>8}  {bar}  [{row.unit}]"
        )
    bars = [row.met for row in rows if row.met is not None]
    result = {
        "benchmark": name,
        "quick": given.quick,
        "met": all(bars) if bars else None,
        "rows": [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows],
        "machine": facts(),
        **notes,
    }
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(_strict(result), indent=1, allow_nan=False) + "\n")
    sys.stdout.flush()
