"""The system calls a sandbox may not make, as a BPF program written by hand (no library needed).

A deny list with EPERM: what can leave the sandbox, look into other processes, or reach little-tested kernel
surface. It is the second wall; namespaces, ids and dropped capabilities are the first.
"""

import ctypes
import struct

from envgym_sandboxes.syscalls import ARCH, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

__all__ = ["install", "program"]

# name: (x86_64, aarch64); None where the architecture does not have it.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_NAMESPACES = 0x7E020000 | 0x80  # every CLONE_NEW* that clone(2) takes, and CLONE_NEWTIME
_NAMESPACES_CLONE = _NAMESPACES & ~0x80  # in clone(2) the low byte is the exit signal
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink: vsock and alg are not confined by a network namespace
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NR, _ARCH_FIELD, _ARG0, _ARG1 = 0, 4, 16, 24


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def program(arch: str) -> bytes:
    """The filter as an array of ``struct sock_filter``."""
    refuse = _op(_RET, _ERRNO | _EPERM)
    code = _op(_LD_ABS, _ARCH_FIELD) + _op(_JEQ, _AUDIT_ARCH[arch], 1, 0) + refuse + _op(_LD_ABS, _NR)
    if arch == "x86_64":  # the x32 numbers would slip past the table
        code += _op(_JGE, 0x40000000, 0, 1) + refuse
    for numbers in _DENIED.values():
        number = numbers[_COLUMN[arch]]
        if number is not None:
            code += _op(_JEQ, number, 0, 1) + refuse
    # clone3 keeps its flags in memory that BPF cannot read; libc falls back to clone on ENOSYS.
    code += _op(_JEQ, _CLONE3, 0, 1) + _op(_RET, _ERRNO | _ENOSYS)
    code += _op(_JEQ, _CLONE[arch], 0, 4) + _op(_LD_ABS, _ARG0) + _op(_JSET, _NAMESPACES_CLONE, 0, 1) + refuse
    code += _op(_RET, _ALLOW)
    families = b"".join(_op(_JEQ, family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES))
    code += _op(_JEQ, _SOCKET[arch], 0, 3 + len(_FAMILIES)) + _op(_LD_ABS, _ARG0) + families
    code += _op(_RET, _ERRNO | _EAFNOSUPPORT) + _op(_RET, _ALLOW)
    code += _op(_JEQ, _IOCTL[arch], 0, 4) + _op(_LD_ABS, _ARG1)
    code += _op(_JEQ, _TIOCSTI, 1, 0) + _op(_JEQ, _TIOCLINUX, 0, 1) + refuse
    return code + _op(_RET, _ALLOW)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


_CODE = program(ARCH) if ARCH in _COLUMN else b""


def install() -> None:
    """Put the filter on this process and all it starts. Needs no_new_privs."""
    if not _CODE:
        raise OSError(f"there is no system call filter for {ARCH}, only for {', '.join(_COLUMN)}")
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(_CODE) // 8, _CODE)))
