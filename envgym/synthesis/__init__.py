"""Tasks for an environment that has none: explored out of curiosity, abstracted, and checked by being played."""

from envgym.synthesis.explore import Curious, Explorer, Trail
from envgym.synthesis.graph import GraphExplorer, ScreenGraph
from envgym.synthesis.memory import Tried
from envgym.synthesis.synthesize import Found, Synthesis, describe, rate, synthesize

__all__ = [
    "Curious",
    "Explorer",
    "Found",
    "GraphExplorer",
    "ScreenGraph",
    "Synthesis",
    "Trail",
    "Tried",
    "describe",
    "rate",
    "synthesize",
]
