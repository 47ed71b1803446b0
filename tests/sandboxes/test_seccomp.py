"""The system call filter: what it says of each call, and what the kernel then does."""

import re
import struct

import pytest
from envgym_sandboxes import calls, seccomp

pytestmark = [pytest.mark.timeout(60)]

ALLOW, EPERM, EINVAL, ENOSYS = 0x7FFF0000, 0x50001, 0x50016, 0x50026
EAFNOSUPPORT, EPROTONOSUPPORT = 0x50061, 0x5005D
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}


def evaluate(arch, number, *arguments, audit=None):
    """What the filter says of a call: an interpreter for the few instructions that it uses."""
    code = seccomp.program(arch)
    data = {0: number, 4: AUDIT[arch] if audit is None else audit}
    data |= {16 + 8 * index: argument & 0xFFFFFFFF for index, argument in enumerate((*arguments, *[0] * 6)[:6])}
    at, value = 0, 0
    while True:
        op, yes, no, operand = struct.unpack_from("HBBI", code, at * 8)
        at += 1
        if op == 0x20:
            value = data[operand]
        elif op == 0x54:
            value &= operand
        elif op == 0x06:
            return operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[op]
            at += yes if holds else no


def said(arch, call, *arguments):
    number = calls.NUMBERS[call][COLUMN[arch]]
    return None if number is None else evaluate(arch, number, *arguments)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_number_is_refused_allowed_or_looked_at_as_the_table_says(arch):
    denied = {numbers[COLUMN[arch]] for numbers in calls.DENIED.values()} - {None}
    looked_at = {calls.NUMBERS[rule.call][COLUMN[arch]] for rule in calls.RULES} | {435}
    for number in range(calls.NEWEST + 1):
        if number not in looked_at:
            assert evaluate(arch, number) == (EPERM if number in denied else ALLOW), number
    assert evaluate(arch, 435) == ENOSYS, "clone3, so that libc falls back"
    for number in (calls.NEWEST + 1, 500, 1000, 0x3FFFFFFF):
        assert evaluate(arch, number) == ENOSYS, "what nobody has reviewed does not exist"
    assert evaluate(arch, 0, audit=0x40000003) == EPERM, "another architecture's numbers mean other calls"
    if arch == "x86_64":
        assert evaluate(arch, 0x40000000 | 101) == EPERM, "x32"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_arguments_are_looked_at(arch):
    assert said(arch, "clone", 17) == ALLOW, "fork is allowed"
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert said(arch, "clone", flag | 17) == EPERM, hex(flag)
    for family in range(50):
        expected = ALLOW if family in (1, 2, 10, 16) else EAFNOSUPPORT
        assert said(arch, "socket", family, 1, 0) == expected, family
        assert said(arch, "socketpair", family, 1, 0) == (ALLOW if family == 1 else EAFNOSUPPORT), family
    for family, protocol, expected in (
        (2, 6, ALLOW),
        (10, 17, ALLOW),
        (2, 132, EPROTONOSUPPORT),
        (10, 33, EPROTONOSUPPORT),
        (1, 132, ALLOW),
        (16, 0, ALLOW),
        (16, 12, EPROTONOSUPPORT),
    ):
        assert said(arch, "socket", family, 1, protocol) == expected, (family, protocol)
    assert said(arch, "ioctl", 0, 0x5401) == ALLOW
    for request in (0x5412, 0x541C, 0x5423, 0x1_0000_5412):
        assert said(arch, "ioctl", 0, request) == EPERM, "the kernel looks at the low half only"
    for kind, expected in ((0o100644, ALLOW), (0o010644, ALLOW), (0o020644, EPERM), (0o060644, EPERM)):
        assert said(arch, "mknodat", 0, 0, kind) == expected, oct(kind)
        assert said(arch, "mknod", 0, kind) in (expected, None), oct(kind)
    for flags, expected in ((0, ALLOW), (1, ALLOW), (2, ALLOW), (4, EINVAL), (5, EINVAL)):
        assert said(arch, "renameat2", 0, 0, 0, 0, flags) == expected, flags
    assert said(arch, "personality", 0xFFFFFFFF) == ALLOW
    assert said(arch, "personality", 0x0400000) == EPERM
    assert (said(arch, "prlimit64", 0), said(arch, "prlimit64", 1)) == (ALLOW, EPERM)
    assert (said(arch, "setpriority", 0, 0), said(arch, "setpriority", 0, 1)) == (ALLOW, EPERM)
    assert said(arch, "setpriority", 2, 0) == EPERM
    assert (said(arch, "ioprio_set", 1, 5), said(arch, "ioprio_set", 1, 1)) == (ALLOW, EPERM)
    for call in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        assert (said(arch, call, 0), said(arch, call, 1), said(arch, call, 7)) == (ALLOW, EPERM, ALLOW), call


