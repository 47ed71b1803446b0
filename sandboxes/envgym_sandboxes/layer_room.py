"""How much a writable layer may still hold, of what its sandbox may: the frozen layers below it count."""

import os

__all__ = ["room_left"]

_LEAST = 1 << 20  # a full sandbox can still be looked at
_LEAST_INODES = 16
_OWN_INODES = 5  # of a layer: its top, its three parts, and what an overlay puts into one of them


def room_left(size: int, inodes: int | None, after: list[str]) -> str:
    """Mount options that leave a layer what is left of `size` and `inodes` by the layers it continues."""
    used = [os.statvfs(layer) for layer in after]
    left = size - sum((info.f_blocks - info.f_bfree) * info.f_frsize for info in used)
    options = f"mode=0755,size={max(_LEAST, left)}"
    if inodes is not None:
        left = inodes - sum(info.f_files - info.f_ffree - _OWN_INODES for info in used)
        options += f",nr_inodes={max(_LEAST_INODES, left) + _OWN_INODES}"
    return options
