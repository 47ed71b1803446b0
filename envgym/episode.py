"""What happened, as values: `Turn`, `Episode` (a path), `Group` (a tree of comparable paths).

An episode stores only the turns it added; a forked one points to its parent, and `Group.path` gives the whole
history. Each turn stores only the token ids it added. Nothing here is changed after it was built: grades are
appended by making a new episode value, credit never enters.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from envgym.env import Grade, Snapshot, Step, StopReason
from envgym.errors import Failure
from envgym.frozen import quick
from envgym.messages import Action, Message, ParseError, text_of
from envgym.policy import ROLES, Reply, Roles, VersionRun, shared_versions

__all__ = ["SPENT", "THOUGHT", "Began", "Episode", "ForkPoint", "Group", "Turn", "Unfinished", "earned"]

SPENT = "envgym.spent"
"""In the info of a turn's step: what the world was told that saying it took (`Action.spent`), as a mapping."""

THOUGHT = "envgym.thought"
"""In the info of a step that no world made: the turn is a thought (see `Turn.thought`)."""

_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)
_NO_IDS: NDArray[np.int32] = np.zeros(0, np.int32)
_NO_LOGPROBS: NDArray[np.float32] = np.zeros(0, np.float32)
_NO_IDS.flags.writeable = False
_NO_LOGPROBS.flags.writeable = False


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where an episode left its parent: after `turn` whole turns, and `token` sampled tokens of the next.

    Turns are counted along the parent's whole path (`Group.path`), its ancestors' shared turns included. A turn
    that was left in its middle belongs to both: the fork stores it whole.
    """

    episode: str
    turn: int
    token: int = 0


@quick
@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One act and the world's answer.

    messages: what the actor said (primary), last; before it what only the actor's own side showed the model (a
        system prompt, tools, a question of its program), so that all that stands behind the ids is told.
    prompt_ids [P] int32: ids added to the context before sampling; sampled_ids [S] int32; logprobs [S] float32.
    A turn without sampled ids (a person, a script, a chat endpoint) is stored but never trains.
    error: why what was said is no action, where it is none (see `Action`).
    roles: whose tokens `prompt_ids` are; () where whoever made them does not know.
    act_s, step_s: seconds that the actor and the world took; 0.0 where nobody measured. Not part of equality.
    """

    actor: str
    messages: tuple[Message, ...]
    step: Step
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    sampled_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_IDS)
    logprobs: NDArray[np.float32] = field(default_factory=lambda: _NO_LOGPROBS)
    versions: tuple[VersionRun, ...] = ()
    segment: int = 0
    position: int = 0
    allowed: tuple[int, ...] | None = None
    snapshot: Snapshot | None = None
    error: ParseError | None = None
    act_s: float = 0.0
    step_s: float = 0.0
    roles: Roles = ()
    _made: ClassVar[Callable[..., "Turn"]]

    @classmethod
    def of(
        cls,
        actor: str,
        reply: Reply,
        step: Step,
        snapshot: Snapshot | None = None,
        took_s: tuple[float, float] = (0.0, 0.0),
    ) -> "Turn":
        """The turn made of an agent's reply and the step that followed; took_s: `act_s` and `step_s`."""
        completion = reply.completion
        action = reply.action
        messages = (*reply.shown, action.message) if reply.shown else (action.message,)
        if completion is None:
            return cls(
                actor,
                messages,
                step,
                snapshot=snapshot,
                error=action.error,
                act_s=took_s[0],
                step_s=took_s[1],
            )
        return cls._made(
            actor,
            messages,
            step,
            np.fromiter(reply.prompt_ids, _INT, len(reply.prompt_ids)),
            np.fromiter(completion.ids, _INT, len(completion.ids)),
            np.fromiter(completion.logprobs, _FLOAT, len(completion.logprobs)),
            shared_versions(completion.versions),
            reply.segment,
            reply.position,
            reply.allowed,
            snapshot,
            action.error,
            took_s[0],
            took_s[1],
            reply.roles,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        return self._plain() == other._plain() and all(
            np.array_equal(a, b) for a, b in zip(self._arrays(), other._arrays(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside: equality is by value, hashing would lie

    def __repr__(self) -> str:
        # Short on purpose: asyncio.run prints its result's repr to itself, and arrays take milliseconds each
        said = text_of(self.messages[-1])[:40] if self.messages else ""
        return f"<Turn of {self.actor}: {said!r}, {len(self.sampled_ids)} sampled, reward {self.step.reward}>"

    def answered(self, step: Step, step_s: float) -> "Turn":
        """This turn with the world's answer."""
        # `replace` takes a multiple of the time, and every turn of a world that waits passes here
        return Turn._made(
            self.actor, self.messages, step, self.prompt_ids, self.sampled_ids, self.logprobs, self.versions,
            self.segment, self.position, self.allowed, self.snapshot, self.error, self.act_s, step_s,
            self.roles,
        )  # fmt: skip

    @property
    def action(self) -> Action:
        """What the world was given; for a thought, what the model said to its program."""
        spent = self.step.info.get(SPENT)
        if spent is None:
            return Action(message=self.messages[-1], error=self.error)
        return Action(message=self.messages[-1], error=self.error, spent=tuple(spent.items()))

    @property
    def thought(self) -> bool:
        """Whether the world never heard of it: sampled on the way to a later turn's action, it changed nothing."""
        return self.step.info.get(THOUGHT) is True

    def _plain(self) -> tuple[object, ...]:
        return (
            self.actor, self.messages, self.step, self.versions,
            self.segment, self.position, self.allowed, self.snapshot, self.error, self.roles,
        )  # fmt: skip

    def _arrays(self) -> tuple[NDArray[np.generic], ...]:
        return (self.prompt_ids, self.sampled_ids, self.logprobs)


@dataclass(frozen=True, slots=True)
class Began:
    """An episode begins: all of an `Episode` that is known before its first turn.

    attempt: an episode that begins again, with a higher one, leaves what it had behind.
    """

    id: str
    task_id: str
    root: Step
    seed: int
    parent: ForkPoint | None = None
    group: str = ""
    provenance: tuple[tuple[str, str], ...] = ()
    attempt: int = 0

    @classmethod
    def of(cls, episode: "Episode") -> "Began":
        """How an episode began."""
        return cls(
            episode.id, episode.task_id, episode.root, episode.seed, episode.parent, episode.group,
            episode.provenance,
        )  # fmt: skip


@dataclass(slots=True)
class Unfinished:
    """An episode that has begun and not ended, as far as it was recorded.

    said: the turn that the world has not answered; its `step` holds only what it cost.
    """

    began: Began
    turns: list[Turn] = field(default_factory=list)
    said: Turn | None = None


def earned(rewards: Iterable[float | None]) -> float | None:
    """What the turns of an episode or of a path earned together; None where none of them says anything of it."""
    said = [reward for reward in rewards if reward is not None]
    return float(sum(said)) if said else None


@quick
@dataclass(frozen=True, slots=True)
class Episode:
    """One path from a root (or from a fork point) to its end.

    root: the step that `reset` gave (for a fork: the step it started from).
    stop: why it ended; None exactly when `failure` says what broke, and then it is never scored.
    group: names the comparison it was played for (one draw of a task in one step of training); episodes of one
        group share task and group. "" where it was played for none.
    provenance: names and versions of what took part (policy, environment, package versions), as plain strings.
    """

    id: str
    task_id: str
    root: Step
    turns: tuple[Turn, ...]
    seed: int
    stop: StopReason | None = None
    failure: Failure | None = None
    parent: ForkPoint | None = None
    grades: tuple[Grade, ...] = ()
    group: str = ""
    provenance: tuple[tuple[str, str], ...] = ()
    wall_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if (self.stop is None) == (self.failure is None):
            raise ValueError(
                f"episode {self.id}: exactly one of stop ({self.stop}) and failure ({self.failure}) is set"
            )
        length, plain = 0, self.parent is None  # of a context that is one segment, as nearly all are
        for index, turn in enumerate(self.turns):
            sampled = len(turn.sampled_ids)
            if sampled != len(turn.logprobs):
                raise ValueError(
                    f"episode {self.id}, turn {index}: {sampled} sampled ids but {len(turn.logprobs)} log-probs"
                )
            if turn.roles:
                _check_roles(self.id, index, turn)
            if added := sampled + len(turn.prompt_ids):
                plain = plain and turn.position == length and not turn.segment
                length += added
        if not plain and self.parent is None:  # a fork's context is its parent's, which only its group knows
            list(_contexts(self, _EMPTY))  # which raises

    def __repr__(self) -> str:
        end = self.stop or (self.failure and f"{self.failure.boundary} failure {self.failure.kind}")
        return f"<Episode {self.id} of {self.task_id}: {len(self.turns)} turns, {end}, reward {self.reward}>"

    def graded(self, grade: Grade) -> "Episode":
        """This episode with one more grade."""
        return replace(self, grades=(*self.grades, grade))

    @property
    def reward(self) -> float | None:
        """The sum of its own turns' rewards; None when the world failed or nothing was rewarded.

        Of a fork this is only what came after the fork; `Group.reward` is what its whole path earned.
        """
        return None if self.failure is not None else earned(turn.step.reward for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens policies sampled in its own turns."""
        return sum(len(turn.sampled_ids) for turn in self.turns)

    @property
    def nbytes(self) -> int:
        """Bytes of its token arrays."""
        return sum(part.nbytes for turn in self.turns for part in turn._arrays())


def _check_roles(episode: str, index: int, turn: Turn) -> None:
    left = len(turn.prompt_ids)
    for role, length in turn.roles:
        if role not in ROLES:
            raise ValueError(f"episode {episode}, turn {index}: role {role!r}; the roles are: {', '.join(ROLES)}")
        left -= length if length > 0 else left + 1
    if left:
        raise ValueError(
            f"episode {episode}, turn {index}: its roles are of {[length for _, length in turn.roles]} ids, and "
            f"{len(turn.prompt_ids)} were added; each run has at least one id, and together they have all of them"
        )


_EMPTY = (0, 0)
"""Where a context begins: in segment 0, which holds no ids yet."""


def _contexts(episode: Episode, before: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The segment and its length after each turn of an episode that begins in the context `before`.

    Each turn's context must be the previous one plus what it added, or open a new segment at position 0; raises
    ValueError where one is not.
    """
    segment, length = before
    for index, turn in enumerate(episode.turns):
        added = len(turn.prompt_ids) + len(turn.sampled_ids)
        if added and turn.segment != segment:
            if turn.segment < segment or turn.position != 0:
                raise ValueError(
                    f"episode {episode.id}, turn {index}: segment {turn.segment} at position {turn.position} "
                    f"cannot follow segment {segment}; a new segment has a higher number and starts at position 0"
                )
            segment, length = turn.segment, 0
        if added and turn.position != length:
            raise ValueError(
                f"episode {episode.id}, turn {index}: its tokens start at position {turn.position} but the segment "
                f"holds {length} ids; contexts are append-only within a segment"
            )
        length += added
        yield segment, length


def _check_forks(episodes: Sequence[Episode]) -> None:
    """The prefix rule along whole paths. Every turn is looked at once, however many forks share it."""
    members: dict[str, Episode] = {}
    contexts: dict[str, list[tuple[int, int]]] = {}  # before the first own turn, and after each
    for episode in episodes:
        before = _EMPTY
        if (fork := episode.parent) is not None:
            owner = members[fork.episode]
            whole = _inherited(owner) + len(owner.turns)
            while owner.parent is not None and fork.turn < owner.parent.turn:
                owner = members[owner.parent.episode]
            after = fork.turn - _inherited(owner)
            if not 0 <= fork.turn <= whole:
                raise ValueError(
                    f"episode {episode.id} was forked from {fork.episode} after turn {fork.turn}, but that path "
                    f"has {whole} turns"
                )
            sampled = 0 if fork.turn == whole else len(owner.turns[after].sampled_ids)
            if not 0 <= fork.token <= sampled:
                raise ValueError(
                    f"episode {episode.id} was forked from {fork.episode} after {fork.token} sampled tokens of "
                    f"turn {fork.turn}, which has {sampled}"
                )
            before = contexts[owner.id][after]
        members[episode.id] = episode
        contexts[episode.id] = [before, *_contexts(episode, before)]


def _inherited(episode: Episode) -> int:
    """How many turns of its path an episode shares with its parent."""
    return 0 if episode.parent is None else episode.parent.turn


@dataclass(frozen=True, slots=True)
class Group:
    """Episodes of one task that are compared with each other; a tree when some were forked.

    A fork must leave its parent within the parent's path, and go on with the context that it found there.
    """

    task_id: str
    episodes: tuple[Episode, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for episode in self.episodes:
            if episode.task_id != self.task_id:
                raise ValueError(
                    f"group of task {self.task_id!r} holds episode {episode.id} of task {episode.task_id!r}"
                )
            if episode.id in known:
                raise ValueError(f"group of task {self.task_id!r} holds episode {episode.id} twice")
            if episode.parent is not None and episode.parent.episode not in known:
                raise ValueError(
                    f"episode {episode.id} was forked from {episode.parent.episode}, which does not come before "
                    "it in its group"
                )
            known.add(episode.id)
        if any(episode.parent is not None for episode in self.episodes):
            _check_forks(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def path(self, episode: Episode) -> tuple[Turn, ...]:
        """The whole history of an episode, its ancestors' shared turns first."""
        if episode.parent is None:
            return episode.turns
        parent = next(member for member in self.episodes if member.id == episode.parent.episode)
        return (*self.path(parent)[: episode.parent.turn], *episode.turns)

    def root(self, episode: Episode) -> Step:
        """The step that the whole history of an episode begins with: that of its eldest ancestor."""
        while episode.parent is not None:
            above = episode.parent.episode
            episode = next(member for member in self.episodes if member.id == above)
        return episode.root

    def reward(self, episode: Episode) -> float | None:
        """What an episode's whole path earned, its ancestors' shared turns included.

        None when its world failed or nothing on its path was rewarded.
        """
        return None if episode.failure is not None else earned(turn.step.reward for turn in self.path(episode))

    @property
    def scored(self) -> tuple[Episode, ...]:
        """The members whose world did not fail."""
        return tuple(episode for episode in self.episodes if episode.failure is None)
