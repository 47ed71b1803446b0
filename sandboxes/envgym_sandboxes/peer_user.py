"""Whose program is at the other end of a connection within this host.

A unix socket says so itself (SO_PEERCRED). Of a TCP connection over the loopback the kernel knows both ends: it is
asked for the other one (sock_diag(7)), or, where it has no such interface, its table of them is read (proc(5)).
"""

import errno
import os
import socket
import struct
from pathlib import Path

__all__ = ["is_this_users"]

_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBxI")  # struct inet_diag_req_v2 before its id: family, protocol, extensions, states
_ID = struct.Struct(">HH16s16s")  # struct inet_diag_sockid: ports and addresses; then interface and cookie, any
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_OWNER = struct.Struct("=II")  # of struct inet_diag_msg: uid and inode
_OWNER_AT = _HEAD.size + 4 + _ID.size + len(_ANY) + 12
_BY_FAMILY, _REQUEST, _DIAG = 20, 1, 4  # SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NETLINK_SOCK_DIAG
_ANSWER_S = 1.0

_Place = tuple[str, int]


def is_this_users(connection: socket.socket) -> bool:
    """Whether a program of this process's user, or of root, has the other end of an IPv4 connection of this host.

    False for one that nobody has any more: the kernel does not say whose it was.
    """
    try:
        there, here = connection.getpeername(), connection.getsockname()
        owner: tuple[int, int] | None
        try:
            owner = _asked(there, here)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            owner = _looked_up(there, here)
    except OSError:
        return False  # it is gone, or nothing here says whose it is
    return owner is not None and owner[1] != 0 and owner[0] in (0, os.getuid())


def _asked(there: _Place, here: _Place) -> tuple[int, int]:
    """Uid and inode of the socket at `there` that is connected to `here`. Raises OSError."""
    ends = _ID.pack(there[1], here[1], *(socket.inet_aton(place[0]).ljust(16, b"\0") for place in (there, here)))
    asked = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _ANY
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
        said = kernel.recv(1 << 12)
    if _HEAD.unpack_from(said)[1] != _BY_FAMILY or len(said) < _OWNER_AT + _OWNER.size:
        (number,) = struct.unpack_from("=i", said, _HEAD.size)
        raise OSError(-number, os.strerror(-number))
    uid, inode = _OWNER.unpack_from(said, _OWNER_AT)
    return uid, inode


def _looked_up(there: _Place, here: _Place) -> tuple[int, int] | None:
    """The same by the kernel's table; None where it is not in it. Raises OSError."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == [_written(there), _written(here)]:
            return int(fields[7]), int(fields[9])
    return None


def _written(place: _Place) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(place[0]))
    return f"{number:08X}:{place[1]:04X}"
