"""From facts to causes: why something does not work on a host, and the one command that changes it. Pure.

A cause is what was found, not all that could be: settings explain the step that failed, in the order in which the
kernel asks them. What no known cause explains is said with the step and the kernel's own words.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass

from envgym_sandboxes.diagnosis.facts import Facts
from envgym_sandboxes.diagnosis.trial import STEPS

__all__ = ["Cause", "why_no_groups", "why_no_namespaces"]

_ENOSPC, _EPERM = 28, 1
_OVERLAY_FOR_USERS = (5, 11)
_DOES = {
    "user": "making a user namespace",
    "maps": "mapping this user into a user namespace",
    "mount": "making a mount namespace",
    "private": "making mounts private",
    "tmpfs": "mounting a tmpfs",
    "overlay": "mounting an overlay",
    "process": "making pid, ipc and uts namespaces",
    "proc": "mounting a new /proc",
    "network": "making a network namespace",
    "filter": "installing a system call filter",
}
_COUNTED = {"user": ("user",), "mount": ("mnt",), "process": ("pid", "ipc", "uts"), "network": ("net",)}
_UNCONFINED = {
    "docker": "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined ...",
    "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL ...",
    "kubernetes": "securityContext: {seccompProfile: {type: Unconfined}, procMount: Unmasked} in the pod's "
    "specification",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """missing: what is not as it must be. fix: the command that changes it, or what to do where none does."""

    missing: str
    fix: str


def _sysctl(name: str, now: int, wanted: int, why: str) -> Cause:
    setting = f"{name}={wanted}"
    return Cause(
        f"{name} is {now}: {why}",
        f"sudo sysctl -w {setting} && echo {setting} | sudo tee /etc/sysctl.d/60-envgym.conf",
    )


def why_no_namespaces(facts: Facts) -> list[Cause]:
    """Why namespaces cannot be used; empty when each step of the trial worked."""
    if facts.system != "Linux":
        return [Cause(f"this is {facts.system}, and namespaces are Linux's", "use a Linux host or virtual machine")]
    step = next((name for name in STEPS if facts.trial.get(name)), None)
    if step is None:
        return [] if facts.trial.get(STEPS[-1]) == 0 else [Cause("the trial of namespaces could not be made", "")]
    error = facts.trial[step]
    found = _limited(facts, step) or _restricted(facts, step, error) or _old(facts, step)
    if found is not None:
        return [found]
    told = f"{_DOES[step]} fails: {os.strerror(error)}"
    if facts.container or facts.filtered:
        return [_contained(facts, told)]
    return [Cause(told, "ask who runs this machine; the landlock backend needs no namespaces")]


def _limited(facts: Facts, step: str) -> Cause | None:
    """A limit on the number of namespaces that leaves none."""
    for kind in _COUNTED.get(step, ()):
        name = f"user.max_{kind}_namespaces"
        if facts.sysctls.get(name) == 0:
            return _sysctl(name, 0, 15000, f"no {kind} namespace may be made")
    if step == "user" and facts.trial[step] == _ENOSPC:
        limit = facts.sysctls.get("user.max_user_namespaces", 0)
        why = "all are used, or they are nested 32 deep"
        return _sysctl("user.max_user_namespaces", limit, max(2 * limit, 15000), why)
    return None


def _restricted(facts: Facts, step: str, error: int) -> Cause | None:
    """A distribution's switch for ordinary users."""
    if facts.capable:
        return None
    name = "kernel.unprivileged_userns_clone"
    if step == "user" and error == _EPERM and facts.sysctls.get(name) == 0:
        return _sysctl(name, 0, 1, "only root may make user namespaces")
    name = "kernel.apparmor_restrict_unprivileged_userns"
    if step in ("user", "maps", "mount", "private", "tmpfs") and facts.sysctls.get(name):
        profile = f"abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile envgym {facts.python} flags=(unconfined) "
        return Cause(
            f"{name} is {facts.sysctls[name]}: AppArmor lets only programs with a profile use user namespaces, and "
            f"{facts.python} has none",
            f"printf '{profile}{{\\n  userns,\\n}}\\n' | sudo tee /etc/apparmor.d/envgym && "
            "sudo apparmor_parser -r /etc/apparmor.d/envgym",
        )
    return None


