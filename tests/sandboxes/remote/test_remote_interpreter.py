import pytest
from envgym_sandboxes.interpreter import open_interpreter

from envgym.testing.check_interpreter import check_interpreter

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]


@pytest.mark.slow
def test_an_interpreter_keeps_its_contract_in_a_sandbox_on_another_host(served, run, world):
    """It needs nothing of a sandbox but the contract, which crosses the wire."""

    async def main():
        async with served.client() as backend, await backend.create(world) as sandbox:
            bound = world.resources.output_bytes
            await check_interpreter(lambda: open_interpreter(sandbox), output_bytes=bound)

    run(main())
