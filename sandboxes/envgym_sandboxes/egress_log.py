"""Every decision about a connection that one sandbox wanted: kept as records, and told to `logging`.

Bounded: the oldest records are forgotten, and a program that is refused all the time costs a bounded memory. What
came from the sandbox is told as quoted text, so that it can forge no line of a log.
"""

import logging
import time
from collections import deque
from dataclasses import replace

from envgym.egress import EgressRecord, Place
from envgym_sandboxes.policy import Verdict

__all__ = ["EgressLog", "Entry"]

_LOG = logging.getLogger("envgym.egress")
_KEPT = 10_000
_LONGEST = 300


class Entry:
    """One decision, and what has become of it."""

    def __init__(self, record: EgressRecord) -> None:
        self.record = record

    def reached(self, address: str) -> None:
        """It is connected."""
        self.record = replace(self.record, address=address)

    def count(self, sent: int, received: int) -> None:
        """Bytes went through."""
        record = self.record
        self.record = replace(
            record, sent_bytes=record.sent_bytes + sent, received_bytes=record.received_bytes + received
        )

    def failed(self, why: str) -> None:
        """It did not work out, or ended early. What is said first stands."""
        if not self.record.failure:
            self.record = replace(self.record, failure=why[:_LONGEST])


class EgressLog:
    """The decisions of one sandbox."""

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
        self._count = 0

    def decided(self, method: str, place: Place, verdict: Verdict) -> Entry:
        """Keep and tell one decision."""
        self._count += 1
        entry = Entry(
            EgressRecord(
                number=self._count,
                at=time.time(),
                method=method[:32],
                host=place.host,
                port=place.port,
                allowed=verdict.allowed,
                reason=verdict.reason[:_LONGEST],
                failure=verdict.failure[:_LONGEST],
            )
        )
        self._entries.append(entry)
        _LOG.log(
            logging.INFO if verdict.allowed else logging.WARNING,
            "sandbox %s: %s %r port %d %s: %r",
            self._sandbox,
            "allowed" if verdict.allowed else "denied",
            place.host,
            place.port,
            repr(method[:32]),
            verdict.reason[:_LONGEST],
        )
        return entry

    def records(self) -> tuple[EgressRecord, ...]:
        """What is known now, oldest first."""
        return tuple(entry.record for entry in self._entries)
