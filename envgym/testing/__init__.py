"""The contracts, executable: conformance kits and fakes that third parties run in three lines."""

from envgym.testing.cheats import Attempt, Cheat, audit
from envgym.testing.check_credit import check_credit
from envgym.testing.check_env import EnvReport, check_env, check_env_sync
from envgym.testing.check_format import check_format
from envgym.testing.check_policy import PolicyCase, check_policy
from envgym.testing.check_task import check_task, check_task_sync, check_tasks

__all__ = [
    "Attempt",
    "Cheat",
    "EnvReport",
    "PolicyCase",
    "audit",
    "check_credit",
    "check_env",
    "check_env_sync",
    "check_format",
    "check_policy",
    "check_task",
    "check_task_sync",
    "check_tasks",
]
