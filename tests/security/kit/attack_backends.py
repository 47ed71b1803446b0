"""The registry: which backends are attacked, a line each, and what each of them declares not to protect.

Such an attack must succeed there (a strict expected failure), so that the table cannot go stale; only what could take
the machine with it is declared without being tried.
"""

from dataclasses import dataclass

__all__ = ["BACKENDS", "WEAKER", "Backend", "Weakness"]


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
    """Why an attack succeeds there; whether it may be tried at all, or would take the machine with it."""

    reason: str
    tried: bool = True


_UNCOUNTED = Weakness("without a cgroup memory behind files and in buffers is not counted", tried=False)
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
    ("test_memory_behind_files_counts_as_memory_or_disk", "namespace-user"): _UNCOUNTED,
    ("test_memory_behind_files_counts_as_memory_or_disk", "landlock-user"): _UNCOUNTED,
    ("test_memory_in_buffers_of_the_kernel_is_bounded_too", "namespace-user"): _UNCOUNTED,
    ("test_memory_in_buffers_of_the_kernel_is_bounded_too", "landlock-user"): _UNCOUNTED,
}
"""(attack, backend) -> what is not protected there."""
