"""What importing costs in a fresh interpreter, beside Gymnasium; the bar is 150 ms for ``import envgym``.

Whole processes are timed, interleaved, and the start of a bare interpreter (``python -S -c pass``) is taken off; so
what our start-up hook for Gymnasium costs every interpreter is counted as ours.
"""

import statistics
import subprocess
import sys
import time

from _harness import Row, finish, options

BAR_MS = 150.0
PROGRAMS = {
    "bare": ["-S", "-c", "pass"],
    "site": ["-c", "pass"],
    "envgym": ["-c", "import envgym"],
    "names": ["-c", "from envgym import *"],
    "gymnasium": ["-c", "import gymnasium"],
    "libraries": ["-c", "import asyncio, numpy, pydantic; pydantic.BaseModel"],
}


def wall_ms(arguments):
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True)
    return (time.perf_counter() - started) * 1e3


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats = 2 if given.quick else 15
    times = {name: [] for name in PROGRAMS}
    for _ in range(repeats):
        for name, program in PROGRAMS.items():
            times[name].append(wall_ms(program))
    median = {name: statistics.median(values) for name, values in times.items()}
    cost = {name: max(value - median["bare"], 0.01) for name, value in median.items()}
    rows = [
        Row("import envgym", cost["envgym"], cost["gymnasium"], "import gymnasium", "ms", BAR_MS, absolute=True),
        Row("from envgym import *", cost["names"], cost["gymnasium"], "import gymnasium", "ms"),
        Row("from envgym import *", cost["names"], cost["libraries"], "numpy, pydantic, asyncio alone", "ms"),
        Row("python -c pass, with our hook", cost["site"], median["bare"], "python -S -c pass", "ms"),
    ]
    finish("import_time", rows, given, median_ms=median)


if __name__ == "__main__":
    main()
