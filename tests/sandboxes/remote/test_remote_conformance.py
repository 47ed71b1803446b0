import asyncio

import pytest

from envgym.testing.check_sandbox import check_sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(240)]


@pytest.mark.slow
def test_the_contract_holds_across_processes(served):
    ran = asyncio.run(asyncio.wait_for(check_sandbox(served.client), 230))
    assert "no_network" in ran
