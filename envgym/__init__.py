"""envgym: an episode is a path in a tree of turns, played in a world that can be forked at any turn.

Every public name of the trunk is an attribute of this package, imported from its module when it is first asked
for (PEP 562), because every interpreter in which Gymnasium may be used imports this file when it starts. The types
are in the stub beside it; nothing is defined here.
"""

from importlib import import_module

__all__ = [
    "EARNED_BY",
    "SCREEN_TOOLS",
    "THE_AGENT",
    "WARM_PYTHON",
    "Acted",
    "Action",
    "Agent",
    "AgentFactory",
    "AgentFailure",
    "BackendReport",
    "Began",
    "Boundary",
    "Browser",
    "CellError",
    "CellResult",
    "Completion",
    "ContextFull",
    "Copyable",
    "DeadlineExceeded",
    "Durable",
    "EgressRecord",
    "EgressRule",
    "Env",
    "EnvSpec",
    "EnvgymError",
    "EnvironmentFailure",
    "Episode",
    "ExecResult",
    "Failure",
    "ForkPoint",
    "FunctionTool",
    "Grade",
    "Grader",
    "GraderFailure",
    "Group",
    "HostLost",
    "ImagePart",
    "InfrastructureFailure",
    "Interpreter",
    "InterpreterSnapshot",
    "Job",
    "Keeper",
    "LearnerDied",
    "Limits",
    "Memory",
    "MemoryUse",
    "Message",
    "MeteredBackend",
    "Misconfigured",
    "OnPolicyQueue",
    "Origin",
    "Outcome",
    "Overloaded",
    "Page",
    "PageAction",
    "PageLimits",
    "PageSpec",
    "PageView",
    "ParseError",
    "Part",
    "Partial",
    "Playable",
    "Policy",
    "PoolFull",
    "ProcessStatus",
    "Prompt",
    "Recorder",
    "Replay",
    "ReplayDiverged",
    "Replaying",
    "Reply",
    "Resources",
    "Rollout",
    "Sampling",
    "Sandbox",
    "SandboxBackend",
    "SandboxDied",
    "SandboxSnapshot",
    "SandboxUnavailable",
    "Screen",
    "ScreenAction",
    "ScreenView",
    "Session",
    "Shell",
    "Snapshot",
    "SnapshotArchive",
    "SnapshotGone",
    "Spoiled",
    "Start",
    "Step",
    "StopReason",
    "StoreCorrupt",
    "StoreReader",
    "StoreWriter",
    "Stretch",
    "Taken",
    "Target",
    "Task",
    "TaskSet",
    "TextPart",
    "Ticket",
    "Tool",
    "ToolCall",
    "ToolFault",
    "ToolLimits",
    "ToolRefused",
    "ToolResult",
    "ToolSpec",
    "Toolbox",
    "Tree",
    "Turn",
    "Unfinished",
    "Variable",
    "VersionRun",
    "Wanted",
    "WorkersLost",
    "World",
    "branch",
    "check_call",
    "compact",
    "follow",
    "make",
    "make_backend",
    "make_scheme",
    "observation_digest",
    "open_browser",
    "open_interpreter",
    "open_screen",
    "parse_call",
    "play",
    "register",
    "run_episode",
    "screen_action",
    "stream",
    "text_of",
    "tool",
    "tool_spec",
]  # fmt: skip

_MODULES = {
    "browsing": (
        "open_browser",
    ),
    "buffer": (
        "Keeper", "OnPolicyQueue", "Partial", "Replay", "SnapshotArchive", "Spoiled", "Start", "Taken", "Ticket",
    ),
    "egress": (
        "EgressRecord", "EgressRule",
    ),
    "env": (
        "Copyable", "Durable", "Env", "Grade", "Grader", "Playable", "Snapshot", "Step", "StopReason",
        "EARNED_BY", "THE_AGENT", "observation_digest",
    ),
    "episode": (
        "Began", "Episode", "ForkPoint", "Group", "Turn", "Unfinished",
    ),
    "errors": (
        "AgentFailure", "Boundary", "ContextFull", "DeadlineExceeded", "EnvgymError", "EnvironmentFailure",
        "Failure", "GraderFailure", "HostLost", "InfrastructureFailure", "LearnerDied", "Misconfigured",
        "Overloaded", "PoolFull", "ReplayDiverged", "SandboxDied", "SandboxUnavailable", "SnapshotGone",
        "StoreCorrupt", "WorkersLost",
    ),
    "interpreter": (
        "CellError", "CellResult", "Interpreter", "InterpreterSnapshot", "Variable",
    ),
    "limits": (
        "Limits", "Resources", "Sampling",
    ),
    "messages": (
        "Action", "ImagePart", "Message", "ParseError", "Part", "TextPart", "ToolCall", "ToolSpec", "text_of",
    ),
    "page_actions": (
        "PageAction", "Target",
    ),
    "page": (
        "Acted", "Browser", "Outcome", "Page", "PageLimits", "PageSpec", "PageView", "Wanted",
    ),
    "policy": (
        "Agent", "AgentFactory", "Completion", "Policy", "Prompt", "Reply", "Session", "VersionRun",
    ),
    "registry": (
        "EnvSpec", "make", "make_backend", "make_scheme", "open_interpreter",
        "register",
    ),
    "replay": (
        "Replaying",
    ),
    "jobs": (
        "Job", "Memory", "Stretch", "run_episode", "stream",
    ),
    "rollout": (
        "Origin", "Recorder", "Rollout", "branch", "play",
    ),
    "sandbox": (
        "BackendReport", "ExecResult", "MemoryUse", "MeteredBackend", "ProcessStatus", "Sandbox",
        "SandboxBackend", "SandboxSnapshot", "Shell", "WARM_PYTHON",
    ),
    "screen": (
        "Screen", "ScreenAction", "ScreenView",
    ),
    "screen_tools": (
        "SCREEN_TOOLS", "screen_action",
    ),
    "screening": (
        "open_screen",
    ),
    "store": (
        "StoreReader", "StoreWriter", "follow",
    ),
    "task": (
        "Task", "TaskSet", "Tree", "World",
    ),
    "toolbox": (
        "Tool", "ToolFault", "ToolLimits", "ToolResult", "Toolbox",
    ),
    "function_tool": (
        "FunctionTool", "ToolRefused", "tool",
    ),
    "tools": (
        "check_call", "compact", "parse_call", "tool_spec",
    ),
}  # fmt: skip
_HOME = {name: f"envgym.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'envgym' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
