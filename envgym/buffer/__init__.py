"""Between playing and learning: a queue of fresh groups, a replay of old ones, an archive of states to start from.

`OnPolicyQueue` promises how stale a trained token can be, `Replay` draws what is off-policy, `SnapshotArchive`
lends states that episodes begin in, and a `Partial` is an episode that goes on later. None of them plays, stores or
credits. Their states are plain JSON beside episodes, so a checkpoint can hold them.
"""

from envgym.buffer.archive import Keeper, Lent, SnapshotArchive
from envgym.buffer.partial import Partial, join
from envgym.buffer.queue import OnPolicyQueue
from envgym.buffer.replay import ONLINE, Added, Draw, Evict, Replay, ReplayState, group_tokens, success_rate
from envgym.buffer.sampling import (
    Columns,
    Rule,
    Schedule,
    combined,
    constant,
    dealt,
    drawn,
    failures_first,
    importance,
    linear,
    probabilities,
    recent,
    uniform,
)
from envgym.buffer.spoiled import Loss, Spoiled, Why
from envgym.buffer.starts import (
    Standing,
    Start,
    StartRule,
    Status,
    across,
    classify,
    edge,
    kept_turns,
    starts_of,
    turn_bound,
)
from envgym.buffer.versions import Span, counted_runs, joined_runs, oldest_version, span
from envgym.buffer.waiting import Counts, QueueState, Swept, Taken, Ticket

__all__ = [
    "ONLINE",
    "Added",
    "Columns",
    "Counts",
    "Draw",
    "Evict",
    "Keeper",
    "Lent",
    "Loss",
    "OnPolicyQueue",
    "Partial",
    "QueueState",
    "Replay",
    "ReplayState",
    "Rule",
    "Schedule",
    "SnapshotArchive",
    "Span",
    "Spoiled",
    "Standing",
    "Start",
    "StartRule",
    "Status",
    "Swept",
    "Taken",
    "Ticket",
    "Why",
    "across",
    "classify",
    "combined",
    "constant",
    "counted_runs",
    "dealt",
    "drawn",
    "edge",
    "failures_first",
    "group_tokens",
    "importance",
    "join",
    "joined_runs",
    "kept_turns",
    "linear",
    "oldest_version",
    "probabilities",
    "recent",
    "span",
    "starts_of",
    "success_rate",
    "turn_bound",
    "uniform",
]
