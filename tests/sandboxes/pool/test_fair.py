"""Laws of the queue and of the ledger: nobody starves, weights hold, bounds hold, nothing is lost."""

import pytest
from envgym_sandboxes.pool.fair import MOST_OVERTAKEN, FairQueue
from envgym_sandboxes.pool.ledger import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(60)
LAW = settings(derandomize=True, max_examples=200)


def serve(queue, count, fits=lambda waiting: "here", within=lambda waiting: True):
    """The shares that are served next."""
    served = []
    while len(served) < count and (waiting := queue.next(fits, within)) is not None:
        served.append(waiting)
    return served


def queue_of(**weights):
    queue = FairQueue()
    for name, weight in weights.items():
        queue.add(name, weight)
    return queue


def test_one_with_a_thousand_requests_does_not_starve_one_with_two():
    queue = queue_of(many=1, few=1)
    for number in range(1000):
        queue.push(number, "many")
    assert [waiting.share for waiting in serve(queue, 500)] == ["many"] * 500
    queue.push("a", "few")
    queue.push("b", "few")
    assert [waiting.item for waiting in serve(queue, 4)].index("b") <= 3


@LAW
@given(weights=st.lists(st.integers(1, 8), min_size=2, max_size=5), rounds=st.integers(1, 20))
def test_busy_shares_are_served_by_their_weights(weights, rounds):
    queue = queue_of(**{f"s{index}": weight for index, weight in enumerate(weights)})
    total = sum(weights) * rounds
    for index in range(len(weights)):
        for number in range(total):
            queue.push(number, f"s{index}")
    served = serve(queue, total)
    for index, weight in enumerate(weights):
        mine = [waiting.item for waiting in served if waiting.share == f"s{index}"]
        assert abs(len(mine) - weight * rounds) <= 1 + weight, "each has its part, but for a round"
        assert mine == sorted(mine), "first come, first served within a share"


@LAW
@given(
    events=st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from("abc"), st.sampled_from(["", "x", "y"])),
            st.tuples(st.just("remove"), st.integers(0, 50), st.none()),
            st.tuples(st.just("serve"), st.sets(st.sampled_from(["x", "y"])), st.booleans()),
        ),
        max_size=60,
    )
)
def test_every_request_is_served_once_or_removed_once(events):
    queue, waiting, served, removed, pushed = queue_of(a=1, b=2, c=5), [], [], [], 0
    for what, first, second in events:
        if what == "push":
            waiting.append(queue.push(pushed, first, second))
            pushed += 1
        elif what == "remove" and waiting:
            gone = waiting.pop(first % len(waiting))
            queue.remove(gone)
            removed.append(gone)
        elif what == "serve":

            def fits(one, free=first):
                return (one.place if one.place in free else None) if one.place else next(iter(sorted(free)), None)

            while (one := queue.next(fits, lambda _one, within=second: within)) is not None:
                waiting.remove(one)
                served.append(one)
                assert one.place in first
        assert len(queue) == len(waiting) == len(list(queue))
    every = lambda place: "x"  # noqa: E731
    rest = serve(queue, 100, every)
    assert sorted(one.item for one in [*served, *removed, *rest]) == list(range(pushed))


