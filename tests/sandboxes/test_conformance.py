import pytest

from envgym.sandbox import SandboxBackend
from envgym.testing.check_sandbox import check_sandbox

pytestmark = pytest.mark.timeout(120)
FORWARDS = ("forwards", "forwards_and_states", "forwards_end")
WALLS = ("no_network", "no_privileges", "no_machine", "host_paths", "outside_the_target")
BOUNDS = (
    *("memory_bytes", "out_of_memory", "peak_bytes_of_a_string", "pids", "disk_bytes"),
    *("inodes", "cpus", "io_bytes_s"),
)


@pytest.mark.slow
def test_namespace_backend_keeps_the_contract(make, run, all_but, traces):
    run(check_sandbox(make, must=all_but(), traces=traces))


@pytest.mark.slow
def test_landlock_backend_keeps_the_contract(make_landlock, run, all_but, traces):
    run(check_sandbox(make_landlock, must=all_but(*FORWARDS, "inodes", "egress"), traces=traces))


@pytest.mark.slow
def test_local_backend_keeps_the_contract_but_for_isolation(make_local, run, all_but, traces):
    ran = run(check_sandbox(make_local, must=all_but(*WALLS, *BOUNDS, "egress", "memory"), traces=traces))
    assert not {*WALLS, *BOUNDS} & set(ran)
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