def _old(facts: Facts, step: str) -> Cause | None:
    """What the kernel does not have."""
    if step == "overlay" and "overlay" not in facts.systems:
        return Cause("the kernel has no overlay file system", "sudo modprobe overlay")
    if step == "overlay" and not facts.capable and facts.kernel < _OVERLAY_FOR_USERS:
        version = ".".join(map(str, facts.kernel))
        return Cause(
            f"Linux {version} lets only root mount an overlay; 5.11 and later let every user",
            "run as root, or on a newer kernel; the landlock backend needs no overlay",
        )
    return None


def _contained(facts: Facts, told: str) -> Cause:
    where = f"a {facts.container} container" if facts.container else "a system call filter"
    fix = _UNCONFINED.get(facts.container, "start this process without the filter")
    return Cause(
        f"{told}, in {where} that forbids it", f"{fix}; or use the landlock backend, which needs none of it"
    )


# -- control groups ----------------------------------------------------------------------------------------------

_DELEGATE = "/etc/systemd/system/user@.service.d"
_CONTROLLER = {"memory": "memory", "pids": "pids", "cpu": "cpu", "io": "blkio"}


def why_no_groups(facts: Facts, wanted: Collection[str] = ("memory", "pids", "cpu", "io")) -> list[Cause]:
    """Why some of `wanted` cannot be bounded by control groups; empty when all can."""
    lacking = [kind for kind in wanted if kind not in facts.kinds]
    if not lacking:
        return []
    names = ", ".join(lacking)
    if facts.groups == 0:
        return [Cause(f"no control groups are mounted ({names} are not bounded by any)", _mount(facts))]
    if not facts.writable:
        return [Cause(f"control groups are mounted read-only ({names} are not bounded by any)", _mount(facts))]
    return [_first(facts, lacking, names) if facts.groups == 1 else _second(facts, names)]


def _mount(facts: Facts) -> str:
    if facts.container:
        return f"start the container with --privileged, or with /sys/fs/cgroup writable ({facts.container} run -v)"
    return "sudo mount -t cgroup2 none /sys/fs/cgroup"


def _first(facts: Facts, lacking: list[str], names: str) -> Cause:
    if facts.uid != 0:
        return Cause(
            f"control groups are of version 1, which only root may use ({names})",
            "run as root, or boot with version 2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        )
    name = _CONTROLLER[lacking[0]]
    place = f"/sys/fs/cgroup/{name}"
    return Cause(
        f"no hierarchy of version 1 has {names}",
        f"sudo mkdir -p {place} && sudo mount -t cgroup -o {name} none {place}",
    )


def _second(facts: Facts, names: str) -> Cause:
    if facts.uid == 0:
        return Cause(
            f"this process's control group passes {names} on to nobody, and others are in it",
            "systemd-run --scope -p Delegate=yes COMMAND",
        )
    if facts.kinds:  # some of it is delegated, but not that
        lines = "[Service]\\nDelegate=cpu io memory pids\\n"
        return Cause(
            f"{names}: not delegated to {facts.user}'s control group",
            f"sudo mkdir -p {_DELEGATE} && printf '{lines}' | sudo tee {_DELEGATE}/envgym.conf && "
            "sudo systemctl daemon-reload, then log in again",
        )
    start = "systemd-run --user --scope -p Delegate=yes COMMAND"
    if not facts.manager:
        start = f"sudo loginctl enable-linger {facts.user} && {start}"
    return Cause(f"no control group is delegated to {facts.user} ({names} are not bounded by any)", start)
