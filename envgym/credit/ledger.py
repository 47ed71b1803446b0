"""The arrays that credit reads: groups of episodes as flat columns with offsets, built once, never changed.

Axes: G rows, one for what one actor did in one episode (with one actor: the episodes, in order); N turns, row after
row; T sampled tokens, turn after turn; M states, one before every turn and one after each row's last. The state
before turn n of row g is ``n + g``, the one after it ``n + g + 1``. Prompt and observation tokens have no place
here, so nothing can count them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envgym.credit.checks import shown
from envgym.env import EARNED_BY, Step
from envgym.episode import Episode, Group, Turn

__all__ = ["MOST", "Floats", "Ints", "Ledger", "offsets"]

MOST = 1e30
"""The largest size of a reward: squares and sums of such stay finite, and credit fits into its 32 bits."""

Floats = NDArray[np.floating]
Ints = NDArray[np.intp]


def offsets(counts: Sequence[int] | Ints) -> Ints:
    """Where each of the rows begins, and the end: [K] counts -> [K + 1], as in compressed sparse rows."""
    ends = np.zeros(len(counts) + 1, np.intp)
    np.cumsum(counts, out=ends[1:])
    return ends


def _groups(given: object) -> tuple[Group, ...]:
    if isinstance(given, Group) or not isinstance(given, Iterable):
        what = "one Group" if isinstance(given, Group) else shown(given)
        raise TypeError(f"{what} is given; a scheme takes a sequence of groups: [group]")
    groups = tuple(given)
    for place, group in enumerate(groups):
        if not isinstance(group, Group):
            raise TypeError(
                f"groups[{place}] is of class {type(group).__name__}; a scheme takes a sequence of groups: "
                "Group(task_id, (episode, ...))"
            )
    return groups


@dataclass(frozen=True, eq=False)
class Ledger:
    """Groups as arrays. Make one with `Ledger.of`.

    group_G: number of the row's group. actor_G: number of its actor's name, in order of appearance.
    turns [G + 1], tokens [N + 1]: offsets of rows into turns, and of turns into tokens.
    reward_N: what each turn earned, 0 where nothing was said (`said_N`: whether something was).
    inherited_G: what the turns that a fork shares with its parent earned; 0 for others.
    alive_G: whether the world held. truncated_G: whether a bound ended it: what follows is unknown, not zero.
    state_M: equal numbers in one group mean equal state keys; -1 without a key.
    fork_G: the state of another row from which this one was forked; -1 for others.
    """

    groups: tuple[Group, ...]
    group_G: Ints
    actor_G: Ints
    turns: Ints
    tokens: Ints
    reward_N: NDArray[np.float64]
    said_N: NDArray[np.bool_]
    inherited_G: NDArray[np.float64]
    alive_G: NDArray[np.bool_]
    truncated_G: NDArray[np.bool_]
    state_M: Ints
    fork_G: Ints
    parts: tuple[tuple[Episode, tuple[int, ...]], ...]
    """for each row its episode and the numbers of its turns there; () means all of them"""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Ledger":
        """The ledger of some groups, in their order.

        Raises ValueError for a reward that is not finite, or above `MOST` in size: credit of it would be no number.
        A reward belongs to who acted, or to whom the step names (`envgym.env.EARNED_BY`), whose last turn before
        it gets it. Where some of an episode's turns were sampled and others were not (a
        simulated user's, a script's), what follows one that was not belongs to the last sampled turn before it.
        """
        return _Build().of(_groups(groups))

    @property
    def rows(self) -> int:
        """G."""
        return len(self.group_G)

    @cached_property
    def role_G(self) -> Ints:
        """Equal for rows of one group and one actor [G]: who plays another role has other rewards, no peer."""
        return self.group_G * (int(self.actor_G.max(initial=0)) + 1) + self.actor_G

    @cached_property
    def row_N(self) -> Ints:
        """The row of every turn [N]."""
        return np.repeat(np.arange(self.rows), np.diff(self.turns))

    @cached_property
    def turn_T(self) -> Ints:
        """The turn of every sampled token [T]."""
        return np.repeat(np.arange(len(self.reward_N)), np.diff(self.tokens))

    @cached_property
    def before_N(self) -> Ints:
        """The state [N] in which every turn was taken; the one that followed it is one more."""
        return np.arange(len(self.reward_N)) + self.row_N

    @cached_property
    def left_G(self) -> Ints:
        """How many tokens of its first turn a fork shares with the turn that it left in its middle [G]; else 0.

        Those tokens are the parent's choice, so the fork is no sample of what the state before that turn is worth.
        """
        shared = [
            episode.parent.token
            if episode.parent is not None and episode.turns and (not numbers or numbers[0] == 0) else 0
            for episode, numbers in self.parts
        ]  # fmt: skip
        return np.array(shared, np.intp)

    @cached_property
    def shared_tokens(self) -> Ints:
        """The places [..] among the sampled tokens T of those that forks share with their parents' turns."""
        rows = np.flatnonzero(self.left_G)
        begins, first = self.row_tokens[rows], self.tokens[self.turns[rows] + 1]
        ends = np.minimum(begins + self.left_G[rows], first)
        return np.concatenate([np.zeros(0, np.intp), *map(np.arange, begins, ends)])

    @cached_property
    def last_G(self) -> Ints:
        """The state [G] with which every row ended."""
        return self.turns[1:] + np.arange(self.rows)

    @cached_property
    def row_M(self) -> Ints:
        """The row of every state [M]."""
        return np.repeat(np.arange(self.rows), np.diff(self.turns) + 1)

    @cached_property
    def row_tokens(self) -> Ints:
        """Offsets [G + 1] of rows into sampled tokens."""
        return self.tokens[self.turns]

    @cached_property
    def logprob_T(self) -> NDArray[np.float32]:
        """Log-probabilities [T] as sampled, in nats."""
        return np.concatenate([np.zeros(0, np.float32), *[turn.logprobs for turn in self.all_turns()]])

    @cached_property
    def id_T(self) -> NDArray[np.int32]:
        """Sampled token ids [T]."""
        return np.concatenate([np.zeros(0, np.int32), *[turn.sampled_ids for turn in self.all_turns()]])

    @cached_property
    def seconds_N(self) -> NDArray[np.float64]:
        """What actor and world took for every turn [N], in seconds; 0 where nobody measured."""
        return np.array([turn.act_s + turn.step_s for turn in self.all_turns()], np.float64)

    @cached_property
    def malformed_N(self) -> NDArray[np.bool_]:
        """Whether what was said is no action [N]."""
        return np.array([turn.error is not None for turn in self.all_turns()], np.bool_)

    @cached_property
    def outcome_G(self) -> NDArray[np.float64]:
        """What the row's whole path earned [G], undiscounted; NaN where the world failed."""
        total = np.zeros(self.rows)
        np.add.at(total, self.row_N, self.reward_N)
        return np.where(self.alive_G, total + self.inherited_G, np.nan)

    def channel_N(self, name: str) -> NDArray[np.float64]:
        """A named part of the rewards [N]; NaN where a step has none of that name.

        Raises ValueError for one that is not finite, or above `MOST` in size.
        """
        found = [turn.step.channels.get(name) for turn in self.all_turns()]
        for place, value in enumerate(found):
            if value is not None and not abs(value) <= MOST:
                raise self._too_much(f"channel {name!r}", place, value)
        return np.array(found, np.float64)  # None is NaN there

    def _too_much(self, name: str, place: int, value: float) -> ValueError:
        episode, numbers = self.parts[int(self.row_N[place])]
        turn = place - int(self.turns[self.row_N[place]])
        return ValueError(
            f"{name} is {value:g} in turn {numbers[turn] if numbers else turn} of episode {episode.id} of task "
            f"{episode.task_id}; it must be finite and at most {MOST:g} in size: scale it, or mend what gave it"
        )

    def all_turns(self) -> Iterator[Turn]:
        """Every turn, in the order of the N axis."""
        for episode, numbers in self.parts:
            if numbers:
                yield from (episode.turns[k] for k in numbers)
            else:
                yield from episode.turns

    def all_states(self) -> Iterator[Step]:
        """The step that shows every state, in the order of the M axis."""
        for episode, numbers in self.parts:
            steps = _steps(episode)
            if numbers:
                yield from (steps[k] for k in numbers)
                yield steps[numbers[-1] + 1]
            else:
                yield from steps

    def per_episode(self, values_T: Floats) -> list[NDArray[np.float32]]:
        """Token values [T] as one float32 array for each episode, its own turns in order."""
        found: list[NDArray[np.float32]] = []
        flat = np.asarray(values_T, np.float32)
        row = 0
        while row < self.rows:
            episode, numbers = self.parts[row]
            if not numbers:
                found.append(flat[self.row_tokens[row] : self.row_tokens[row + 1]])
                row += 1
                continue
            pieces: dict[int, NDArray[np.float32]] = {}
            while row < self.rows and self.parts[row][0] is episode:
                for place, number in enumerate(self.parts[row][1], int(self.turns[row])):
                    pieces[number] = flat[self.tokens[place] : self.tokens[place + 1]]
                row += 1
            found.append(np.concatenate([pieces[k] for k in sorted(pieces)]))
        return found


