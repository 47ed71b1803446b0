"""What this machine can do: the host's facts, every sandbox backend's own report, and the extras installed."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distribution, entry_points, version
from pathlib import Path
from typing import Annotated

import typer

from envgym.cli.extras import extras_of
from envgym.registry import AUTO_ORDER, find, names
from envgym.sandbox import BackendReport

__all__ = ["Diagnosis", "choose_auto", "diagnose", "doctor_command"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """host: fact -> value. backends: one report each. auto: the backend that "auto" takes, and why.

    extras: extra -> distributions that it still lacks (none: installed).
    """

    host: dict[str, str]
    backends: list[BackendReport]
    auto: str | None
    why: str
    extras: dict[str, list[str]] = field(default_factory=dict)


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """What works on this machine, what does not, and the fix. Exit status 1 when no sandbox isolates."""
    found = diagnose()
    if as_json:
        plain = asdict(found) | {"backends": [report.model_dump() for report in found.backends]}
        json.dump(plain, sys.stdout, indent=1)
        print()
    else:
        _show(found)
    if found.auto is None:
        raise typer.Exit(1)


def diagnose() -> Diagnosis:
    """Look at this machine. Trying the backends makes a sandbox each and removes it."""
    reports = [_report(name) for name in names("sandboxes")]
    auto, why = choose_auto(reports)
    return Diagnosis(_host(), reports, auto, why, extras_of(distribution("envgym")))


def choose_auto(reports: Sequence[BackendReport]) -> tuple[str | None, str]:
    """The backend that "auto" takes, given what each says of this host, and why."""
    by_name = {report.backend: report for report in reports}
    passed: list[str] = []
    for name in AUTO_ORDER:
        report = by_name.get(name)
        if report is not None and report.works:
            reason = "; ".join(passed) or f"first of {', '.join(AUTO_ORDER)}"
            return name, f"{reason}; it works here, and backends that do not isolate are never chosen silently"
        told = "is not installed" if report is None else f"does not work: {next(iter(report.missing), 'no reason')}"
        passed.append(f"{name} {told}")
    return None, f"{'; '.join(passed)}; name another backend yourself, for code you trust"


def _report(name: str) -> BackendReport:
    try:
        backend = find("sandboxes", name)()
    except ImportError as error:
        extra = _extra_of(name)
        fix = (f"pip install 'envgym[{extra}]'",) if extra else ()
        return BackendReport(backend=name, works=False, missing=(str(error),), fix=fix)
    report: BackendReport = backend.report()
    return report


def _extra_of(name: str) -> str:
    """The extra that a backend of ours needs; empty when it needs none or is not ours."""
    found = next(iter(entry_points(group="envgym.sandboxes", name=name)), None)
    ours = found is not None and found.dist is not None and found.dist.name == "envgym"
    return next(iter(found.extras), "") if found is not None and ours else ""


def _host() -> dict[str, str]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "envgym": version("envgym"),
        "python": f"{platform.python_version()} at {sys.executable}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
        "memory": f"{pages / _GIB:.1f} GiB",
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
    }
    if os.path.isdir("/dev/shm"):
        facts["tmpfs"] = f"/dev/shm, {shutil.disk_usage('/dev/shm').free / _GIB:.1f} GiB free"
    else:
        facts["tmpfs"] = "none at /dev/shm: sandboxes keep their state on disk, slower"
    facts["user namespaces"] = _sysctl("user/max_user_namespaces")
    facts["cgroups"] = _cgroups()
    for tool in ("bash", "git"):
        facts[tool] = shutil.which(tool) or "missing: install it with the system's package manager"
    return facts


def _sysctl(name: str) -> str:
    try:
        return f"at most {Path('/proc/sys', name).read_text().strip()}"
    except OSError:
        return "not available on this kernel"


def _cgroups() -> str:
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    if not os.path.isdir("/sys/fs/cgroup"):
        return "not mounted"
    return f"version {2 if unified else 1}, {'writable' if os.access('/sys/fs/cgroup', os.W_OK) else 'read-only'}"


def _show(found: Diagnosis) -> None:
    print("host")
    for name, value in found.host.items():
        print(f"  {name:16} {value}")
    print("sandboxes")
    for report in found.backends:
        print(f"  {report.backend:16} {'works' if report.works else 'does not work here'}")
        for label, lines in (("isolates", report.isolates), ("missing", report.missing), ("fix", report.fix)):
            for line in lines:
                print(f"  {'':16}   {label}: {line}")
    print(f"  {'auto':16} {found.auto or 'none'}: {found.why}")
    print("extras")
    for name, lacks in found.extras.items():
        fix = f"lacks {', '.join(lacks)}; fix: pip install 'envgym[{name}]'"
        print(f"  {name:16} {fix if lacks else 'installed'}")
