"""An episode that was cut and went on is the episode that was never cut, and every token keeps its version."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.buffer.partial import Partial, join
from envgym.buffer.versions import Span, counted_runs, joined_runs, oldest_version, span
from envgym.env import Grade, Snapshot, Step, StopReason
from envgym.episode import Episode, ForkPoint, Turn
from envgym.errors import Boundary, Failure
from envgym.limits import Limits, Sampling
from envgym.messages import Action, Message
from envgym.policy import Completion, Prompt, Session, VersionRun
from envgym.rollout import Origin, Rollout, play
from envgym.testing.fakes import MemoryEnv, ScriptedAgent, ScriptedPolicy

SNAPSHOT = Snapshot(restore="replay", task_id="t", seed=0)
BROKE = Failure(boundary=Boundary.ENVIRONMENT, kind="k", message="m", where="step", turn=0)


@st.composite
def runs_of(draw: st.DrawFn, tokens: int) -> tuple[VersionRun, ...]:
    """Version runs over some tokens, as a policy reports them: ascending, without equal neighbours."""
    versions = draw(st.lists(st.integers(0, 3), min_size=tokens, max_size=tokens))
    return tuple(
        VersionRun(at, version) for at, version in enumerate(versions) if at == 0 or versions[at - 1] != version
    )


@st.composite
def episodes(draw: st.DrawFn, one_version: bool = False) -> Episode:
    turns: list[Turn] = []
    position = segment = 0
    for index in range(draw(st.integers(1, 4))):
        if index and draw(st.integers(0, 4)) == 0:
            segment, position = segment + 1, 0
        prompt, sampled = draw(st.integers(0, 3)), draw(st.integers(0, 5))
        numbers = np.arange(prompt + sampled) + 100 * index
        versions = ((VersionRun(0, 7),) if sampled else ()) if one_version else draw(runs_of(sampled))
        turns.append(
            Turn(
                "agent", (Message(role="assistant", content=f"said {index}"),), Step(reward=float(index)),
                numbers[:prompt].astype(np.int32), numbers[prompt:].astype(np.int32),
                -numbers[prompt:].astype(np.float32) / 8, versions, segment, position,
                allowed=(1, 2) if sampled and draw(st.booleans()) else None,
                snapshot=SNAPSHOT if draw(st.booleans()) else None, act_s=1.0, step_s=0.5,
            )
        )  # fmt: skip
        position += prompt + sampled
    return Episode("e", "t", Step(), tuple(turns), 3, stop=StopReason.GOAL, group="g", wall_s=4.0)


def part(turn: Turn, begin: int, end: int) -> Turn:
    """The sampled tokens [begin, end) of a turn, as the stretch that sampled them recorded them."""
    if (begin, end) == (0, len(turn.sampled_ids)):
        return turn
    whole = counted_runs(turn.versions, len(turn.sampled_ids))
    each = [version for count, version in whole for _ in range(count)][begin:end]
    last, first = end == len(turn.sampled_ids), begin == 0
    return replace(
        turn,
        messages=turn.messages if last else (),
        step=turn.step if last else Step(),
        prompt_ids=turn.prompt_ids if first else turn.prompt_ids[:0],
        sampled_ids=turn.sampled_ids[begin:end],
        logprobs=turn.logprobs[begin:end],
        versions=tuple(VersionRun(at, version) for at, version in enumerate(each)),  # a run per token: not minimal
        position=turn.position + (0 if first else len(turn.prompt_ids) + begin),
        allowed=turn.allowed if first else None,
        snapshot=turn.snapshot if first else None,
        act_s=(end - begin) / max(1, len(turn.sampled_ids)),
    )


def stretches(episode: Episode, cuts: list[tuple[int, int]]) -> list[tuple[list[Turn], bool]]:
    """The turns of an episode as stretches that end at the cuts (turn, sampled token), and whether each is open."""
    found: list[tuple[list[Turn], bool]] = []
    turn = token = 0
    for to, at in [*sorted(set(cuts)), (len(episode.turns), 0)]:
        made = []
        while turn < to:
            one = episode.turns[turn]
            made.append(part(one, token, len(one.sampled_ids)))
            turn, token = turn + 1, 0
        if turn < len(episode.turns) and at > token:
            made.append(part(episode.turns[turn], token, at))
            token = at
            found.append((made, True))
        else:
            found.append((made, token > 0))
    return found


def rejoined(episode: Episode, cuts: list[tuple[int, int]]) -> Episode:
    *before, (last, _open) = stretches(episode, cuts)
    partial = Partial(replace(episode, turns=(), stop=StopReason.TOKEN_LIMIT, wall_s=0.0))
    for turns, open_turn in before:
        partial = partial.extended(turns, open=open_turn and bool(turns), snapshot=SNAPSHOT, wall_s=1.0)
    return partial.finished(last, stop=episode.stop, wall_s=4.0 - len(before))


def cuts_of(episode: Episode) -> st.SearchStrategy[list[tuple[int, int]]]:
    places = [
        (turn, token) for turn, one in enumerate(episode.turns) for token in range(max(1, len(one.sampled_ids)))
    ]
    return st.lists(st.sampled_from(places), max_size=5)


@pytest.mark.slow
@given(data=st.data(), one_version=st.booleans())
def test_an_episode_that_was_cut_anywhere_is_the_episode_that_was_not(
    data: st.DataObject, one_version: bool
) -> None:
    """Ids, log-probs, versions, messages, steps, snapshots, rewards: all; times but for their last bits."""
    episode = data.draw(episodes(one_version))
    again = rejoined(episode, data.draw(cuts_of(episode)))
    assert again == episode
    assert again.wall_s == pytest.approx(episode.wall_s)
    assert [turn.act_s for turn in again.turns if len(turn.sampled_ids)] == pytest.approx(
        [turn.act_s for turn in episode.turns if len(turn.sampled_ids)]
    )


@pytest.mark.slow
@given(st.data())
def test_the_oldest_token_of_a_partial_decides_and_it_never_gets_younger(data: st.DataObject) -> None:
    episode = data.draw(episodes())
    partial = Partial(replace(episode, turns=(), stop=StopReason.TOKEN_LIMIT))
    ages: list[int] = []
    for turns, open_turn in stretches(episode, data.draw(cuts_of(episode)))[:-1]:
        partial = partial.extended(turns, open=open_turn and bool(turns))
        ages += [] if partial.oldest_version is None else [partial.oldest_version]
    assert ages == sorted(ages, reverse=True)
    whole = oldest_version(episode)
    assert all(whole is not None and whole <= age for age in ages)


def cut_turn(*, tokens: int = 2, position: int = 0) -> Turn:
    return Turn(
        "agent", (), Step(), np.array([9], np.int32), np.arange(tokens, dtype=np.int32),
        np.zeros(tokens, np.float32), (VersionRun(0, 4),), 0, position,
    )  # fmt: skip


def rest_turn(*, tokens: int = 3, position: int = 3, **other: object) -> Turn:
    made = Turn(
        "agent", (Message(role="assistant", content="done"),), Step(reward=1.0),
        sampled_ids=np.arange(tokens, dtype=np.int32), logprobs=np.zeros(tokens, np.float32),
        versions=(VersionRun(0, 4), VersionRun(1, 5)), position=position,
    )  # fmt: skip
    return replace(made, **other)  # type: ignore[arg-type]


def test_a_turn_that_two_versions_wrote_says_which_token_is_whose() -> None:
    turn = join(cut_turn(), rest_turn())
    assert turn.versions == (VersionRun(0, 4), VersionRun(3, 5))
    assert (list(turn.prompt_ids), list(turn.sampled_ids), turn.position) == ([9], [0, 1, 0, 1, 2], 0)
    assert span(turn) == Span(start=4, end=5, oldest=4)
    assert (turn.step.reward, turn.messages[0].content) == (1.0, "done")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (rest_turn(actor="user"), "it is an act of 'user', the beginning one of 'agent'"),
        (rest_turn(prompt_ids=np.zeros(2, np.int32)), "adds 2 prompt ids"),
        (rest_turn(snapshot=SNAPSHOT), "it has a snapshot"),
        (rest_turn(position=4), "start at position 4 of segment 0; the beginning ends at 3 of segment 0"),
        (rest_turn(segment=1), "of segment 1; the beginning ends"),
    ],
)
def test_what_is_not_the_rest_of_a_turn_is_refused(rest: Turn, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join(cut_turn(), rest)


def begun(*turns: Turn, open: bool = False) -> Partial:
    return Partial(Episode("e", "t", Step(), turns, 0, stop=StopReason.TOKEN_LIMIT), open=open)


def test_an_open_turn_must_be_finished_or_its_world_have_failed() -> None:
    partial = begun(cut_turn(), open=True)
    with pytest.raises(ValueError, match="has an open turn"):
        partial.finished((), stop=StopReason.GOAL)
    with pytest.raises(ValueError, match="the turn is still open"):
        partial.finished((rest_turn(messages=()),), stop=StopReason.GOAL)
    with pytest.raises(ValueError, match="the turn is still open"):
        partial.extended((rest_turn(messages=()), cut_turn(position=6)), open=True)
    failed = partial.finished((), failure=BROKE)
    assert (failed.turns, failed.failure, failed.stop) == ((), BROKE, None)
    assert partial.extended(()).open


def test_only_what_a_token_limit_cut_is_partial_and_only_a_turn_without_a_message_is_open() -> None:
    with pytest.raises(ValueError, match="ended \\(goal\\)"):
        Partial(Episode("e", "t", Step(), (), 0, stop=StopReason.GOAL))
    with pytest.raises(ValueError, match="an open turn has no message"):
        begun(open=True)
    with pytest.raises(ValueError, match="ends with a turn without a message"):
        begun().extended((rest_turn(position=0),), open=True)


def test_grades_of_the_end_are_added() -> None:
    grade = Grade(grader="g", version="1", channels={})
    assert begun().finished((), stop=StopReason.GAVE_UP, grades=(grade,)).grades == (grade,)


@pytest.mark.parametrize(
    ("versions", "tokens", "expected"),
    [
        ([], 0, ()),
        ([(0, 3)], 4, ((4, 3),)),
        ([(0, 3), (2, 3), (3, 5)], 4, ((3, 3), (1, 5))),
        ([(0, 3), (2, 4), (2, 5)], 4, ((2, 3), (2, 5))),  # a run without tokens is none
        ([(0, 3), (4, 9), (6, 10)], 4, ((4, 3),)),  # nor are runs behind the end
    ],
)
def test_runs_as_counts(
    versions: list[tuple[int, int]], tokens: int, expected: tuple[tuple[int, int], ...]
) -> None:
    assert counted_runs([VersionRun(*run) for run in versions], tokens) == expected


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ([], "first 4 of 4 sampled tokens have no policy version"),
        ([(1, 3)], "first 1 of 4 sampled tokens have no"),
        ([(0, 3), (3, 4), (2, 5)], r"start at \[0, 3, 2\]; starts must ascend"),
    ],
)
def test_tokens_whose_version_is_not_known_are_an_error(versions: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        counted_runs([VersionRun(*run) for run in versions], 4)


def test_joined_runs_are_minimal() -> None:
    one, other = (VersionRun(0, 1),), (VersionRun(0, 1), VersionRun(1, 2))
    assert joined_runs([(one, 2), ((), 0), (other, 2), (one, 1)]) == (
        VersionRun(0, 1), VersionRun(3, 2), VersionRun(4, 1),
    )  # fmt: skip


class NoisyPolicy(ScriptedPolicy):
    """As scripted, with as many tokens per turn as its context is long, so that budgets fall anywhere."""

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        self.tokens = 1 + len(prompt.ids) % 5
        return await super().sample(prompt, sampling, session)


async def played_in_stretches(budget: int | None, *, versions: bool = False) -> tuple[Episode, int]:
    """One game, played by the rollout in stretches of `budget` tokens; every stretch is under the next version."""
    policy = NoisyPolicy()
    looks = [Action.call("look", cell=n % 5) for n in range(12)]
    agent = ScriptedAgent([*looks, Action.call("give_up")], policy=policy)
    env, stretches = MemoryEnv(), 1
    rollout = Rollout(limits=Limits(tokens=budget))
    cut = await play(env, {agent.name: agent}, origin=Origin("e", 5), rollout=rollout)
    if cut.stop is not StopReason.TOKEN_LIMIT:
        return cut, stretches
    partial = Partial(cut)
    while True:
        policy.version += versions
        stretches += 1
        whole = partial.episode
        origin = Origin("e", 5, parent=ForkPoint("e", len(whole.turns)), step=whole.turns[-1].step)
        more = await play(env, {agent.name: agent}, origin=origin, rollout=rollout)
        if more.stop is not StopReason.TOKEN_LIMIT:
            end = partial.finished(more.turns, stop=more.stop, failure=more.failure, grades=more.grades)
            return end, stretches
        partial = partial.extended(more.turns, wall_s=more.wall_s)


@pytest.mark.parametrize("budget", [1, 7, 20, 60])
def test_an_episode_that_the_rollout_played_in_stretches_is_the_one_played_at_once(budget: int) -> None:
    whole, _one = asyncio.run(played_in_stretches(None))
    again, stretches = asyncio.run(played_in_stretches(budget))
    assert stretches > 1
    assert again == whole
    later, stretches = asyncio.run(played_in_stretches(budget, versions=True))
    assert [list(turn.sampled_ids) for turn in later.turns] == [list(turn.sampled_ids) for turn in whole.turns]
    newest = max(run.version for turn in later.turns for run in turn.versions)
    assert (oldest_version(later), newest) == (0, stretches - 1)
