"""Rewards as named channels: each says what it measures, or nothing; one rule makes a reward of them."""

from envgym.rewards.channels import Channel, Mixture, Score, Total
from envgym.rewards.cost import mixed_with_cost, price_score, price_scores
from envgym.rewards.judge import Asker, Criterion, Judgement, Preference, cycles, judge_pair, judge_rubric
from envgym.rewards.learned import LearnedReward, heard, told_of
from envgym.rewards.plan import RewardPlan, reward_plan
from envgym.rewards.rewarded import AgentAsker, Rewarded
from envgym.rewards.scorers import ChannelGrader, Scorer
from envgym.rewards.text import Tag, format_score, length_score, repetition, target_length
from envgym.rewards.tool_calls import ToolMatch, match_calls
from envgym.rewards.tracking import ProxyGold, ProxyReport

__all__ = [
    "AgentAsker", "Asker", "Channel", "ChannelGrader", "Criterion", "Judgement", "LearnedReward",
    "Mixture", "Preference", "ProxyGold", "ProxyReport", "RewardPlan", "Rewarded", "Score", "Scorer", "Tag",
    "ToolMatch", "Total", "cycles", "format_score", "heard", "judge_pair", "judge_rubric", "length_score",
    "match_calls", "mixed_with_cost", "price_score", "price_scores", "repetition", "reward_plan",
    "target_length", "told_of",
]  # fmt: skip
