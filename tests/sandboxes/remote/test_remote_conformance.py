import asyncio
from functools import partial

import pytest
from envgym_sandboxes.remote import RemoteBackend

from envgym.testing.check_sandbox import check_sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(240)]


@pytest.mark.slow
def test_the_contract_holds_across_processes(served, all_but):
    make = partial(RemoteBackend, served.address, token_file=served.token_file)
    asyncio.run(asyncio.wait_for(check_sandbox(make, must=all_but()), 230))
