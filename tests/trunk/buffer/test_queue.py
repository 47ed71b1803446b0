"""The on-policy queue: no token that trains is older than the bound, and every group is counted once."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envgym.buffer.partial import Partial
from envgym.buffer.queue import OnPolicyQueue
from envgym.buffer.spoiled import Loss, Spoiled, Why
from envgym.buffer.versions import oldest_version
from envgym.buffer.waiting import QueueState, Taken, Ticket
from envgym.env import Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.policy import VersionRun

BROKE = Failure(boundary=Boundary.ENVIRONMENT, kind="SandboxDied", message="killed", where="step", turn=0)


def episode(name: str, *versions: int, failed: bool = False, parent: ForkPoint | None = None) -> Episode:
    """One turn whose tokens were sampled by these versions, one token each."""
    runs = tuple(VersionRun(at, version) for at, version in enumerate(versions))
    count = len(versions)
    turn = Turn(
        "agent", (), Step(reward=1.0), np.zeros(2, np.int32), np.zeros(count, np.int32),
        np.zeros(count, np.float32), runs, position=0 if parent is None else 2 + count,
    )  # fmt: skip
    stop, failure = (None, BROKE) if failed else (StopReason.GOAL, None)
    return Episode(name, "t", Step(), (turn,), 0, stop=stop, failure=failure, parent=parent)


def group(name: str, *members: Any) -> Group:
    """Members given as their versions: an int, a tuple of ints, or "failed"."""
    made = []
    for index, one in enumerate(members):
        versions = (0,) if one == "failed" else one if isinstance(one, tuple) else (one,)
        made.append(episode(f"{name}{index}", *versions, failed=one == "failed"))
    return Group("t", tuple(made))


def ids(taken: Taken | None) -> list[list[str]]:
    assert taken is not None
    return [[member.id for member in one] for one in taken.groups]


def test_a_batch_waits_until_there_are_enough_groups_and_comes_in_the_order_of_tickets() -> None:
    queue = OnPolicyQueue(2)
    first, second = queue.try_start(), queue.try_start()
    assert first is not None
    assert second is not None
    assert (first.number, second.number, queue.try_start()) == (0, 1, None)
    queue.try_put(group("b", 0, 0), second)
    assert queue.try_take() is None
    queue.try_put(group("a", 0, 0), first)
    assert ids(queue.try_take()) == [["a0", "a1"], ["b0", "b1"]]


def test_bound_zero_is_synchronous() -> None:
    queue = OnPolicyQueue(2)
    for version in range(3):
        tickets = [queue.try_start() for _ in range(3)]
        assert tickets[2] is None
        assert queue.try_put(group("x", version)) is False  # nor is there room for one without a ticket
        for ticket in tickets[:2]:
            queue.try_put(group(f"v{version}-{ticket and ticket.number}-", version, version), ticket)
        taken = queue.try_take()
        assert taken is not None
        assert len(taken.groups) == 2
        assert queue.try_start() is None  # the learner is at it: what starts now would be of yesterday's weights
        queue.advance(version + 1)


@pytest.mark.parametrize(("bound", "batch"), [(0, 3), (1, 4), (2, 1), (3, 2)])
def test_admission_lets_in_what_can_still_be_used_and_no_more(bound: int, batch: int) -> None:
    """All that is admitted at once trains in time, if every batch moves the version by one; one more would not."""
    queue = OnPolicyQueue(batch, bound=bound)
    tickets = []
    while (ticket := queue.try_start()) is not None:
        tickets.append(ticket)
    assert len(tickets) == (bound + 1) * batch
    for ticket in tickets:
        queue.try_put(group(f"g{ticket.number}-", 0, 0), ticket)
    for version in range(bound + 1):
        assert queue.try_take() is not None
        queue.advance(version + 1)
    assert (queue.counts.trained, queue.counts.swept) == (len(tickets), 0)


@pytest.mark.parametrize(
    ("spoiled", "left", "masked", "lost"),
    [
        (Spoiled.DROP_GROUP, None, [], {"stale": 1, "failed": 1, "peers": 2}),
        (Spoiled.DROP_MEMBER, [["a0", "a3"]], [], {"stale": 1, "failed": 1}),
        (Spoiled.MASK, [["a0", "a1", "a2", "a3"]], ["a1", "a2"], {}),
    ],
)
def test_each_policy_for_a_failed_and_a_stale_member(
    spoiled: Spoiled, left: list[list[str]] | None, masked: list[str], lost: dict[str, int]
) -> None:
    queue = OnPolicyQueue(1, bound=1, version=5, spoiled=spoiled)
    queue.try_put(group("a", 5, (5, 3, 5), "failed", 4))
    taken = queue.try_take()
    if left is None:
        assert taken is None
        assert (queue.counts.swept, queue.counts.members_swept) == (1, 4)
    else:
        assert ids(taken) == left
        assert taken is not None
        assert sorted(taken.masked[0]) == masked
    assert queue.counts.lost == lost


def test_refill_asks_for_fresh_members_and_the_group_waits_for_them() -> None:
    queue = OnPolicyQueue(1, version=3, spoiled=Spoiled.REFILL)
    ticket = queue.try_start()
    queue.try_put(group("a", 3, "failed", 2), ticket)
    assert queue.try_take() is None
    assert queue.counts.mending == 1
    refill = queue.try_start()
    assert refill == Ticket(0, 3, missing=2, task_id="t")
    assert queue.try_start() is None  # asked once, and the place is taken
    with pytest.raises(ValueError, match="asked for 2 fresh members, and got 3"):
        queue.try_put(group("z", 3, 3, 3), refill)
    other = Group("t", (replace(episode("y", 3), group="another"),))
    with pytest.raises(ValueError, match=r"was played as '', and got fresh members of \['another'\]"):
        queue.try_put(other, refill)
    with pytest.raises(ValueError, match="holds episode a0 twice"):
        queue.try_put(group("a", 3), refill)
    queue.try_put(group("b", 3, "failed"), refill)
    again = queue.try_start()
    assert again is not None
    assert again.missing == 1
    queue.try_put(group("c", 3), again)
    assert ids(queue.try_take()) == [["a0", "b0", "c0"]]
    queue.advance(4)
    counts = queue.counts
    assert (counts.refilled, counts.members_trained, counts.lost) == (3, 3, {"failed": 2, "stale": 1})


def test_a_group_that_stays_spoiled_after_all_refills_is_dropped() -> None:
    queue = OnPolicyQueue(1, spoiled=Spoiled.REFILL, refills=1)
    queue.try_put(group("a", 0, "failed"), queue.try_start())
    queue.try_put(group("b", "failed"), queue.try_start())
    assert queue.counts.waiting == 0
    assert queue.counts.lost == {"failed": 2, "unfilled": 1}


def test_a_refill_of_a_group_that_is_gone_comes_late_and_is_counted() -> None:
    queue = OnPolicyQueue(1, spoiled=Spoiled.REFILL)
    queue.try_put(group("a", 0, "failed"), queue.try_start())
    refill = queue.try_start()
    queue.advance(1)  # the one member that was left is stale now
    queue.try_put(group("b", 1), refill)
    assert queue.counts.lost == {"failed": 1, "stale": 1, "late": 1}
    assert (queue.counts.members_accepted, queue.counts.members_swept) == (3, 3)


def test_abandoned_tickets_make_room_and_an_abandoned_refill_sweeps_its_group() -> None:
    queue = OnPolicyQueue(1, spoiled=Spoiled.REFILL)
    ticket = queue.try_start()
    assert ticket is not None
    queue.abandon(ticket)
    with pytest.raises(ValueError, match="is not out"):
        queue.abandon(ticket)
    queue.try_put(group("a", 0, "failed"), queue.try_start())
    refill = queue.try_start()
    assert refill is not None
    queue.abandon(refill)
    assert (queue.counts.abandoned, queue.counts.swept, queue.counts.waiting) == (1, 1, 0)


def with_a_straggler() -> tuple[OnPolicyQueue, Ticket]:
    """Bound 1, version 1: of two groups that were begun under version 0 one has trained, the other still plays."""
    queue = OnPolicyQueue(1, bound=1)
    straggler, quick = queue.try_start(), queue.try_start()
    assert straggler is not None
    assert queue.try_start() is None, "both places are taken"
    queue.try_put(group("a", 0, 0), quick)
    queue.try_take()
    queue.advance(1)
    return queue, straggler


def test_what_still_plays_with_weights_that_may_not_train_any_more_holds_no_place() -> None:
    queue, straggler = with_a_straggler()
    quick = queue.try_start()
    assert quick is not None
    assert queue.try_start() is None, "the straggler may still train"
    queue.try_put(group("b", 1, 1), quick)
    queue.try_take()
    queue.advance(2)
    assert [queue.try_start() is None for _ in range(3)] == [False, False, True]
    queue.try_put(group("s", 0, 0), straggler)
    assert (queue.counts.swept, queue.counts.waiting) == (1, 0), "and comes too late"


def test_what_the_update_that_is_out_makes_too_old_holds_no_place_from_then_on() -> None:
    queue, straggler = with_a_straggler()
    late = queue.try_start()
    assert late is not None
    queue.try_put(group("b", 1, 1), late)
    assert queue.try_start() is None, "the straggler may train in the batch that is not taken yet"
    queue.try_take()  # under version 1; the next is taken under 2, which trains on nothing of version 0
    assert queue.try_start() is not None
    assert queue.try_start() is None
    queue.try_put(group("s", 0, 0), straggler)
    assert queue.counts.waiting == 2, "its tokens are not too old yet"
    assert queue.try_start() is None
    queue.advance(2)
    assert (queue.counts.swept, queue.counts.waiting) == (1, 0)
    assert [queue.try_start() is None for _ in range(2)] == [False, True]


def test_a_take_wakes_who_waits_for_the_place_of_what_it_makes_too_old() -> None:
    async def main() -> None:
        queue, straggler = with_a_straggler()
        queue.try_put(group("b", 1, 1), queue.try_start())
        waits = asyncio.create_task(queue.start())
        await asyncio.sleep(0)
        assert not waits.done()
        assert queue.try_take() is not None
        async with asyncio.timeout(60):
            assert (await waits).version == 1
        assert straggler in queue.tickets

    asyncio.run(main())


def test_what_is_not_expected_in_time_holds_no_place_and_trains_if_it_comes() -> None:
    queue = OnPolicyQueue(1, bound=1)
    straggler, quick = queue.try_start(), queue.try_start()
    assert straggler is not None
    assert quick is not None
    assert queue.try_start() is None
    queue.doubt(straggler)
    again = saved(queue)
    for one in (queue, again):
        more = one.try_start()
        assert more is not None
        assert one.try_start() is None, "its place is given away once"
        one.doubt(quick)
        one.doubt(more)
        assert one.try_start() is None, "of such groups no more than a batch is left out"
        one.try_put(group("s", 0, 0), straggler)
        assert ids(one.try_take()) == [["s0", "s1"]]
        with pytest.raises(ValueError, match="is not out as a whole group's"):
            one.doubt(straggler)


def test_whoever_is_doubted_makes_room_for_who_waits() -> None:
    async def main() -> None:
        queue = OnPolicyQueue(1)
        ticket = queue.try_start()
        assert ticket is not None
        waits = asyncio.create_task(queue.start())
        await asyncio.sleep(0)
        queue.doubt(ticket)
        async with asyncio.timeout(60):
            assert (await waits).number == 1

    asyncio.run(main())


def test_a_waiting_group_with_a_member_that_stays_fresh_holds_its_place() -> None:
    queue, mixed = with_a_straggler()
    quick = queue.try_start()
    queue.try_put(group("b", 0, 0), quick)
    queue.try_take()
    queue.try_put(group("m", 0, 1, 1), mixed)  # one of its members began under the newer weights
    assert queue.try_start() is None
    queue.advance(2)
    assert (queue.counts.members_swept, queue.counts.waiting) == (1, 1)


def test_a_fork_of_a_dropped_member_goes_with_it() -> None:
    forked = episode("c", 1, parent=ForkPoint("a", 1))
    tree = Group("t", (episode("a", 0), forked, episode("b", 1), episode("d", 1)))
    queue = OnPolicyQueue(1, version=1)
    queue.try_put(tree)
    taken = queue.try_take()
    assert ids(taken) == [["b", "d"]]
    assert taken is not None
    assert taken.swept[0].lost == (Loss("a", Why.STALE, 0), Loss("c", Why.FORKED, 1))


def test_what_becomes_stale_while_it_waits_is_swept_before_the_batch_and_reported() -> None:
    queue = OnPolicyQueue(2, bound=1)
    queue.try_put(group("a", 0, 0))
    queue.try_put(group("b", 1, 1))
    queue.advance(2)
    queue.try_put(group("c", 2, 2))
    taken = queue.try_take()
    assert ids(taken) == [["b0", "b1"], ["c0", "c1"]]
    assert taken is not None
    assert [(one.number, one.whole, len(one.lost)) for one in taken.swept] == [(0, True, 2)]


def test_the_groups_that_age_first_are_taken_first() -> None:
    queue = OnPolicyQueue(1, bound=3, version=3)
    for name, version in (("new", 3), ("old", 1), ("mid", 2)):
        queue.try_put(group(name, version, version))
    taken = []
    for version in (3, 3, 3):
        taken += ids(queue.try_take())
        queue.advance(version)
    assert [one[0] for one in taken] == ["old0", "mid0", "new0"]


def test_one_batch_is_out_at_a_time_and_a_failed_update_puts_it_back() -> None:
    queue = OnPolicyQueue(1, bound=2)
    queue.try_put(group("a", 0, 0))
    queue.try_put(group("b", 0, 0))
    first = queue.try_take()
    with pytest.raises(RuntimeError, match=r"groups \[0\] are still out"):
        queue.try_take()
    queue.put_back()
    assert ids(queue.try_take()) == ids(first)


def test_less_than_a_batch_can_be_taken_on_purpose() -> None:
    queue = OnPolicyQueue(3)
    queue.try_put(group("a", 0, 0))
    assert queue.try_take() is None
    assert ids(queue.try_take(1)) == [["a0", "a1"]]
    queue.put_back()
    with pytest.raises(ValueError, match="least is 4"):
        queue.try_take(4)


def test_a_partial_rollout_is_as_stale_as_its_oldest_token() -> None:
    queue = OnPolicyQueue(1, bound=1, version=3)
    begun = Partial(replace(episode("a", 3, 1), stop=StopReason.TOKEN_LIMIT))
    assert begun.oldest_version == 1
    assert not queue.usable(begun)
    assert queue.usable(episode("b", 3, 2))


def test_wrong_settings_and_tokens_without_a_version_are_refused() -> None:
    with pytest.raises(ValueError, match="batch is 0"):
        OnPolicyQueue(0)
    with pytest.raises(ValueError, match="bound is -1"):
        OnPolicyQueue(1, bound=-1)
    queue = OnPolicyQueue(1, version=1)
    with pytest.raises(ValueError, match="version is 0, the queue is at 1"):
        queue.advance(0)
    with pytest.raises(ValueError, match="has no members"):
        queue.try_put(Group("t", ()))
    ticket = queue.try_start()
    turn = Turn("agent", (), Step(), sampled_ids=np.zeros(2, np.int32), logprobs=np.zeros(2, np.float32))
    nameless = Episode("e", "t", Step(), (turn,), 0, stop=StopReason.GOAL)
    with pytest.raises(
        ValueError, match="episode e, turn 0: the first 2 of 2 sampled tokens have no policy version"
    ):
        queue.try_put(Group("t", (nameless,)), ticket)
    queue.try_put(group("a", 1, 1), ticket)  # the ticket is still good
    assert queue.counts.accepted == 1


def test_turns_without_tokens_are_never_stale() -> None:
    queue = OnPolicyQueue(1)
    queue.try_put(group("a", (), ()))
    queue.advance(100)
    assert ids(queue.try_take()) == [["a0", "a1"]]


def test_producers_and_a_learner_meet_and_back_pressure_holds_them() -> None:
    async def run() -> tuple[int, int, int]:
        queue = OnPolicyQueue(4, bound=1)
        most = 0

        async def produce() -> None:
            nonlocal most
            while True:
                ticket = await queue.start()
                version = queue.version
                await asyncio.sleep(0)
                await queue.put(group(f"g{ticket.number}-", version, version), ticket)
                most = max(most, queue.counts.waiting + queue.counts.running)

        workers = [asyncio.create_task(produce()) for _ in range(16)]
        for version in range(20):
            taken = await queue.take()
            assert all(
                v >= version - 1 for one in taken.groups for m in one if (v := oldest_version(m)) is not None
            )
            await asyncio.sleep(0)
            queue.advance(version + 1)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return queue.counts.trained, queue.counts.swept, most

    assert asyncio.run(asyncio.wait_for(run(), 20)) == (80, 0, 8)


def test_put_without_a_ticket_waits_for_room_and_a_cancelled_wait_loses_nothing() -> None:
    async def run() -> None:
        queue = OnPolicyQueue(1)
        await queue.put(group("a", 0, 0))
        waiting = asyncio.create_task(queue.put(group("b", 1, 1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        taking = asyncio.create_task(queue.take())
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert ids(await queue.take()) == [["a0", "a1"]]
        queue.advance(1)
        await waiting
        assert ids(await queue.take()) == [["b0", "b1"]]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_sweep_wakes_who_waits_for_a_place() -> None:
    async def run() -> Ticket:
        queue = OnPolicyQueue(1)
        queue.try_put(group("a", 0, 0))
        starting = asyncio.create_task(queue.start())
        await asyncio.sleep(0)
        queue.advance(1)
        return await starting

    assert asyncio.run(asyncio.wait_for(run(), 20)).version == 1


# -- laws ------------------------------------------------------------------------------------------------------


def saved(queue: OnPolicyQueue) -> OnPolicyQueue:
    """The queue after a checkpoint: its state through JSON text."""
    state = queue.state()
    return OnPolicyQueue.restore(QueueState(json.loads(json.dumps(state.facts)), state.episodes))


class QueueMachine(RuleBasedStateMachine):
    """Any use of a queue; beside it a twin that is saved and restored before every single call."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = OnPolicyQueue(1)
        self.made = 0

    @initialize(
        batch=st.integers(1, 3),
        bound=st.integers(0, 3),
        spoiled=st.sampled_from(Spoiled),
        refills=st.integers(0, 2),
    )
    def begin(self, batch: int, bound: int, spoiled: Spoiled, refills: int) -> None:
        self.queue = OnPolicyQueue(batch, bound=bound, spoiled=spoiled, refills=refills)
        self.twin = saved(self.queue)
        self.tickets: list[Ticket] = []

    def both(self, call: Any) -> Any:
        """The same call to the queue and to the twin, which answer the same."""
        self.twin.put_back()  # what is out is saved as waiting
        out = bool(self.queue._out)
        self.twin = saved(self.twin)
        if out:
            self.twin._out = {number: self.twin._places.pop(number) for number in self.queue._out}
        answer, same = call(self.queue), call(self.twin)
        assert answer == same
        assert self.queue.counts == self.twin.counts
        assert self.queue.tickets == self.twin.tickets
        return answer

    def members(self, count: int, data: st.DataObject) -> Group:
        version = self.queue.version
        made = []
        for _ in range(count):
            self.made += 1
            versions = data.draw(st.lists(st.integers(max(0, version - 2), version), min_size=0, max_size=3))
            made.append(episode(f"e{self.made}", *versions, failed=data.draw(st.integers(0, 5)) == 0))
        return Group("t", tuple(made))

    @rule()
    def start(self) -> None:
        ticket = self.both(lambda queue: queue.try_start())
        if ticket is not None:
            self.tickets.append(ticket)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        ticket = self.tickets.pop(data.draw(st.integers(0, len(self.tickets) - 1)))
        made = self.members(ticket.missing or data.draw(st.integers(1, 4)), data)
        assert self.both(lambda queue: queue.try_put(made, ticket))

    @rule(data=st.data())
    def put_without_a_ticket(self, data: st.DataObject) -> None:
        made = self.members(data.draw(st.integers(1, 3)), data)
        self.both(lambda queue: queue.try_put(made))

    @precondition(lambda self: any(not ticket.missing for ticket in self.tickets))
    @rule(data=st.data())
    def doubt(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([one for one in self.tickets if not one.missing]))
        self.both(lambda queue: queue.doubt(ticket))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        ticket = self.tickets.pop(data.draw(st.integers(0, len(self.tickets) - 1)))
        self.both(lambda queue: queue.abandon(ticket))

    @precondition(lambda self: not self.queue._out)
    @rule(least=st.none() | st.just(1))
    def take(self, least: int | None) -> None:
        taken = self.both(lambda queue: queue.try_take(least))
        if taken is None:
            return
        assert 1 <= len(taken.groups) <= self.queue.batch
        for one, masked in zip(taken.groups, taken.masked, strict=True):
            trains = [member for member in one if member.id not in masked]
            assert trains
            for member in trains:
                assert member.failure is None
                oldest = oldest_version(member)
                assert oldest is None or oldest >= self.queue.version - self.queue.bound

    @rule(by=st.integers(0, 2))
    def advance(self, by: int) -> None:
        version = self.queue.version + by
        self.both(lambda queue: queue.advance(version))

    @rule()
    def put_back(self) -> None:
        self.both(lambda queue: queue.put_back())

    @invariant()
    def the_counters_add_up(self) -> None:
        c = self.queue.counts
        assert c.accepted == c.trained + c.swept + c.waiting
        assert c.members_accepted == c.members_trained + c.members_swept + c.members_waiting
        assert c.started + c.unticketed == c.accepted + c.abandoned + c.running
        assert sum(c.lost.values()) == c.members_swept
        assert c.waiting - c.out + c.running <= (self.queue.bound + 1) * self.queue.batch + self.queue.batch


TestQueueLaws = QueueMachine.TestCase
TestQueueLaws.settings = settings(max_examples=100, stateful_step_count=40)
TestQueueLaws = pytest.mark.slow(TestQueueLaws)


def test_a_state_that_does_not_fit_its_episodes_is_refused() -> None:
    queue = OnPolicyQueue(1)
    queue.try_put(group("a", 0, 0))
    state = queue.state()
    with pytest.raises(ValueError, match="counts 2 episodes, and 1 came with it"):
        OnPolicyQueue.restore(QueueState(state.facts, state.episodes[:1]))
    with pytest.raises(ValueError, match="schema 7"):
        OnPolicyQueue.restore(QueueState({**state.facts, "schema": 7}, state.episodes))


def test_a_checkpoint_taken_while_a_batch_is_out_holds_it_as_waiting() -> None:
    queue = OnPolicyQueue(1)
    queue.try_put(group("a", 0, 0))
    taken = queue.try_take()
    again = saved(queue)
    assert ids(again.try_take()) == ids(taken)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_an_episodes_age_is_that_of_its_oldest_token(versions: list[int]) -> None:
    assert oldest_version(episode("e", *versions)) == min(versions)
