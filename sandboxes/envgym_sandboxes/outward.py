"""System calls that reach what a sandbox without namespaces shares with its host, as BPF programs.

Landlock confines files, TCP and, on newer kernels, signals. Left over are objects found by number or name (sockets,
System V IPC, message queues, other processes of the same user) and what an owner may do to a file without opening
it for writing (modes, owners, times, attributes). The former are refused here; the latter, and calls that name
another process, are handed to init (`gate`), which knows what is the sandbox's own. Both come on top of `seccomp`.
"""

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from envgym_sandboxes.syscalls import ARCH

__all__ = ["CALLS", "FORKS", "Rules", "asking", "install", "name_of", "refusing"]

Numbers = tuple[int | None, int | None]

_REFUSED: dict[str, Numbers] = {  # (x86_64, aarch64); the whole call
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "inotify_add_watch": (254, 27),
}
_UNKNOWN: dict[str, Numbers] = {  # as on a kernel that does not have them: callers fall back to what is asked
    "pidfd_send_signal": (424, 424),
    "process_mrelease": (448, 448),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
CALLS: dict[str, Numbers] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "pidfd_open": (434, 434),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
"""What init is asked."""
FORKS = ("clone", "fork", "vfork")
_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
"""Name -> how many of its first arguments name a process or thread."""
_OF_A_PROCESS = {"setpriority": 1, "ioprio_set": 1} | dict.fromkeys(
    ("pidfd_open", "prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"), 0
)
"""Name -> which argument names the process; 0 there means the caller."""
_ONE_KIND = {"setpriority": (0, 0), "ioprio_set": (0, 1)}
"""Name -> (argument, value): of a process (PRIO_PROCESS, IOPRIO_WHO_PROCESS), not of a group or a user."""
_OPEN: dict[str, tuple[Numbers, int]] = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
_OPENAT2: Numbers = (437, 437)
_RENAMEAT2: Numbers = (316, 276)
_RENAME_WHITEOUT = 4
_SOCKET: Numbers = (41, 198)
_SOCKETPAIR: Numbers = (53, 199)
_IOCTL: Numbers = (16, 29)
_FLAG_IOCTLS = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602, 0x40806685, 0x800C6613)
"""FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION (both widths), ENABLE_VERITY, SET_ENCRYPTION_POLICY: an owner's, too."""
_INET = (2, 10, 16)

