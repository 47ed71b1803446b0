"""What a pool made of a backend is closed again, however far it came."""

import asyncio

import pytest
from envgym_sandboxes.pool import PoolBackend, PoolBounds

from envgym.errors import InfrastructureFailure, SandboxUnavailable
from envgym.sandbox import MemoryUse
from envgym.task import World
from envgym.testing.fakes import FakeBackend

pytestmark = pytest.mark.timeout(60)


class Metered(FakeBackend):
    """Tells its memory when `look` has; counts how often it was closed."""

    def __init__(self, look):
        super().__init__()
        self.look, self.closes = look, 0

    async def memory(self, sandboxes):
        await self.look()
        return MemoryUse(1 << 34, 1 << 34, dict.fromkeys(sandboxes, 1 << 20))

    async def close(self):
        self.closes += 1
        await super().close()


def test_a_backend_that_began_and_cannot_be_looked_at_is_closed(run):
    async def fail():
        raise InfrastructureFailure("no meter")

    async def main():
        made = []

        def make():
            made.append(Metered(fail))
            return made[-1]

        pool = PoolBackend(make, bounds=PoolBounds(warm=0))
        with pytest.raises((InfrastructureFailure, SandboxUnavailable), match="no meter"):
            await pool.create(World())
        await pool.close()
        assert made
        assert [backend.closes for backend in made] == [1] * len(made)

    run(main())


def test_a_backend_whose_beginning_is_cut_off_by_the_pools_end_is_closed(run):
    async def main():
        reached, made = asyncio.Event(), []

        async def hang():
            reached.set()
            await asyncio.Event().wait()

        def make():
            made.append(Metered(hang))
            return made[-1]

        pool = PoolBackend(make, bounds=PoolBounds(warm=0))
        creating = asyncio.ensure_future(pool.create(World()))
        await reached.wait()
        await pool.close()
        await asyncio.gather(creating, return_exceptions=True)
        assert [backend.closes for backend in made] == [1]

    run(main())
