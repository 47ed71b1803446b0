"""Who leaves a sandbox does not wait for its end, unless too many are ending; what fails there is said."""

import asyncio
import logging

import pytest
from envgym_environments.code_repair.closing import Closing
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo

from envgym.errors import InfrastructureFailure
from envgym.registry import make_backend


class Ending:
    """A sandbox that ends when it is told to, or fails to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told, self.closed, self.fails = asyncio.Event(), False, fails

    async def close(self) -> None:
        await self.told.wait()
        if self.fails:
            raise InfrastructureFailure("its layers are gone")
        self.closed = True


def test_one_more_than_may_end_at_a_time_is_waited_for() -> None:
    async def body() -> None:
        closing, ending = Closing(2), [Ending() for _ in range(3)]
        for one in ending[:2]:
            await asyncio.wait_for(closing.leave(one), 5)  # type: ignore[arg-type]
        third = asyncio.create_task(closing.leave(ending[2]))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        assert not third.done()
        ending[0].told.set()
        await asyncio.wait_for(third, 60)
        assert [one.closed for one in ending] == [True, False, False]
        for one in ending:
            one.told.set()
        await asyncio.wait_for(closing.over(), 5)
        assert all(one.closed for one in ending)

    asyncio.run(body())


def test_one_that_cannot_be_closed_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        closing, one = Closing(2), Ending(fails=True)
        await closing.leave(one)  # type: ignore[arg-type]
        one.told.set()
        await closing.over()
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, "envgym.code_repair"):
        asyncio.run(body())
    assert "not closed: InfrastructureFailure: its layers are gone" in caplog.text


@pytest.mark.namespaces
def test_a_graders_sandboxes_are_gone_with_its_backend(broken) -> None:
    async def body() -> None:
        async with make_backend("namespace") as backend:
            found = await CodeRepairGrader(backend, memo=Memo()).grade(broken, "")
            assert found.reward == 0.0
            groups = dict(backend.places.groups)  # type: ignore[attr-defined]
            assert groups
        assert not backend.places.groups  # type: ignore[attr-defined]
        assert not backend._sandboxes  # type: ignore[attr-defined]
        assert not [path for one in groups.values() for path in one.paths if path.exists()]

    asyncio.run(body())
