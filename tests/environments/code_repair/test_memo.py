import asyncio

from envgym_environments.code_repair.memo import Memo


def test_a_computation_that_asks_for_another_does_not_wait_for_its_own_place() -> None:
    async def body() -> list[str]:
        memo = Memo(at_once=1)

        async def outer(key: str) -> str:
            async def inner() -> str:
                await asyncio.sleep(0)
                return key

            return str(await memo.get(f"inner {key}", inner))

        async def one(key: str) -> str:
            return str(await memo.get(key, lambda: outer(key)))

        return list(await asyncio.wait_for(asyncio.gather(*map(one, "abc")), timeout=60))

    assert asyncio.run(body()) == ["a", "b", "c"]


def test_at_most_so_many_computations_run_at_a_time() -> None:
    running, most = 0, 0

    async def make() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return 1

    async def body() -> None:
        memo = Memo(at_once=2)
        await asyncio.gather(*(memo.get(str(number), make) for number in range(9)))

    asyncio.run(body())
    assert most == 2
