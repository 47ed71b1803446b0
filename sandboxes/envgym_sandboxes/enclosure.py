"""How the first process of a sandbox without namespaces gives up what it does not need, before the first command.

Its own limits are wider than a command's: it sees the host's processes and may signal those below it. What it
starts is confined further (`domain`). The order matters: groups and limits need the host's files and rights,
Landlock needs the paths it names, capabilities go before the filter.
"""

import os
import signal
from typing import Any

from envgym_sandboxes import landlock, seccomp, syscalls
from envgym_sandboxes.root import group_files, join_cgroups, limit, meter_files

__all__ = ["enclose"]


def enclose(spec: dict[str, Any]) -> None:
    """Confine this process. Raises OSError; the caller must then exit."""
    syscalls.die_with_parent()
    os.setsid()
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # what a command leaves behind is still this sandbox's
    join_cgroups(group_files(spec["cgroups"]))
    spec["meters"] = dict(zip(spec["meters"], meter_files(spec["meters"]), strict=True))
    limit(spec["limits"])
    domain = spec["domain"]
    paths = [(path, rights) for path, rights in domain["rules"]]
    paths += [("/proc", landlock.READ | landlock.WRITE_FILE), (domain["root"], landlock.ALL)]
    landlock.restrict(landlock.Ruleset(tuple(paths), tcp=domain["network"]), version=domain["version"])
    syscalls.drop_capabilities()
    seccomp.install(without=("prlimit64",))  # for those below; what they do is another filter's matter
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.die_with_parent()
