"""Base states of worlds: kept for their next use, forgotten when there are too many, never while in use."""

import asyncio

from envgym_sandboxes import backend as backend_module


def test_many_worlds_at_once_may_outnumber_the_kept_bases(make, run, world, monkeypatch):
    monkeypatch.setattr(backend_module, "_IDLE_BASES", 2)

    async def main():
        async with make() as backend:

            async def use(number):
                own = world.model_copy(update={"files": {"/work/own.txt": f"{number}\n"}})
                async with await backend.create(own) as sandbox:
                    return await sandbox.read("/work/own.txt")

            for _ in range(3):
                found = await asyncio.gather(*(use(number % 10) for number in range(30)))
                assert found == [b"%d\n" % (number % 10) for number in range(30)]
            assert sum(backend._users.values()) == 0

    run(main())