@LAW
@given(
    sizes=st.lists(st.integers(1, 10), min_size=1, max_size=6),
    weights=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_a_large_request_is_overtaken_only_so_often(sizes, weights):
    """One that needs all of the memory, beside a share that asks for small pieces for ever."""
    queue = queue_of(large=weights[0], small=weights[1])
    room, held, overtaken, turn = 10, [], 0, 0
    large = queue.push(10, "large")
    for _ in range(3 * MOST_OVERTAKEN):
        while queue.waiting("small") < 3:
            turn += 1
            queue.push(sizes[turn % len(sizes)], "small")
        served = queue.next(lambda one, room=room: "here" if one.item <= room else None, lambda one: True)
        if served is large:
            return
        if served is not None:
            overtaken += 1
            room -= served.item
            held.append(served.item)
        elif held:
            room += held.pop(0)
    pytest.fail(f"overtaken {overtaken} times")


def test_where_memory_is_short_others_overtake_only_within_their_part():
    queue = queue_of(a=1, b=1)
    blocked = queue.push("large", "a")
    queue.push("small", "b")

    def fits(one):
        return None if one.item == "large" else "here"

    assert queue.next(fits, lambda one: False) is None
    assert queue.next(fits, lambda one: True).item == "small"
    assert blocked.overtaken == 1


def test_who_waits_for_one_place_does_not_stop_who_can_go_elsewhere():
    queue = queue_of(a=1)
    queue.push("there", "a", "x")
    queue.push("anywhere", "a")
    assert queue.next(lambda one: "y" if one.place == "" else None, lambda one: False).item == "anywhere"


def test_a_share_has_one_weight():
    queue = queue_of(a=1)
    queue.add("a", 1)
    with pytest.raises(ValueError, match="cannot become 2"):
        queue.add("a", 2)
    with pytest.raises(ValueError, match="must be positive"):
        queue.add("b", 0)


GIB, MIB = 1 << 30, 1 << 20


def filled(ledger, bound, *, used, total=24 * GIB, may=GIB, seconds=80):
    """How many are admitted when each start is followed by a look, a quarter of a second later."""
    now, seats = 0.0, []
    for _ in range(seconds * 4):
        for _ in range(4):
            if len(seats) < 1000 and ledger.fits(ledger.price("w", may), bound, total // 10):
                seats.append(ledger.sit("main", "w", may))
        now += 0.25
        uses = {seat: used(now) for seat in seats}
        ledger.look(total, max(0, total - 2 * GIB - sum(uses.values())), uses, now)
    return seats


def test_a_thousand_idle_sandboxes_fit_and_a_thousand_that_take_all_they_may_do_not():
    idle = filled(Ledger(None), 18 * GIB, used=lambda now: 6 * MIB)
    assert len(idle) == 1000
    ledger = Ledger(None)
    greedy = filled(ledger, 18 * GIB, used=lambda now: GIB)
    assert len(greedy) <= 18
    assert ledger.charged <= 18 * GIB


def test_growth_is_seen_before_many_have_begun():
    """Each grows to all it may use over eight seconds, at the same pace whoever looks."""
    ledger, seats, now = Ledger(None), {}, 0.0
    for _ in range(400):
        for _ in range(4):
            if ledger.fits(ledger.price("w", GIB), 18 * GIB, 2 * GIB):
                seats[ledger.sit("main", "w", GIB)] = now
        now += 0.25
        uses = {seat: int(min(1.0, (now - began) / 8) * GIB) for seat, began in seats.items()}
        ledger.look(24 * GIB, 22 * GIB - sum(uses.values()), uses, now)
    assert len(seats) <= 20


@LAW
@given(
    events=st.lists(
        st.tuples(st.sampled_from(["sit", "leave", "look", "move"]), st.integers(0, 30), st.integers(0, 2 * GIB)),
        max_size=60,
    )
)
def test_charges_are_the_sum_of_the_seats_and_come_back_to_nothing(events):
    ledger, seats = Ledger(64 * MIB), []
    for at, (what, number, size) in enumerate(events):
        if what == "sit":
            seats.append(ledger.sit("ab"[number % 2], f"w{number % 3}", GIB))
        elif what == "look":
            ledger.look(24 * GIB, 20 * GIB, {seat: size for seat in seats[number % 7 :: 7]}, float(at))
        elif seats and what == "leave":
            ledger.leave(seats.pop(number % len(seats)))
        elif seats:
            ledger.move(seats[number % len(seats)], "ab"[size % 2])
        assert ledger.charged == sum(seat.charge for seat in seats)
        for share in "ab":
            assert ledger.of_share(share) == sum(seat.charge for seat in seats if seat.share == share)
            assert ledger.count(share) == sum(seat.share == share for seat in seats)
    for seat in [*seats, *seats]:
        ledger.leave(seat)
    assert (ledger.charged, len(ledger)) == (0, 0)


def test_one_sandbox_alone_is_admitted_whatever_it_may_use():
    ledger = Ledger(None)
    assert ledger.fits(1 << 50, 18 * GIB, 2 * GIB)
    ledger.look(24 * GIB, GIB, {}, 0.0)
    assert not ledger.fits(1, 18 * GIB, 2 * GIB), "but not on a host that has no memory left"


def test_what_was_admitted_since_the_last_look_counts_against_what_was_available():
    ledger = Ledger(GIB)
    ledger.look(24 * GIB, 5 * GIB, {}, 0.0)
    admitted = 0
    while ledger.fits(ledger.price("w", GIB), 24 * GIB, 2 * GIB):
        ledger.sit("main", "w", GIB)
        admitted += 1
    assert admitted == 3