_LD_ABS, _JEQ, _JSET, _AND, _RET = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _ERRNO, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
_EPERM, _ENOSYS, _EINVAL, _EAFNOSUPPORT = 1, 38, 22, 97
_NR, _ARGUMENTS = 0, 16
_O_ACCMODE, _O_TRUNC = 3, 0o1000
_SYS_SECCOMP: Numbers = (317, 277)
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_COLUMN = {"x86_64": 0, "aarch64": 1}
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the programs depend on.

    network: whether sockets of the internet families, and netlink ones, may be made. Unix sockets never: nothing
        says which path one is connected to.
    scoped: whether Landlock keeps signals inside already (ABI 6); else init is asked about each.
    truncates: whether Landlock knows truncation (ABI 3); else init is asked, and opening does not truncate
        unless it opens for writing too.
    counted: whether init is asked before each new process or thread; else a group counts them.
    spared: process and thread ids that no signal may be sent to: init's own.
    """

    network: bool
    scoped: bool
    truncates: bool
    counted: bool
    spared: tuple[int, ...] = ()


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _argument(index: int) -> bytes:
    return _op(_LD_ABS, _ARGUMENTS + 8 * index)


def _when(number: int, block: bytes) -> bytes:
    """Run a block, which must end with a return, for one system call."""
    return _op(_JEQ, number, 0, len(block) // 8) + block


def _errno(value: int) -> bytes:
    return _op(_RET, _ERRNO | value)


def refusing(arch: str, rules: Rules) -> bytes:
    """The program that refuses, as an array of ``struct sock_filter``. It asks nobody."""
    allow, families = _op(_RET, _ALLOW), _INET if rules.network else ()
    kinds = b"".join(_op(_JEQ, family, len(families) - i, 0) for i, family in enumerate(families))
    # A pair of datagram sockets can send to any socket that has a name; one of streams only to each other.
    datagrams = _op(_AND, 0xF) + _op(_JEQ, 2, 1, 0) + _op(_JEQ, 3, 0, 1) + _errno(_EPERM)
    ioctls = b"".join(_op(_JEQ, number, len(_FLAG_IOCTLS) - i, 0) for i, number in enumerate(_FLAG_IOCTLS))
    blocks = [(numbers, _errno(_EPERM)) for numbers in _REFUSED.values()]
    blocks += [(numbers, _errno(_ENOSYS)) for numbers in _UNKNOWN.values()]
    blocks += [
        (_SOCKET, _argument(0) + kinds + _errno(_EAFNOSUPPORT) + allow),
        (_SOCKETPAIR, _argument(1) + datagrams + allow),
        (_IOCTL, _argument(1) + ioctls + allow + _errno(_EPERM)),
    ]
    whiteout = _argument(4) + _op(_JSET, _RENAME_WHITEOUT, 0, 1) + _errno(_EINVAL)  # it makes a device
    blocks.append((_RENAMEAT2, whiteout + allow))
    for name, named in _SIGNALS.items():
        spared = b"".join(_op(_JEQ, pid, 0, 1) + _errno(_EPERM) for pid in rules.spared)
        blocks.append((CALLS[name], b"".join(_argument(index) + spared for index in range(named)) + allow))
    for name, (index, only) in _ONE_KIND.items():
        blocks.append((CALLS[name], _argument(index) + _op(_JEQ, only, 1, 0) + _errno(_EPERM) + allow))
    if not rules.truncates:
        blocks.append((_OPENAT2, _errno(_ENOSYS)))  # its flags are in memory
        for numbers, index in _OPEN.values():
            flags = _op(_AND, _O_TRUNC | _O_ACCMODE) + _op(_JEQ, _O_TRUNC, 0, 1) + _errno(_EINVAL)
            blocks.append((numbers, _argument(index) + flags + allow))
    return _program(arch, blocks)


def asking(arch: str, rules: Rules) -> bytes:
    """The program that asks init, and refuses nothing."""
    ask, allow = _op(_RET, _ASK), _op(_RET, _ALLOW)
    unasked = {"truncate": rules.truncates} | dict.fromkeys(_SIGNALS, rules.scoped)
    unasked |= dict.fromkeys(FORKS, not rules.counted)
    blocks = []
    for name, numbers in CALLS.items():
        if name in _OF_A_PROCESS:
            blocks.append((numbers, _argument(_OF_A_PROCESS[name]) + _op(_JEQ, 0, 0, 1) + allow + ask))
        elif not unasked.get(name):
            blocks.append((numbers, ask))
    return _program(arch, blocks)


def _program(arch: str, blocks: list[tuple[Numbers, bytes]]) -> bytes:
    numbered = [(numbers[_COLUMN[arch]], block) for numbers, block in blocks]
    code = b"".join(_when(number, block) for number, block in numbered if number is not None)
    return _op(_LD_ABS, _NR) + code + _op(_RET, _ALLOW)


def name_of(number: int) -> str:
    """The name of a call that init is asked about."""
    return _ASKED[number]


_ASKED = {numbers[_COLUMN[ARCH]]: name for name, numbers in CALLS.items()} if ARCH in _COLUMN else {}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(program: bytes, *, listens: bool) -> int:
    """Put a program on the calling thread and all it starts.

    Needs no_new_privs. Returns the descriptor at which its questions are answered, if it `listens`, else 0. Raises
    OSError: EBUSY where a program with a listener is there already, EINVAL before Linux 5.5.
    """
    number = _SYS_SECCOMP[_COLUMN[ARCH]]
    assert number is not None
    filled = ctypes.byref(_Program(len(program) // 8, program))
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER) if listens else (0,):
        made = _LIBC.syscall(ctypes.c_long(number), ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(flags), filled)
        if (fd := int(made)) >= 0:
            return fd
        error = ctypes.get_errno()
        if error != errno.EINVAL:
            break  # else this kernel lets a signal end the wait for an answer (before Linux 5.19)
    raise OSError(error, f"seccomp: {os.strerror(error)}")
