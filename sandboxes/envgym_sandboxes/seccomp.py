"""The system call filter, as a BPF program assembled by hand (no library needed).

`calls` says what is refused; this module says it to the kernel. It is the second wall; namespaces, ids and dropped
capabilities are the first.
"""

import ctypes
import struct
from collections.abc import Collection
from itertools import groupby

from envgym_sandboxes.calls import DENIED, EPERM, NEWEST, NUMBERS, RULES, Rule
from envgym_sandboxes.syscalls import ARCH, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

__all__ = ["install", "program"]

_COLUMN = {"x86_64": 0, "aarch64": 1}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_LD_ABS, _AND, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ENOSYS = 38
_NUMBER, _ARCH_FIELD, _ARGUMENTS = 0, 4, 16
_SIZE = 8
_EVERY = 0xFFFFFFFF


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _refuse(error: int = EPERM) -> bytes:
    return _op(_RET, _ERRNO | error)


def _if(test: int, value: int, then: bytes) -> bytes:
    """`then` if the accumulator passes the test; after it, whatever follows."""
    return _op(test, value, 0, len(then) // _SIZE) + then


def _load(argument: int) -> bytes:
    return _op(_LD_ABS, _ARGUMENTS + 8 * argument)  # the low half, on a little-endian machine


def _check(rule: Rule) -> bytes:
    """Refuse what a rule refuses, and go on otherwise."""
    code = _load(rule.argument) + (_op(_AND, rule.mask) if rule.mask != _EVERY else b"")
    for index, value in enumerate(rule.only):
        code += _op(_JEQ, value, len(rule.only) - index)  # past the other values and the refusal
    if rule.only:
        code += _refuse(rule.error)
    for value in rule.refused:
        code += _if(_JEQ, value, _refuse(rule.error))
    if rule.bits:
        code += _if(_JSET, rule.bits, _refuse(rule.error))
    if rule.when is None:
        return code
    return _load(rule.when[0]) + _if(_JEQ, rule.when[1], code)


def program(arch: str, rules: tuple[Rule, ...] = RULES) -> bytes:
    """The filter as an array of ``struct sock_filter``. rules: those of one call stand together."""
    column = _COLUMN[arch]
    code = _op(_LD_ABS, _ARCH_FIELD) + _op(_JEQ, _AUDIT_ARCH[arch], 1, 0) + _refuse() + _op(_LD_ABS, _NUMBER)
    if arch == "x86_64":  # the x32 numbers would slip past the table
        code += _if(_JGE, _X32, _refuse())
    code += _if(_JGE, NEWEST + 1, _refuse(_ENOSYS))
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            code += _if(_JEQ, number, _refuse())
    # clone3 keeps its flags in memory that BPF cannot read; libc falls back to clone on ENOSYS.
    code += _if(_JEQ, NUMBERS["clone3"][column] or 0, _refuse(_ENOSYS))
    for call, checks in groupby(rules, lambda rule: rule.call):
        if (number := NUMBERS[call][column]) is not None:
            code += _if(_JEQ, number, b"".join(map(_check, checks)) + _op(_RET, _ALLOW))
    return code + _op(_RET, _ALLOW)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


_CODE = program(ARCH) if ARCH in _COLUMN else b""


def install(*, without: Collection[str] = ()) -> None:
    """Put the filter on this process and all it starts. Needs no_new_privs.

    without: calls whose rules are left out; they may be made with any argument.
    """
    if not _CODE:
        raise OSError(f"there is no system call filter for {ARCH}, only for {', '.join(_COLUMN)}")
    code = program(ARCH, tuple(rule for rule in RULES if rule.call not in without)) if without else _CODE
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(code) // _SIZE, code)))
