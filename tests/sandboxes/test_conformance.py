import pytest

from envgym.sandbox import SandboxBackend
from envgym.testing.check_sandbox import check_sandbox

pytestmark = pytest.mark.timeout(60)


def test_namespace_backend_keeps_the_contract(make, run):
    ran = run(check_sandbox(make))
    assert "no_network" in ran


@pytest.mark.slow
def test_landlock_backend_keeps_the_contract(make_landlock, run):
    ran = run(check_sandbox(make_landlock))
    assert "no_network" in ran


@pytest.mark.slow
def test_local_backend_keeps_the_contract_but_for_isolation(make_local, run):
    ran = run(check_sandbox(make_local))
    assert "no_network" not in ran
    assert any("network" in line for line in make_local().report().missing), "it says what it does not isolate"


@pytest.mark.slow
def test_a_backend_that_breaks_the_contract_is_told_which_sentence(make, run):
    class Forgetful(type(make())):
        async def restore(self, snapshot):
            async with self.states.opened(snapshot) as frozen:
                return await self.create(frozen.world)

    def broken() -> SandboxBackend:
        return Forgetful(root=make()._root)

    with pytest.raises(AssertionError, match="restored state is the very state"):
        run(check_sandbox(broken))
