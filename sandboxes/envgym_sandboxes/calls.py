"""Which system calls a sandbox may not make, and which arguments of others: data, for whoever writes a filter.

A deny list: what can leave a sandbox, look into or disturb its other processes, change the machine, or reach kernel
surface that programs do not need. What is newer than this table does not exist inside (ENOSYS), so that a new call
is reviewed here before anybody can make it. Reviewed against Linux 6.18 and what Docker's default profile refuses
(docs.docker.com/engine/security/seccomp; more is refused here: io_uring, rare protocols, signals by other means).
"""

from dataclasses import dataclass

__all__ = ["DENIED", "FAMILIES", "IOCTLS", "NAMESPACES", "NEWEST", "NUMBERS", "RULES", "Rule"]

Numbers = tuple[int | None, int | None]

DENIED: dict[str, Numbers] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # mounts and namespaces
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
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    # kernel surface without use inside
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "lsm_set_self_attr": (460, 460),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "mbind": (237, 235),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "sysfs": (139, None),
    "ustat": (136, None),
    "_sysctl": (156, None),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
}
"""Refused with EPERM. Name -> numbers on (x86_64, aarch64); None where the architecture does not have it."""

NEWEST = 469
"""The highest number that was reviewed. Above 423 all architectures number alike."""

EPERM, EINVAL, EAFNOSUPPORT, EPROTONOSUPPORT = 1, 22, 97, 93
NAMESPACES = 0x7E020000 | 0x80
"""Flags of clone and unshare that make a namespace; in clone(2) the low byte is the exit signal."""
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
FAMILIES = (UNIX, INET, INET6, NETLINK)
"""Of sockets. Others load modules on demand, or (vsock, alg) are not confined by a network namespace."""
_PROTOCOLS = (0, 1, 6, 17, 58)  # the default, ICMP, TCP, UDP, ICMPv6: sctp, dccp, l2tp and the like load modules
_ROUTES = (0,)  # addresses and routes, which libc asks for
IOCTLS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX put words into another's mouth; TIOCSETD loads line disciplines."""
_DEVICES = (0o020000, 0o060000)
_WHITEOUT = 4
"""Of renameat2: a device is made in the old place. Overlays refuse it so; file systems in memory would not."""
_KIND = 0o170000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # Linux, 32 bits, their release numbers, and to ask
_INIT = 1  # the first process inside has the same user, and must not be slowed down or starved


@dataclass(frozen=True, slots=True)
class Rule:
    """What an argument of a call may be, by its low 32 bits.

    argument: its index. only: the values that it may have; or refused: those that it may not; or bits: those of
    which none may be set. mask: the bits that count. when: (argument, value) that must hold for the rule to.
    """

    call: str
    argument: int
    only: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    bits: int = 0
    mask: int = 0xFFFFFFFF
    when: tuple[int, int] | None = None
    error: int = EPERM


RULES = (
    Rule("clone", 0, bits=NAMESPACES & ~0x80),
    Rule("socket", 0, only=FAMILIES, error=EAFNOSUPPORT),
    Rule("socket", 2, only=_PROTOCOLS, when=(0, INET), error=EPROTONOSUPPORT),
    Rule("socket", 2, only=_PROTOCOLS, when=(0, INET6), error=EPROTONOSUPPORT),
    Rule("socket", 2, only=_ROUTES, when=(0, NETLINK), error=EPROTONOSUPPORT),
    Rule("socketpair", 0, only=(UNIX,), error=EAFNOSUPPORT),
    Rule("ioctl", 1, refused=IOCTLS),
    Rule("mknod", 1, refused=_DEVICES, mask=_KIND),
    Rule("mknodat", 2, refused=_DEVICES, mask=_KIND),
    Rule("renameat2", 4, bits=_WHITEOUT, error=EINVAL),
    Rule("personality", 0, only=_PERSONALITIES),
    Rule("prlimit64", 0, only=(0,)),
    Rule("setpriority", 0, refused=(2,)),  # of all processes of a user
    Rule("setpriority", 1, refused=(_INIT,)),
    Rule("ioprio_set", 0, refused=(3,)),
    Rule("ioprio_set", 1, refused=(_INIT,)),
    Rule("sched_setaffinity", 0, refused=(_INIT,)),
    Rule("sched_setscheduler", 0, refused=(_INIT,)),
    Rule("sched_setparam", 0, refused=(_INIT,)),
    Rule("sched_setattr", 0, refused=(_INIT,)),
)
"""Everything else about these calls is allowed."""

NUMBERS: dict[str, Numbers] = DENIED | {
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "renameat2": (316, 276),
    "personality": (135, 92),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
