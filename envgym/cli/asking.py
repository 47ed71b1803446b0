"""Agents that a command asks something, by the name under which they are registered."""

import inspect
from collections.abc import Mapping
from typing import Any

from envgym.options import wrong_option
from envgym.policy import Agent, AgentFactory
from envgym.provenance import told_by
from envgym.registry import find
from envgym.task import Task

__all__ = ["asked_agent", "who"]


def asked_agent(name: str, options: Mapping[str, Any]) -> AgentFactory:
    """Makes agents of a name that have no tools. Raises ValueError for an unknown name or option."""
    factory = find("agents", name)
    if wrong := wrong_option(f"options of agent {name!r}", options, factory, given={"seed", "tools"}, skip=1):
        raise ValueError(wrong)
    given = {"tools": ()} if "tools" in inspect.signature(factory).parameters else {}

    def make(task: Task, *, seed: int) -> Agent:
        made: Agent = factory(task, seed=seed, **given, **options)
        return made

    return make


def who(name: str, options: Mapping[str, Any]) -> str:
    """The agent as provenance names it: its name, and what its options say of it."""
    told = (f"{option} {value}" for option, value in told_by(find("agents", name), options))
    return ", ".join([name, *told])
