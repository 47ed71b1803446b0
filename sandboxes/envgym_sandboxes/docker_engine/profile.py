"""The engine's filter of system calls, made of the table that every sandbox of this package is filtered by.

It is the outer one of two: it lets pid 1 make a user namespace, which the inner one, that pid 1 then puts on
itself and all others, does not. What an engine's filters cannot say (all values of an argument but some) only the
inner one says, but for families of sockets, which are few enough to be listed.
"""

import json
from functools import cache
from typing import Any

from envgym_sandboxes.calls import DENIED, EAFNOSUPPORT, EPERM, FAMILIES, NAMESPACES, RULES, Rule

__all__ = ["profile"]

_ENOSYS = 38
_NEW_USER = 0x10000000


@cache
def profile() -> str:
    """The filter as the JSON that ``seccomp=`` of an engine takes."""
    rules = [_refuse(sorted(set(DENIED) - {"unshare"}), EPERM), _refuse(["clone3"], _ENOSYS)]
    rules += [_bit("unshare", 0, flag, EPERM) for flag in _bits(NAMESPACES & ~_NEW_USER)]
    for rule in RULES:
        rules += _of(rule)
    for family in set(range(max(FAMILIES))) - set(FAMILIES):
        rules.append(_refuse(["socket"], EAFNOSUPPORT, {"index": 0, "op": "SCMP_CMP_EQ", "value": family}))
    rules.append(_refuse(["socket"], EAFNOSUPPORT, {"index": 0, "op": "SCMP_CMP_GT", "value": max(FAMILIES)}))
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _of(rule: Rule) -> list[dict[str, Any]]:
    """What of a rule an engine's filter can say."""
    if rule.when is not None:
        return []
    found = [_bit(rule.call, rule.argument, flag, rule.error) for flag in _bits(rule.bits)]
    return found + [_masked(rule.call, rule.argument, rule.mask, value, rule.error) for value in rule.refused]


def _bits(flags: int) -> list[int]:
    return [1 << number for number in range(32) if flags >> number & 1]


def _bit(call: str, argument: int, flag: int, error: int) -> dict[str, Any]:
    return _masked(call, argument, flag, flag, error)


def _masked(call: str, argument: int, mask: int, value: int, error: int) -> dict[str, Any]:
    compare = {"index": argument, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
    return _refuse([call], error, compare)


def _refuse(names: list[str], error: int, compare: dict[str, Any] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    return rule | {"args": [compare]} if compare else rule
