"""Processes that tests start (isolated environments) find the test modules by the names pytest gave them."""

import sys
from pathlib import Path

from hypothesis import settings

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

# a loaded machine must not fail a property: pytest's own timeout bounds every test
settings.register_profile("trunk", deadline=None)
settings.load_profile("trunk")
