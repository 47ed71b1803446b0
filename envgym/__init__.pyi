from envgym.browsing import open_browser as open_browser
from envgym.buffer import Keeper as Keeper
from envgym.buffer import OnPolicyQueue as OnPolicyQueue
from envgym.buffer import Partial as Partial
from envgym.buffer import Replay as Replay
from envgym.buffer import SnapshotArchive as SnapshotArchive
from envgym.buffer import Spoiled as Spoiled
from envgym.buffer import Start as Start
from envgym.buffer import Taken as Taken
from envgym.buffer import Ticket as Ticket
from envgym.egress import EgressRecord as EgressRecord
from envgym.egress import EgressRule as EgressRule
from envgym.env import EARNED_BY as EARNED_BY
from envgym.env import THE_AGENT as THE_AGENT
from envgym.env import Copyable as Copyable
from envgym.env import Durable as Durable
from envgym.env import Env as Env
from envgym.env import Grade as Grade
from envgym.env import Grader as Grader
from envgym.env import Playable as Playable
from envgym.env import Snapshot as Snapshot
from envgym.env import Step as Step
from envgym.env import StopReason as StopReason
from envgym.env import observation_digest as observation_digest
from envgym.episode import Began as Began
from envgym.episode import Episode as Episode
from envgym.episode import ForkPoint as ForkPoint
from envgym.episode import Group as Group
from envgym.episode import Turn as Turn
from envgym.episode import Unfinished as Unfinished
from envgym.errors import AgentFailure as AgentFailure
from envgym.errors import Boundary as Boundary
from envgym.errors import ContextFull as ContextFull
from envgym.errors import DeadlineExceeded as DeadlineExceeded
from envgym.errors import EnvgymError as EnvgymError
from envgym.errors import EnvironmentFailure as EnvironmentFailure
from envgym.errors import Failure as Failure
from envgym.errors import GraderFailure as GraderFailure
from envgym.errors import HostLost as HostLost
from envgym.errors import InfrastructureFailure as InfrastructureFailure
from envgym.errors import LearnerDied as LearnerDied
from envgym.errors import Misconfigured as Misconfigured
from envgym.errors import Overloaded as Overloaded
from envgym.errors import PoolFull as PoolFull
from envgym.errors import ReplayDiverged as ReplayDiverged
from envgym.errors import SandboxDied as SandboxDied
from envgym.errors import SandboxUnavailable as SandboxUnavailable
from envgym.errors import SnapshotGone as SnapshotGone
from envgym.errors import StoreCorrupt as StoreCorrupt
from envgym.errors import WorkersLost as WorkersLost
from envgym.function_tool import FunctionTool as FunctionTool
from envgym.function_tool import ToolRefused as ToolRefused
from envgym.function_tool import tool as tool
from envgym.interpreter import CellError as CellError
from envgym.interpreter import CellResult as CellResult
from envgym.interpreter import Interpreter as Interpreter
from envgym.interpreter import InterpreterSnapshot as InterpreterSnapshot
from envgym.interpreter import Variable as Variable
from envgym.jobs import Job as Job
from envgym.jobs import Memory as Memory
from envgym.jobs import Stretch as Stretch
from envgym.jobs import run_episode as run_episode
from envgym.jobs import stream as stream
from envgym.limits import Limits as Limits
from envgym.limits import Resources as Resources
from envgym.limits import Sampling as Sampling
from envgym.messages import Action as Action
from envgym.messages import ImagePart as ImagePart
from envgym.messages import Message as Message
from envgym.messages import ParseError as ParseError
from envgym.messages import Part as Part
from envgym.messages import TextPart as TextPart
from envgym.messages import ToolCall as ToolCall
from envgym.messages import ToolSpec as ToolSpec
from envgym.messages import text_of as text_of
from envgym.page import Acted as Acted
from envgym.page import Browser as Browser
from envgym.page import Outcome as Outcome
from envgym.page import Page as Page
from envgym.page import PageLimits as PageLimits
from envgym.page import PageSpec as PageSpec
from envgym.page import PageView as PageView
from envgym.page import Wanted as Wanted
from envgym.page_actions import PageAction as PageAction
from envgym.page_actions import Target as Target
from envgym.policy import Agent as Agent
from envgym.policy import AgentFactory as AgentFactory
from envgym.policy import Completion as Completion
from envgym.policy import Policy as Policy
from envgym.policy import Prompt as Prompt
from envgym.policy import Reply as Reply
from envgym.policy import Session as Session
from envgym.policy import VersionRun as VersionRun
from envgym.registry import EnvSpec as EnvSpec
from envgym.registry import make as make
from envgym.registry import make_backend as make_backend
from envgym.registry import make_scheme as make_scheme
from envgym.registry import open_interpreter as open_interpreter
from envgym.registry import register as register
from envgym.replay import Replaying as Replaying
from envgym.rollout import Origin as Origin
from envgym.rollout import Recorder as Recorder
from envgym.rollout import Rollout as Rollout
from envgym.rollout import branch as branch
from envgym.rollout import play as play
from envgym.sandbox import WARM_PYTHON as WARM_PYTHON
from envgym.sandbox import BackendReport as BackendReport
from envgym.sandbox import ExecResult as ExecResult
from envgym.sandbox import MemoryUse as MemoryUse
from envgym.sandbox import MeteredBackend as MeteredBackend
from envgym.sandbox import ProcessStatus as ProcessStatus
from envgym.sandbox import Sandbox as Sandbox
from envgym.sandbox import SandboxBackend as SandboxBackend
from envgym.sandbox import SandboxSnapshot as SandboxSnapshot
from envgym.sandbox import Shell as Shell
from envgym.screen import Screen as Screen
from envgym.screen import ScreenAction as ScreenAction
from envgym.screen import ScreenView as ScreenView
from envgym.screen_tools import SCREEN_TOOLS as SCREEN_TOOLS
from envgym.screen_tools import screen_action as screen_action
from envgym.screening import open_screen as open_screen
from envgym.store import StoreReader as StoreReader
from envgym.store import StoreWriter as StoreWriter
from envgym.store import follow as follow
from envgym.task import Task as Task
from envgym.task import TaskSet as TaskSet
from envgym.task import Tree as Tree
from envgym.task import World as World
from envgym.toolbox import Tool as Tool
from envgym.toolbox import Toolbox as Toolbox
from envgym.toolbox import ToolFault as ToolFault
from envgym.toolbox import ToolLimits as ToolLimits
from envgym.toolbox import ToolResult as ToolResult
from envgym.tools import check_call as check_call
from envgym.tools import compact as compact
from envgym.tools import parse_call as parse_call
from envgym.tools import tool_spec as tool_spec

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
