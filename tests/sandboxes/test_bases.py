"""Base states of worlds: kept for their next use, forgotten when there are too many, never while in use."""

import asyncio

WORLDS = 96  # more than are kept when nobody uses them


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
