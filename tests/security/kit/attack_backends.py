"""The registry: which backends are attacked, a line each, and what each of them declares not to protect.

Such an attack must succeed there (a strict expected failure), so that the table cannot go stale. Every attack is
tried: those that could take the machine with them stop by themselves when they have shown that nothing stops them.
"""

from dataclasses import dataclass

__all__ = ["BACKENDS", "WEAKER", "Backend", "Weakness", "weakness"]


@dataclass(frozen=True, slots=True)
class Backend:
    """module:Class; whether its owner is an ordinary user; the image that its worlds need."""

    name: str
    made_by: str
    ordinary: bool = False
    image: str = "host"


BACKENDS = (
    Backend("namespace", "envgym_sandboxes.namespace:NamespaceBackend"),
    Backend("namespace-user", "envgym_sandboxes.namespace:NamespaceBackend", ordinary=True),
    Backend("landlock", "envgym_sandboxes.landlock_backend:LandlockBackend"),
    Backend("landlock-user", "envgym_sandboxes.landlock_backend:LandlockBackend", ordinary=True),
    Backend("docker", "envgym_sandboxes.docker_engine.backend:DockerBackend", image="base"),
    Backend("docker-copy", "envgym_sandboxes.docker_engine.copying:DockerCopyBackend", image="base"),
)


@dataclass(frozen=True, slots=True)
class Weakness:
    """Why an attack succeeds there.

    without: the kind of control group without which it does; "": in any case. certain: whether it does on every
    machine; else it is tried, and may fail.
    """

    reason: str
    without: str = ""
    certain: bool = True


_FILES, _BUFFERS = (
    "test_memory_behind_files_counts_as_memory_or_disk",
    "test_memory_in_buffers_of_the_kernel_is_bounded_too",
)
_UNCOUNTED = Weakness("without a cgroup memory behind files and in buffers is not counted", without="memory")
_TCP = Weakness(f"{_UNCOUNTED.reason}, but in TCP's by the machine's tcp_mem", without="memory", certain=False)
_TCP_GROUPED = Weakness(
    "version 1 of control groups lets every TCP socket hold some tens of KiB beyond the group's bound",
    certain=False,
)
_SHOWN = Weakness("programs of the host are shown as they are: their files can be watched and locked")
_NOT_AT_ONCE = Weakness("the command that empties a full disk cannot write yet; the next one can")
WEAKER: dict[tuple[str, str], Weakness] = {
    ("test_what_the_host_does_with_its_programs_is_not_seen", "namespace"): _SHOWN,
    ("test_what_the_host_does_with_its_programs_is_not_seen", "namespace-user"): _SHOWN,
    ("test_programs_of_the_host_cannot_be_locked", "namespace"): _SHOWN,
    ("test_programs_of_the_host_cannot_be_locked", "namespace-user"): _SHOWN,
    ("test_programs_of_the_host_cannot_be_locked", "landlock"): _SHOWN,
    ("test_programs_of_the_host_cannot_be_locked", "landlock-user"): _SHOWN,
    ("test_a_full_disk_is_the_sandboxs_own_and_can_be_emptied", "landlock"): _NOT_AT_ONCE,
    ("test_a_full_disk_is_the_sandboxs_own_and_can_be_emptied", "landlock-user"): _NOT_AT_ONCE,
    (f"{_FILES}[memfd]", "namespace-user"): _UNCOUNTED,
    (f"{_FILES}[shared]", "namespace-user"): _UNCOUNTED,
    (f"{_FILES}[system v]", "namespace-user"): _UNCOUNTED,
    (f"{_BUFFERS}[unix sockets]", "namespace-user"): _UNCOUNTED,
    (f"{_BUFFERS}[unix sockets]", "landlock-user"): _UNCOUNTED,
    (f"{_BUFFERS}[udp]", "namespace-user"): _UNCOUNTED,
    (f"{_BUFFERS}[tcp]", "namespace-user"): _TCP,
    (f"{_BUFFERS}[tcp]", "namespace"): _TCP_GROUPED,
    (f"{_BUFFERS}[tcp]", "docker"): _TCP_GROUPED,
    (f"{_BUFFERS}[tcp]", "docker-copy"): _TCP_GROUPED,
}
"""(attack, backend) -> what is not protected there. Of an attack in several kinds, a line for each: attack[kind]."""


def weakness(attack: str, backend: Backend, groups: frozenset[str]) -> Weakness | None:
    """What is declared of an attack, as pytest names it, on a backend whose owner can make these groups."""
    name, _, kinds = attack.removesuffix("]").partition("[")
    kind = kinds.removeprefix(backend.name).removeprefix("-")
    found = WEAKER.get((f"{name}[{kind}]" if kind else name, backend.name))
    return found if found and found.without not in groups else None
