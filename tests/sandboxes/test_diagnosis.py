"""From facts to causes: each is told with the command that changes it, and nothing else is."""

import errno
import socket
import subprocess

import pytest
from envgym_sandboxes.diagnosis import trial
from envgym_sandboxes.diagnosis.causes import why_no_groups, why_no_namespaces
from envgym_sandboxes.diagnosis.engine import EngineFacts, look_at_engine, why_no_engine
from envgym_sandboxes.diagnosis.facts import SYSCTLS, Facts, look

ALL = frozenset({"memory", "pids", "cpu", "io", "usage"})
WORKS = dict.fromkeys(trial.STEPS, 0)


def until(step, error):
    """A trial that came to a step and failed there."""
    return dict.fromkeys(trial.STEPS[: trial.STEPS.index(step)], 0) | {step: error}


NAMESPACES = [
    (
        "no user namespaces at all",
        {"sysctls": {"user.max_user_namespaces": 0}, "trial": until("user", errno.ENOSPC)},
        "user.max_user_namespaces is 0: no user namespace may be made",
        "sudo sysctl -w user.max_user_namespaces=15000 && echo",
    ),
    (
        "too many",
        {"sysctls": {"user.max_user_namespaces": 20000}, "trial": until("user", errno.ENOSPC)},
        "user.max_user_namespaces is 20000: all are used",
        "sudo sysctl -w user.max_user_namespaces=40000",
    ),
    (
        "Debian's switch",
        {
            "sysctls": {"user.max_user_namespaces": 9000, "kernel.unprivileged_userns_clone": 0},
            "trial": until("user", errno.EPERM),
        },
        "kernel.unprivileged_userns_clone is 0: only root may",
        "sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "Ubuntu 24.04",
        {
            "sysctls": {"user.max_user_namespaces": 9000, "kernel.apparmor_restrict_unprivileged_userns": 1},
            "trial": until("mount", errno.EPERM),
            "python": "/opt/venv/bin/python3.12",
        },
        "kernel.apparmor_restrict_unprivileged_userns is 1: AppArmor lets only programs with a profile",
        "printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile envgym /opt/venv/bin/python3.12 "
        "flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/envgym && sudo apparmor_parser -r ",
    ),
    (
        "a container of Docker",
        {"container": "docker", "filtered": True, "trial": until("user", errno.EPERM)},
        "making a user namespace fails: Operation not permitted, in a docker container that forbids it",
        "docker run --security-opt seccomp=unconfined",
    ),
    (
        "a pod",
        {"container": "kubernetes", "filtered": True, "trial": until("proc", errno.EPERM)},
        "mounting a new /proc fails: Operation not permitted, in a kubernetes container",
        "securityContext",
    ),
    (
        "a filter of who knows whom",
        {"filtered": True, "trial": until("user", errno.EPERM)},
        "in a system call filter that forbids it",
        "start this process without the filter; or use the landlock backend",
    ),
    (
        "no network namespaces",
        {"sysctls": {"user.max_net_namespaces": 0}, "trial": until("network", errno.ENOSPC)},
        "user.max_net_namespaces is 0",
        "sudo sysctl -w user.max_net_namespaces=15000",
    ),
    (
        "no overlay",
        {"systems": frozenset({"tmpfs"}), "trial": until("overlay", errno.ENODEV)},
        "the kernel has no overlay file system",
        "sudo modprobe overlay",
    ),
    (
        "an old kernel",
        {"kernel": (5, 4), "trial": until("overlay", errno.EPERM)},
        "Linux 5.4 lets only root mount an overlay",
        "run as root, or on a newer kernel",
    ),
    (
        "who knows",
        {"trial": until("tmpfs", errno.EACCES)},
        "mounting a tmpfs fails: Permission denied",
        "ask who runs this machine; the landlock backend needs no namespaces",
    ),
    ("not Linux", {"system": "Darwin"}, "this is Darwin", "use a Linux host or virtual machine"),
]


@pytest.mark.parametrize(
    ("facts", "missing", "fix"), [case[1:] for case in NAMESPACES], ids=[c[0] for c in NAMESPACES]
)
def test_what_is_wrong_with_namespaces_is_one_thing_with_its_command(facts, missing, fix):
    (cause,) = why_no_namespaces(Facts(**facts))
    assert cause.missing.startswith(missing) or missing in cause.missing, cause
    assert cause.fix.startswith(fix), cause


def test_the_profile_that_is_to_be_written_is_one():
    sysctls = {"kernel.apparmor_restrict_unprivileged_userns": 1}
    (cause,) = why_no_namespaces(Facts(sysctls=sysctls, trial=until("mount", errno.EPERM)))
    command = cause.fix.split(" | sudo tee")[0]
    written = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=10).stdout
    assert written.splitlines() == [
        "abi <abi/4.0>,",
        "include <tunables/global>",
        "profile envgym /usr/bin/python3 flags=(unconfined) {",
        "  userns,",
        "}",
    ]


