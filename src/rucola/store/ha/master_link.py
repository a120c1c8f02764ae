"""One connection of a master to a slave, without a socket: the slave's reports in, transfers and decisions out.

The owner of the socket hands over what it reads, and sends what ``transfer`` returns, as long as the slave takes it and
there is something. When ``reason`` is not empty, the owner closes the connection.

A slave says itself what it has. Whoever reports more than was sent, or less than before, is no slave of this log, and
is closed. The first report asks for what follows. It may come from a slave of another log, or of one whose newest
messages this master has lost, which sees that only when it compares what it is sent. So a slave confirms nothing before
it reports more. A slave whose first report is beyond the end of the log is told where that is, by a heartbeat; one of
RocketMQ closes then.

Source: RocketMQ 5.3.3, ``DefaultHAConnection``, which believes every report.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from rucola.errors import DiskError
from rucola.formats.ha import FIRST_BYTE, NEWEST_SEGMENT, SLAVE_REPORT, decode_reports, encode_header
from rucola.store.ha.sent_log import SentLog
from rucola.store.log.cold_read import ColdRead

NO_REPORT: Final = -1


class Transfer(NamedTuple):
    """Header and bytes of the log."""

    header: bytes
    content: bytes | bytearray


class MasterLink:
    """A connection.

    Attributes:
        acknowledged: physical offset up to which the slave says it has the log; ``NO_REPORT`` before its first report.
        next_offset: physical offset of the byte that is sent next; ``NO_REPORT`` before the first report.
        start: physical offset before which the slave will never have the log, because it begins at the newest segment;
            else 0.
        reason: why the connection must be closed; empty as long as it may stay.
        cold: what must be fetched from the disk before ``transfer`` can go on; call ``fetched`` then.

    Args:
        log: the log.
        transfer_bytes: largest number of bytes of the log in one transfer.
    """

    __slots__ = (
        "_asked",
        "_begun",
        "_farewell",
        "_is_fetched",
        "_is_told",
        "_log",
        "_transfer_bytes",
        "acknowledged",
        "cold",
        "next_offset",
        "reason",
        "start",
    )

    def __init__(self, log: SentLog, transfer_bytes: int) -> None:
        self.acknowledged = self.next_offset = NO_REPORT
        self.reason = ""
        self.cold: ColdRead | None = None
        self._is_fetched = False
        self._log, self._transfer_bytes = log, transfer_bytes
        self._begun = self._farewell = b""
        self._is_told = False
        self._asked = NO_REPORT
        self.start = 0

    @property
    def confirmed(self) -> int:
        """Physical offset up to which senders may be told that the slave has the log; ``NO_REPORT`` as long as it has
        not reported more than it has asked for.
        """
        return self.acknowledged if self.acknowledged > self._asked else NO_REPORT

    def receive(self, data: bytes | memoryview) -> bool:
        """Takes bytes from the slave; returns whether it acknowledges more than before."""
        data = self._begun + bytes(data)
        whole = len(data) - len(data) % SLAVE_REPORT.size
        self._begun = data[whole:]
        if self.reason or not whole:
            return False
        before, reports = self.acknowledged, decode_reports(data[:whole])
        if self.next_offset < 0:
            self._asked = reports.pop(0)
            self._begin(self._asked)
        if reports and not self.reason:
            self._take(reports)
        return not self.reason and self.acknowledged > before

    def transfer(self) -> Transfer | None:
        """Returns the next transfer; None if there is nothing to send, or something to fetch, or if the connection must
        be closed.
        """
        log = self._log
        if self._farewell:
            farewell, self._farewell = self._farewell, b""
            return Transfer(farewell, b"")
        if self.reason or self.cold is not None or not 0 <= self.next_offset < log.sendable_offset:
            return None
        if self.next_offset < log.min_offset:
            self.reason = f"what follows {self.next_offset} has expired; the log begins at {log.min_offset}"
            return None
        cold = None if self._is_fetched else ColdRead()
        try:
            content = log.copy_of(self.next_offset, self._transfer_bytes, cold)
        except DiskError as error:
            self.reason = f"the log cannot be read: {error}"
            return None
        if content is None:
            self.cold = cold
            return None
        self._is_fetched = False
        header = encode_header(self.next_offset, len(content))
        self.next_offset += len(content)
        return Transfer(header, content)

    def fetched(self) -> None:
        """Notes that ``cold`` was fetched, as far as the disk gave it."""
        self.cold, self._is_fetched = None, True

    def heartbeat(self) -> bytes:
        """Returns a transfer without bytes; nothing before the first report, and while something is fetched: a slave
        that gets heartbeats instead of what it compares takes it that this log ends there.
        """
        return b"" if self.next_offset < 0 or self.cold is not None else encode_header(self.next_offset, 0)

    def end(self) -> None:
        """Notes that the connection has ended."""
        self.reason = self.reason or "the connection has ended"

    def _take(self, reports: array[int]) -> None:
        least, most = min(reports), max(reports)
        if most > self.next_offset:
            self.reason = f"the slave reports {most}, but was sent the log up to {self.next_offset} only"
        elif least < self.acknowledged:
            self.reason = f"the slave reports {least} after {self.acknowledged}"
        else:
            self.acknowledged = most

    def _begin(self, report: int) -> None:
        """Begins where the first report says."""
        log = self._log
        end = log.sendable_offset
        if report == NEWEST_SEGMENT:
            newest = max(end - 1, 0)
            self.start = self.next_offset = max(newest - newest % log.segment_bytes, log.min_offset)
            self.acknowledged = 0
        elif report < 0:
            self.reason = f"the slave asks for {report}; allowed is an offset of 0 or more"
        elif report > max(end, FIRST_BYTE) and not self._is_told:
            self._farewell, self._is_told = encode_header(end, 0), True
        elif report > max(end, FIRST_BYTE):
            self.reason = f"the slave has the log up to {report}, and this one ends at {end}: it is another log"
        elif report < log.min_offset:
            self.reason = f"the slave asks for {report}, but the log begins at {log.min_offset}"
        else:
            self.next_offset = report
            self.acknowledged = min(report, end)  # of an empty log, a slave asks for what follows the first byte
