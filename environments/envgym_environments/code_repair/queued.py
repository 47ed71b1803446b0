"""How long this process waited for a processor: what a busy machine adds to the time that a test takes.

The kernel counts it for each thread (`/proc/PID/task/TID/schedstat`, its second number). Standard library only: it
may have come as source.
"""

import contextlib
import os

__all__ = ["queued_s"]


def queued_s() -> float:
    """Seconds in which threads that live now could have run and did not; 0.0 where the kernel does not say.

    Of threads that waited at the same time each counts.
    """
    waited = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/self/task/{thread}/schedstat", "rb") as file,
            ):
                waited += int(file.read().split()[1])
    return waited / 1e9