class _Build:
    """The columns while they are collected: plain lists, one pass over the episodes."""

    def __init__(self) -> None:
        self.group: list[int] = []
        self.actor: list[int] = []
        self.counts: list[int] = []
        self.sampled: list[int] = []
        self.rewards: list[float | None] = []
        self.inherited: list[float] = []
        self.states: list[int] = []
        self.forks: list[int] = []
        self.parts: list[tuple[Episode, tuple[int, ...]]] = []
        self.actors: dict[str, int] = {}

    def of(self, groups: tuple[Group, ...]) -> Ledger:
        for number, group in enumerate(groups):
            self._group(number, group)
        episodes = [episode for episode, _ in self.parts]
        made = Ledger(
            groups=groups,
            group_G=np.array(self.group, np.intp),
            actor_G=np.array(self.actor, np.intp),
            turns=offsets(self.counts),
            tokens=offsets(self.sampled),
            reward_N=np.array([reward or 0.0 for reward in self.rewards], np.float64),
            said_N=np.array([reward is not None for reward in self.rewards], np.bool_),
            inherited_G=np.array(self.inherited, np.float64),
            alive_G=np.array([episode.failure is None for episode in episodes], np.bool_),
            truncated_G=np.array(
                [episode.stop is not None and episode.stop.truncated for episode in episodes], np.bool_
            ),
            state_M=np.array(self.states, np.intp),
            fork_G=np.array(self.forks, np.intp),
            parts=tuple(self.parts),
        )
        sizes = np.abs(made.reward_N)
        if not sizes.max(initial=0.0) <= MOST:  # NaN is not, either
            place = int(np.flatnonzero(~(sizes <= MOST))[0])
            raise made._too_much("reward", place, float(made.reward_N[place]))
        return made

    def _group(self, number: int, group: Group) -> None:
        keys: dict[str, int] = {"": -1}
        members = {episode.id: episode for episode in group}
        paths: dict[str, tuple[Turn, ...]] = {}
        begins: dict[tuple[str, str], tuple[int, int]] = {}  # (episode, actor): its first state, turns inherited
        for episode in group:
            shared = () if episode.parent is None else paths[episode.parent.episode][: episode.parent.turn]
            path = paths[episode.id] = (*shared, *episode.turns)
            earned = _earned(path)
            actors = list(dict.fromkeys(turn.actor for turn in episode.turns)) or [""]
            for actor in actors:
                own = (
                    () if len(actors) == 1
                    else tuple(k for k, turn in enumerate(episode.turns) if turn.actor == actor)
                )  # fmt: skip
                self._row(number, episode, actor, own, earned[len(shared) :], keys)
                mine = [reward for turn, reward in zip(shared, earned, strict=False) if turn.actor == actor]
                self.inherited.append(sum(reward or 0.0 for reward in mine))
                begins[episode.id, actor] = len(self.states) - self.counts[-1] - 1, len(mine)
                self.forks.append(_left(episode, actor, members, begins))

    def _row(
        self,
        number: int,
        episode: Episode,
        actor: str,
        own: tuple[int, ...],
        rewards: list[float | None],
        keys: dict[str, int],
    ) -> None:
        turns = episode.turns
        places = own or range(len(turns))
        self.group.append(number)
        self.actor.append(self.actors.setdefault(actor, len(self.actors)))
        self.counts.append(len(places))
        self.parts.append((episode, own))
        self.sampled += [len(turns[k].sampled_ids) for k in places]
        self.rewards += [rewards[k] for k in places]
        steps = [step.state_key for step in _steps(episode)]
        met = [steps[k] for k in places] + [steps[places[-1] + 1] if places else steps[0]]
        self.states += [keys.setdefault(key, len(keys) - 1) for key in met]


