"""Coverage-guided fuzzing of one target: `python guided.py TARGET CORPUS [libFuzzer's options]`.

What fails is left in the current directory as `crash-...`; put it into `found/TARGET`, where the tests try it again.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit"))

with atheris.instrument_imports(include=["envgym_sandboxes", "envgym", "fuzz_targets"]):
    from fuzz_targets import TARGETS

if __name__ == "__main__":
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()