def test_a_switch_that_is_not_what_failed_is_not_blamed():
    sysctls = {"kernel.apparmor_restrict_unprivileged_userns": 1, "kernel.unprivileged_userns_clone": 0}
    (cause,) = why_no_namespaces(Facts(sysctls=sysctls, systems=frozenset(), trial=until("overlay", errno.ENODEV)))
    assert cause.fix == "sudo modprobe overlay"
    (cause,) = why_no_namespaces(Facts(sysctls=sysctls, uid=0, capable=True, trial=until("mount", errno.EPERM)))
    assert "AppArmor" not in cause.missing, "root is not an ordinary user"


def test_nothing_is_wrong_where_everything_worked():
    assert why_no_namespaces(Facts(trial=WORKS, sysctls={"user.max_user_namespaces": 0})) == []
    assert why_no_namespaces(Facts(trial={"trial": 1}))[0].missing == "the trial of namespaces could not be made"


GROUPS = [
    ("all", {"kinds": ALL}, None, None),
    ("none mounted", {"groups": 0}, "no control groups are mounted", "sudo mount -t cgroup2 none /sys/fs/cgroup"),
    (
        "read-only in a container",
        {"groups": 2, "writable": False, "container": "podman"},
        "control groups are mounted read-only",
        "start the container with --privileged",
    ),
    (
        "version 1 as a user",
        {"groups": 1, "uid": 1000},
        "control groups are of version 1, which only root may use",
        "run as root, or boot with version 2",
    ),
    (
        "version 1 without blkio",
        {"groups": 1, "uid": 0, "kinds": ALL - {"io"}},
        "no hierarchy of version 1 has io",
        "sudo mkdir -p /sys/fs/cgroup/blkio && sudo mount -t cgroup -o blkio none /sys/fs/cgroup/blkio",
    ),
    (
        "a login of systemd",
        {"groups": 2, "manager": True},
        "no control group is delegated to user",
        "systemd-run --user --scope -p Delegate=yes COMMAND",
    ),
    (
        "no manager of systemd",
        {"groups": 2, "user": "ann"},
        "no control group is delegated to ann",
        "sudo loginctl enable-linger ann && systemd-run --user --scope -p Delegate=yes COMMAND",
    ),
    (
        "only memory and pids are delegated",
        {"groups": 2, "manager": True, "kinds": frozenset({"memory", "pids", "usage"})},
        "cpu, io: not delegated to user's control group",
        "sudo mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu io memory pids\\n'",
    ),
    (
        "root among others",
        {"groups": 2, "uid": 0},
        "this process's control group passes memory, pids, cpu, io on to nobody",
        "systemd-run --scope -p Delegate=yes COMMAND",
    ),
]


@pytest.mark.parametrize(("facts", "missing", "fix"), [case[1:] for case in GROUPS], ids=[c[0] for c in GROUPS])
def test_what_is_wrong_with_control_groups_is_one_thing_with_its_command(facts, missing, fix):
    causes = why_no_groups(Facts(**facts))
    if missing is None:
        assert causes == []
        return
    (cause,) = causes
    assert cause.missing.startswith(missing), cause
    assert cause.fix.startswith(fix), cause


def test_this_host_is_looked_at_as_it_is(make):
    """`make`: where the backend works, the trial finds nothing wrong either."""
    privileged = make()._privileged
    facts = look(privileged=privileged, tried=True)
    assert facts.trial == WORKS, facts
    assert why_no_namespaces(facts) == []
    assert facts.sysctls.keys() <= set(SYSCTLS)
    assert facts.kernel > (4, 0)
    assert facts.capable == privileged
    assert make().report().works
    assert look(privileged=privileged).trial == {}, "nothing is tried unless it is asked for"


ENGINES = [
    ({}, None, None),
    (
        {"there": False, "answers": False, "installed": False},
        "no Docker engine is installed",
        "sudo apt-get install docker.io && sudo systemctl start docker",
    ),
    (
        {"there": False, "answers": False},
        "no engine answers at unix:///var/run/docker.sock",
        "sudo systemctl start",
    ),
    ({"answers": False, "systemd": False}, "no engine answers", "sudo dockerd &"),
    (
        {"answers": False, "denied": True, "root": False, "user": "ann"},
        "ann may not use the engine",
        "sudo usermod -aG docker ann, then log in again",
    ),
    ({"root": False}, "user is not root", "run as root; or use the namespace or landlock backend"),
    ({"address": "tcp://far:2375", "answers": False}, "the engine at tcp://far:2375 is another host's", "unset"),
]


@pytest.mark.parametrize(("facts", "missing", "fix"), ENGINES)
def test_what_is_wrong_with_an_engine_is_one_thing_with_its_command(facts, missing, fix):
    causes = why_no_engine(EngineFacts(**facts))
    if missing is None:
        assert causes == []
        return
    (cause,) = causes
    assert cause.missing.startswith(missing), cause
    assert cause.fix.startswith(fix), cause


def test_an_address_is_looked_at_as_it_is(tmp_path):
    absent = look_at_engine(f"unix://{tmp_path}/absent")
    assert (absent.there, absent.answers, absent.denied) == (False, False, False)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert look_at_engine(f"unix://{path}").answers is False, "nobody listens"
        server.listen()
        there = look_at_engine(f"unix://{path}")
        assert (there.there, there.answers) == (True, True)
    assert look_at_engine("tcp://127.0.0.1:1").answers is False