DOCKER_REFUSES = """
acct add_key bpf clock_adjtime clock_settime create_module delete_module finit_module get_kernel_syms get_mempolicy
init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind mount move_pages nfsservctl
open_by_handle_at perf_event_open pivot_root process_vm_readv process_vm_writev ptrace query_module quotactl reboot
request_key set_mempolicy setns settimeofday swapon swapoff sysfs _sysctl umount2 unshare uselib userfaultfd ustat
"""


def test_what_docker_refuses_by_default_is_refused():
    """Its documentation's list, without those of 32 bits, and clone and personality, whose arguments decide."""
    assert set(re.findall(r"\w+", DOCKER_REFUSES)) <= set(calls.DENIED)


def test_each_calls_rules_stand_together_and_each_call_has_one_number():
    names = [rule.call for rule in calls.RULES]
    assert [name for at, name in enumerate(names) if name not in names[:at] or names[at - 1] == name] == names
    for column in (0, 1):
        numbers = [pair[column] for pair in calls.NUMBERS.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers)), "no number stands for two calls"


CALLS = """
import ctypes, errno, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
numbers = {{{numbers}}}
def say(name, failed):
    print(name, errno.errorcode[ctypes.get_errno()] if failed else "done")
for name, number in numbers.items():
    ctypes.set_errno(0)
    say(name, libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) < 0)
def attempt(name, what, *given):
    try:
        what(*given)
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
attempt("own limit", resource.prlimit, 0, resource.RLIMIT_NOFILE)
attempt("limit", resource.prlimit, 1, resource.RLIMIT_CPU, (0, 0))
attempt("nice", os.setpriority, os.PRIO_PROCESS, 1, 19)
attempt("nice all", os.setpriority, os.PRIO_USER, 0, 19)
attempt("own nice", os.setpriority, os.PRIO_PROCESS, 0, 1)
attempt("affinity", os.sched_setaffinity, 1, {{0}})
attempt("idle", os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt("device", os.mknod, "zero", 0o20666, 0x105)
attempt("whiteout", os.mknod, "whiteout", 0o20666, 0)
attempt("pipe", os.mkfifo, "pipe")
ctypes.set_errno(0)
say("rename", libc.syscall(ctypes.c_long({rename}), -100, b"pipe", -100, b"moved", 4) < 0)
attempt("tipc", socket.socketpair, 30, socket.SOCK_DGRAM)
attempt("sctp", socket.socket, socket.AF_INET, socket.SOCK_STREAM, 132)
attempt("audit", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 9)
attempt("route", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)
attempt("tcp", socket.socket, socket.AF_INET, socket.SOCK_STREAM, 6)
attempt("pair", socket.socketpair)
"""


def test_the_kernel_refuses_what_the_table_says(make, run, world):
    """-1 for every argument: what got past the filter would say EBADF, EINVAL or EFAULT, or do it."""
    column = COLUMN[seccomp.ARCH]
    numbers = {name: pair[column] for name, pair in calls.DENIED.items() if pair[column] is not None}
    told = ", ".join(f"{name!r}: {number}" for name, number in numbers.items())
    program = CALLS.format(numbers=told, rename=calls.NUMBERS["renameat2"][column])
    expected = dict.fromkeys(numbers, "EPERM")
    refused = ("limit", "nice", "nice all", "affinity", "idle", "device", "whiteout")
    expected |= dict.fromkeys(refused, "EPERM")
    expected |= {"rename": "EINVAL", "tipc": "EAFNOSUPPORT", "sctp": "EPROTONOSUPPORT", "audit": "EPROTONOSUPPORT"}
    expected |= dict.fromkeys(("own limit", "own nice", "pipe", "route", "tcp", "pair"), "done")

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["python3", "-c", program])
            told = dict(line.rsplit(" ", 1) for line in result.stdout.decode().splitlines())
            assert told == expected, result.text
            assert (await sandbox.exec("true")).ok

    run(main())
