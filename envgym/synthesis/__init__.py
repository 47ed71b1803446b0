"""Tasks for an environment that has none: explored out of curiosity, abstracted, and checked by being played."""

from envgym.synthesis.explore import Curious, Explorer, Trail
from envgym.synthesis.memory import Tried
from envgym.synthesis.synthesize import Found, Synthesis, describe, synthesize

__all__ = ["Curious", "Explorer", "Found", "Synthesis", "Trail", "Tried", "describe", "synthesize"]
