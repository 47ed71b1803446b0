"""Stored episodes as a data set: queries, views and tools over what a store holds, without playing anything."""

from envgym.data.contamination import Decontamination, add_reports, decontaminated, reporting, reports_of
from envgym.data.feedback import Asked, Judge, feedback
from envgym.data.impact import learning_impact, reward_curves
from envgym.data.listening import goals_of, judge_of, listening, spans_of
from envgym.data.packed_file import PACKED, write_packed
from envgym.data.packed_rows import PackedRow, packed, packed_rows
from envgym.data.query import Query, chosen, parse_query
from envgym.data.recredit import Recredited, recredit
from envgym.data.regrade import regrade
from envgym.data.said import SaidGoal, SaidSpans, SaidSubgoals, read_said
from envgym.data.splitting import split_into
from envgym.data.statistics import Statistics, statistics
from envgym.data.token_rows import TOKEN_ROLES, TokenRow, token_rows
from envgym.data.tools import contaminated, copy, family, merge, part_of, repeats, rooted, sample, split, take_on
from envgym.data.views import Preference, StepRow, chat, preferences, step_rows

__all__ = [
    "PACKED", "TOKEN_ROLES", "Asked", "Decontamination", "Judge", "PackedRow", "Preference", "Query",
    "Recredited", "SaidGoal", "SaidSpans", "SaidSubgoals", "Statistics", "StepRow", "TokenRow", "add_reports",
    "chat", "chosen", "contaminated", "copy", "decontaminated", "family", "feedback", "goals_of", "judge_of",
    "learning_impact", "listening", "merge", "packed", "packed_rows", "parse_query", "part_of", "preferences",
    "read_said", "recredit", "regrade", "repeats", "reporting", "reports_of", "reward_curves", "rooted", "sample",
    "spans_of", "split", "split_into", "statistics", "step_rows", "take_on", "token_rows", "write_packed",
]  # fmt: skip
