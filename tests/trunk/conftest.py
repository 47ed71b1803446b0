"""Processes that tests start (isolated environments) find the test modules by the names pytest gave them."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
