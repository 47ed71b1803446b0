"""Credit: pure functions from groups of episodes to one float per sampled token.

Three composable pieces: where value comes from (`returns`), what it is compared with (`baseline`), and how it
travels down to tokens (`scheme`). Credit is a new array; episodes are never touched.
"""

from envgym.credit.baseline import centre
from envgym.credit.returns import discounted_returns, outcomes, turn_rewards
from envgym.credit.scheme import Scheme, group_relative, to_tokens, turn_relative, zero_variance

__all__ = [
    "Scheme",
    "centre",
    "discounted_returns",
    "group_relative",
    "outcomes",
    "to_tokens",
    "turn_relative",
    "turn_rewards",
    "zero_variance",
]