def _left(
    episode: Episode, actor: str, members: dict[str, Episode], begins: dict[tuple[str, str], tuple[int, int]]
) -> int:
    """The state of another row from which this actor's row of an episode was forked; -1 for none."""
    if episode.parent is None:
        return -1
    owner = members[episode.parent.episode]
    while owner.parent is not None and episode.parent.turn < owner.parent.turn:
        owner = members[owner.parent.episode]
    found = begins.get((owner.id, actor))
    return -1 if found is None else found[0] + begins[episode.id, actor][1] - found[1]


def _steps(episode: Episode) -> list[Step]:
    """The step that shows the state before every turn, and the last one; a thought left the world as it was."""
    found = [episode.root]
    for turn in episode.turns:
        found.append(found[-1] if turn.thought else turn.step)
    return found


def _earned(turns: Sequence[Turn]) -> list[float | None]:
    """The rewards of a path at the turns of who earned them; where one was not sampled, the last that was."""
    rewards = [turn.step.reward for turn in turns]
    if len({turn.actor for turn in turns}) < 2:
        return rewards
    _pay(rewards, turns)
    sampling = {turn.actor for turn in turns if len(turn.sampled_ids)}
    to = -1
    for index, turn in enumerate(turns):
        if turn.actor in sampling:
            to = index
        elif to >= 0 and (reward := rewards[index]) is not None:
            rewards[to] = (rewards[to] or 0.0) + reward
            rewards[index] = None
    return rewards


def _pay(rewards: list[float | None], turns: Sequence[Turn]) -> None:
    """Move what was earned by another than who acted to the earner's last turn; nothing where there is none."""
    last: dict[str, int] = {}
    for index, turn in enumerate(turns):
        last[turn.actor] = index
        to = last.get(turn.step.info.get(EARNED_BY, turn.actor), index)
        if to != index and (reward := rewards[index]) is not None:
            rewards[to] = (rewards[to] or 0.0) + reward
            rewards[index] = None
