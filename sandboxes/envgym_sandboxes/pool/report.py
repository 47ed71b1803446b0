"""What a pool says of this host: what all of its backends isolate, and what any of them lacks."""

from collections.abc import Sequence

from envgym.sandbox import BackendReport

__all__ = ["merged"]


def merged(reports: Sequence[BackendReport]) -> BackendReport:
    """One report of several; it works if one does. What is missing is said with its backend's name."""
    works = [report for report in reports if report.works]
    common = [line for line in (works or reports)[0].isolates if all(line in one.isolates for one in works)]
    if len(works) > 1:
        common += [f"{line.partition(':')[0]}: by each in its way" for line in _kinds(works, common)]
    return BackendReport(
        backend="pool",
        works=bool(works),
        isolates=tuple(common),
        missing=tuple(dict.fromkeys(f"{one.backend}: {line}" for one in reports for line in one.missing)),
        fix=tuple(dict.fromkeys(f"{one.backend}: {line}" for one in reports for line in one.fix)),
    )


def _kinds(reports: Sequence[BackendReport], said: Sequence[str]) -> list[str]:
    """What every report claims to isolate in words of its own."""
    kinds = [{line.partition(":")[0] for line in report.isolates} for report in reports]
    return sorted(set.intersection(*kinds) - {line.partition(":")[0] for line in said})
