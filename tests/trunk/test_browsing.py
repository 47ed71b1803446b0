"""Pages that were used wait for the next episode, as many as may, until the end; what died is not given."""

import asyncio
from dataclasses import dataclass, field

import pytest

from envgym.browsing import Used, leave_page, pages_kept, take_page
from envgym.errors import SandboxDied


@dataclass(eq=False)
class Share:
    """A browser's share that knows whether it was closed, and is its one page, too."""

    closed: int = 0
    dead: bool = False
    asked: list[str] = field(default_factory=list)

    async def run(self, expression: str) -> bool:
        self.asked.append(expression)
        if self.dead:
            raise SandboxDied("it is gone")
        return True

    async def close(self) -> None:
        self.closed += 1

    def used(self) -> Used:
        return Used(self, self)  # type: ignore[arg-type]


def test_nothing_waits_where_no_pages_are_kept():
    async def work():
        share = Share()
        await leave_page("a", share.used())
        assert share.closed == 1
        assert await take_page("a") is None

    asyncio.run(work())


def test_a_page_waits_for_who_asks_for_its_key_and_the_end_closes_it():
    async def work():
        a, b = Share(), Share()
        async with pages_kept(2):
            await leave_page("a", a.used())
            await leave_page("b", b.used())
            assert await take_page("c") is None
            assert await take_page("a") == a.used()
            assert await take_page("a") is None
        assert (a.closed, b.closed) == (0, 1)
        assert await take_page("b") is None

    asyncio.run(work())


def test_of_more_than_may_wait_the_oldest_is_closed():
    async def work():
        shares = [Share() for _ in range(3)]
        async with pages_kept(2):
            for share in shares:
                await leave_page("a", share.used())
            assert [share.closed for share in shares] == [1, 0, 0]
            assert await take_page("a") == shares[2].used()

    asyncio.run(work())


def test_where_no_page_has_the_key_the_one_of_its_family_that_waits_longest_is_given():
    async def work():
        shares = [Share() for _ in range(4)]
        async with pages_kept(4):
            for key, share in zip(("a/1", "a/2", "a/1", "b/1"), shares, strict=True):
                await leave_page(key, share.used())
            assert await take_page("a/3") is None
            assert await take_page("a/1", family="a/") == shares[2].used()
            assert await take_page("a/3", family="a/") == shares[0].used()
            assert await take_page("c/1", family="c/") is None

    asyncio.run(work())


def test_a_page_that_died_waiting_is_closed_and_another_given():
    async def work():
        good, dead = Share(), Share()
        async with pages_kept(2):
            await leave_page("a", good.used())
            await leave_page("a", dead.used())
            dead.dead = True
            assert await take_page("a") == good.used()
            assert (dead.closed, good.closed) == (1, 0)

    asyncio.run(work())


def test_a_page_left_after_the_end_is_closed_and_another_loop_has_none_of_these():
    async def other():
        assert await take_page("a") is None

    async def late(share, over):
        await over.wait()
        await leave_page("a", share.used())

    async def work():
        share, over = Share(), asyncio.Event()
        async with pages_kept(2):
            await leave_page("a", Share().used())
            await asyncio.to_thread(asyncio.run, other())
            task = asyncio.create_task(late(share, over))
        over.set()
        await task
        assert share.closed == 1

    asyncio.run(work())


def test_a_number_of_pages_below_one_is_refused():
    async def work():
        with pytest.raises(ValueError, match=r"pages_kept\(most=0\); it must be at least 1"):
            async with pages_kept(0):
                pass

    asyncio.run(work())
