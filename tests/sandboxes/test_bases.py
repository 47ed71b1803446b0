"""Base states of worlds: kept for their next use, forgotten when there are too many, never while in use."""

import asyncio

import pytest

from envgym.errors import EnvironmentFailure
from envgym.task import Tree

WORLDS = 96  # more than are kept when nobody uses them


@pytest.mark.slow
def test_many_worlds_at_once_may_outnumber_the_kept_bases(make, run, world):
    async def main():
        async with make() as backend:

            async def use(number):
                own = world.model_copy(update={"files": {"/work/own.txt": f"{number}\n"}})
                async with await backend.create(own) as sandbox:
                    return await sandbox.read("/work/own.txt")

            for _ in range(2):
                found = await asyncio.gather(*(use(number % WORLDS) for number in range(2 * WORLDS)))
                assert found == [b"%d\n" % (number % WORLDS) for number in range(2 * WORLDS)]

    run(main())


@pytest.mark.slow
def test_trees_of_forgotten_worlds_leave_memory(make, run, world, tmp_path):
    """A training run goes through thousands of repositories; only those of the last worlds stay."""

    async def main():
        async with make() as backend:
            for number in range(WORLDS):
                (tmp_path / f"{number}").mkdir()
                (tmp_path / f"{number}/file").write_text(f"{number}\n")
                tree = Tree(source=str(tmp_path / f"{number}"), target="/work/tree")
                async with await backend.create(world.model_copy(update={"trees": (tree,)})) as sandbox:
                    assert await sandbox.read("/work/tree/file") == b"%d\n" % number
            kept = list(backend._worlds._shared)
            assert sum(key[0] == "trees" for key in kept) <= 65
            assert sum(key[0] == "image" for key in kept) == 1

    run(main())


@pytest.mark.slow
def test_a_set_up_that_fails_leaves_no_layer(make, run, world):
    async def main():
        broken = world.model_copy(update={"setup": ("exit 3",)})
        async with make() as backend:
            with pytest.raises(EnvironmentFailure):
                await backend.create(broken)
            assert backend._worlds._shared == {}

    run(main())
