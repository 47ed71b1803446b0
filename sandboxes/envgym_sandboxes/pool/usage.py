"""What is used by whom, in one sentence: what a refused request is told."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgym_sandboxes.pool.core import Core

__all__ = ["usage_text"]


def _size(count: float) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def usage_text(core: "Core") -> str:
    """Hosts, then shares."""
    said = []
    for member in core.members.values():
        ledger = member.ledger
        text = (
            f"{member.name}: {len(ledger)} sandboxes are charged {_size(ledger.charged)} of {_size(member.bound)}"
        )
        if ledger.available is not None:
            text += f", {_size(ledger.available)} available, {_size(member.reserve)} kept free"
        text += f", {member.starting} of {core.bounds.most_starts} starts under way"
        said.append(f"{text}, down: {member.error}" if member.down else text)
    for share in core.queue.shares:
        count = sum(member.ledger.count(share) for member in core.members.values())
        waiting = core.queue.waiting(share)
        if count or waiting:
            weight = core.queue.weight(share)
            holds = f"{count} sandboxes, {_size(core.held(share))}, {waiting} waiting"
            said.append(f"share {share} (weight {weight:g}): {holds}")
    return "; ".join(said)
