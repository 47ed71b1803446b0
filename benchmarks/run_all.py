"""Run every benchmark of this folder, each in a process of its own, and say which bars are met.

Results go to ``results/NAME.json`` (``results/quick`` with --quick, which only shows that they run). The exit
status is 1 when a benchmark broke, and at full size also when a bar was missed.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    given = parser.parse_args()
    known = sorted(
        path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_") and path.stem != "run_all"
    )
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(known)}")
    results = HERE / "results" / ("quick" if given.quick else ".")
    results.mkdir(parents=True, exist_ok=True)
    lines, broken = [], False
    for name in given.names or known:
        print(f"== {name}", flush=True)
        target, started = results / f"{name}.json", time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(target)]
        code = subprocess.run(command + ["--quick"] * given.quick, check=False).returncode
        met = json.loads(target.read_text())["met"] if code == 0 else None
        broken |= code != 0 or (met is False and not given.quick)
        said = f"FAILED with status {code}" if code else {True: "met", False: "MISSED", None: "no bar"}[met]
        lines.append(f"{name:20} {time.perf_counter() - started:8.1f} s   {said}")
    print("\n".join(["", *lines]))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
