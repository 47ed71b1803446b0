"""A desk of tasks to do: the tables and tools of tau2's mock domain, written anew; for trying things out."""

import json
from typing import Any, Literal

from envgym.messages import ToolCall
from envgym_environments.tool.service.desk import Refused

__all__ = ["ToDo"]


class ToDo:
    """See `envgym_environments.tool.service.desk.Desk`."""

    reads = ("get_users", "get_tasks", "transfer_to_human_agents")
    writes = ("create_task", "update_task_status")
    policy = (
        "You keep lists of tasks. Before you change anything, say what you will do and get a yes. A task has a "
        "title and belongs to a user that there is; it is pending or completed. Tasks are never deleted: give that "
        "to a person. Refuse what is against this."
    )

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def owner(self, call: ToolCall) -> str | None:
        """Tasks are everybody's."""
        return None

    def learned(self, call: ToolCall, text: str) -> str | None:
        """Nobody must be known."""
        return None

    def get_users(self) -> str:
        """List the users and their tasks."""
        return json.dumps(list(self.db["users"].values()))

    def get_tasks(self) -> str:
        """List all tasks."""
        return json.dumps(list(self.db["tasks"].values()))

    def transfer_to_human_agents(self, summary: str) -> str:
        """Give the case to a person, who sees the summary. This ends it."""
        return "transferred"

    def create_task(self, user_id: str, title: str, description: str = "") -> str:
        """Make a task for a user."""
        if user_id not in self.db["users"]:
            raise Refused("user not found")
        number = f"task_{len(self.db['tasks']) + 1}"
        made = {"task_id": number, "title": title, "description": description or None, "status": "pending"}
        self.db["tasks"][number] = made
        self.db["users"][user_id]["tasks"].append(number)
        return json.dumps(made)

    def update_task_status(self, task_id: str, status: Literal["pending", "completed"]) -> str:
        """Say whether a task is pending or completed."""
        if task_id not in self.db["tasks"]:
            raise Refused("task not found")
        self.db["tasks"][task_id]["status"] = status
        return json.dumps(self.db["tasks"][task_id])

    def assert_task_status(self, task_id: str, expected_status: str) -> bool:
        """Whether a task is as a grader wants it; no tool."""
        return bool(self.db["tasks"].get(task_id, {}).get("status") == expected_status)
