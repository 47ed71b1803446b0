"""Data for what has none: tasks found by exploring and proved by being played, and imagined conversations."""

from envgym.synthesis.explore import Curious, Explorer, Trail
from envgym.synthesis.found import Found, Single
from envgym.synthesis.graph import GraphExplorer, GraphReader, ScreenGraph
from envgym.synthesis.imagine import AgentAsker, Amounts, Goal, Imagined, imagine
from envgym.synthesis.memory import Tried
from envgym.synthesis.synthesize import Synthesis, synthesize
from envgym.synthesis.told import Rates, Told, describe, instruct, learned, rate

__all__ = [
    "AgentAsker", "Amounts", "Curious", "Explorer", "Found", "Goal", "GraphExplorer", "GraphReader", "Imagined",
    "Rates", "ScreenGraph", "Single", "Synthesis", "Told", "Trail", "Tried", "describe", "imagine", "instruct",
    "learned", "rate", "synthesize",
]  # fmt: skip
