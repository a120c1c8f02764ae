"""One connection of a slave to its master, without a socket: the master's bytes in, reports and decisions out.

The owner of the socket sends ``request`` first, then what ``report`` returns from time to time, and hands over what it
reads. When ``state`` is ``ENDED``, it connects again with a new object; ``reason`` says why. When ``state`` is
``REFUSED``, ``refusal`` says why the copy must stop. When it is ``CUTTING``, the log must be cut (``CommonPoint``).
"""

from __future__ import annotations

from rucola.errors import CopyRefusedError, FormatError
from rucola.formats.ha import FIRST_BYTE, NEWEST_SEGMENT, TRANSFER_HEADER, TransferHeader, decode_header, encode_report
from rucola.store.ha.common_point import CommonPoint
from rucola.store.ha.overlap import Overlap
from rucola.store.ha.slave_log import CopyVerdict, SlaveLog
from rucola.store.ha.slave_state import FINAL, SlaveEvent, SlaveState, after

_HEARTBEATS_MAX = 2
"""Number of heartbeats, 5 s apart, after which a master that sends no bytes has none there: one heartbeat may go out
before a busy master looks at its log.
"""


class SlaveLink:
    """A connection.

    Attributes:
        state: what the connection is doing.
        request: physical offset that the first report asks for.
        reason: why the connection has ended.
        refusal: why the copy must stop; None unless ``state`` is ``REFUSED``.
        progress: counts whole headers and bytes of the log; a master that is silent, or sends a header for ever, leaves
            it unchanged.
        heartbeats: number of heartbeats since the last byte of the log.
        is_answered: whether the connection has ended because its question is answered; the next one need not wait.

    Args:
        log: the slave's log.
        start: what to ask for if the log has no record: ``NEWEST_SEGMENT``, ``FIRST_BYTE``, or the physical offset of a
            segment.
        path: the slave's directory, for errors.
        common: searches the last common record if the logs part; None to refuse such a master.
    """

    def __init__(self, log: SlaveLog, start: int, path: str, common: CommonPoint | None = None) -> None:
        self.reason = ""
        self.refusal: CopyRefusedError | None = None
        self.progress = 0
        self.heartbeats = 0
        self.is_answered = False
        self._log = log
        self._common = common
        self._path = path
        self._overlap: Overlap | None = None
        self._header = bytearray()
        self._body_left = 0
        self._unchecked = False
        log.expect_again()
        if log.is_empty:
            self.state = SlaveState.ASKING
            self.request = (log.min_offset or FIRST_BYTE) if log.begun else start
        elif common is None or not common.is_searching:
            self.state = SlaveState.COMPARING
            self._overlap = log.overlap()
            self.request = self._overlap.start
        else:
            self.state = SlaveState.SEARCHING
            self._overlap = common.comparison()
            self.request = log.end_offset if self._overlap is None else self._overlap.start
            if self._overlap is None:
                self._nothing_common(common)
        self._next = self.request

    def report(self, flushed_offset: int) -> bytes:
        """Returns the next report.

        Args:
            flushed_offset: physical offset up to which the slave has the log on its disk. Before the master has proved
                that it has the same log, the request is repeated instead.
        """
        return encode_report(max(flushed_offset, self.request) if self.state is SlaveState.COPYING else self.request)

    def receive(self, data: memoryview) -> None:
        """Takes bytes from the master. What comes after the end of the connection is ignored.

        Raises:
            DiskError: the slave's disk failed or is full.
        """
        while data and self.state not in FINAL:
            if self._body_left:
                used = min(len(data), self._body_left)
                self._body_left -= used
                self.progress += used
                self._take(data[:used])
            else:
                used = min(len(data), TRANSFER_HEADER.size - len(self._header))
                self._header += data[:used]
                if len(self._header) == TRANSFER_HEADER.size:
                    self._take_header()
            data = data[used:]
        if self._unchecked and self.state not in FINAL:
            self._unchecked = False
            self._settle(self._log.check())

    def lost(self, reason: str) -> None:
        """Notes that the connection was closed, or that the master was silent for too long."""
        if self.state not in FINAL:
            self._end(SlaveEvent.LOST, reason)

    def expired(self) -> None:
        """Notes that the beginning of the log expires on the master faster than it can be asked for."""
        self._refuse(
            SlaveEvent.NOTHING_THERE,
            self.request,
            "the segment that begins there has expired on the master, like those asked for before",
            "start the copy again when the master removes fewer segments; rucola replica without --broker begins at its"
            " newest segment",
        )

    def _take_header(self) -> None:
        try:
            header = decode_header(self._header)
        except FormatError as error:
            self._end(SlaveEvent.DISORDER, str(error))
            return
        self._header.clear()
        self.progress += 1
        if self.request == NEWEST_SEGMENT and self.state is SlaveState.ASKING:
            self._next = header.physical_offset
        if header.is_heartbeat and header.physical_offset < self.request == self._next:
            self._ends_before(header.physical_offset)
        elif header.physical_offset != self._next:
            self._end(SlaveEvent.DISORDER, f"transfer from {header.physical_offset}, expected one from {self._next}")
        elif header.is_heartbeat:
            self._heartbeat()
        else:
            self.heartbeats = 0
            if self.state is SlaveState.ASKING:
                self._begin(header)
            self._body_left = header.body_bytes

    def _heartbeat(self) -> None:
        self.heartbeats += 1
        if self.heartbeats >= _HEARTBEATS_MAX:
            self._nothing_there()

    def _ends_before(self, master_end: int) -> None:
        """Takes the answer of a master that says where its log ends, because it is asked for more."""
        if self.state is SlaveState.SEARCHING and self._common is not None:
            self._common.bound(0, master_end)
        if self.state in (SlaveState.COMPARING, SlaveState.SEARCHING):
            self._nothing_there()
        else:
            self._end(SlaveEvent.DISORDER, f"the master's log ends at {master_end}")

    def _nothing_there(self) -> None:
        """Draws the consequences if the master has no bytes that the slave has."""
        if self.state is SlaveState.SEARCHING:
            self._searched(SlaveEvent.NOTHING_THERE)
        elif self.state is SlaveState.COMPARING and not self._parted():
            self._refuse(
                SlaveEvent.NOTHING_THERE,
                self._next,
                f"the master has no bytes from there on, and the copy has some up to {self._log.end_offset}",
                "the master lost its newest messages, or what follows has expired there; nothing was changed: go back "
                "to the last common record with rucola replica --rejoin, or start another copy in an empty directory",
            )

    def _parted(self) -> bool:
        """Begins the search for the last common record, if the slave may rejoin and has any record that can be common;
        returns whether it has.
        """
        common = self._common
        if common is None:
            return False
        common.begin()
        if common.comparison() is None:
            common.end()
            return False
        self.is_answered = True
        self._end(SlaveEvent.PARTED, "the logs part, the last common record is searched")
        return True

    def _searched(self, event: SlaveEvent) -> None:
        """Notes the result of a comparison of the search."""
        common = self._common
        assert common is not None
        if event is SlaveEvent.EQUAL:
            common.equal()
        elif event is SlaveEvent.DIFFERENT:
            common.different()
        else:
            common.nothing_there()
        self.is_answered = True
        if common.cut_offset >= 0:
            common.end()
            self.state = after(self.state, SlaveEvent.FOUND)
        elif common.comparison() is None:
            self._nothing_common(common)
        else:
            self._end(event, f"record at {self.request} compared: {event.value}")

    def _nothing_common(self, common: CommonPoint) -> None:
        common.end()
        self._refuse(
            SlaveEvent.NOTHING_COMMON,
            self._log.end_offset,
            "the master has none of the records of the copy",
            "this is another log; nothing was changed, start a copy of it in an empty directory",
        )

    def _begin(self, header: TransferHeader) -> None:
        """Makes the empty log begin where the master's bytes begin."""
        first_bytes = 1 if self.request == FIRST_BYTE else 0
        start = header.physical_offset - first_bytes
        if start % self._log.segment_bytes:
            self._refuse(
                SlaveEvent.MISPLACED,
                start,
                f"a segment of the master begins there, which none of {self._log.segment_bytes} bytes does",
                "give the master's mappedFileSizeCommitLog as --segment-bytes",
            )
            return
        self.state = after(self.state, SlaveEvent.BYTES)
        self._log.begin(start, first_bytes)

    def _take(self, content: memoryview) -> None:
        """Takes bytes of the log."""
        self._next += len(content)
        if self._overlap is not None:
            content = content[self._overlap.take(content) :]
            if not self._overlap.is_complete:
                return
            self._compared(self._overlap)
            self._overlap = None
        if self.state in FINAL or not content:
            return
        self._unchecked = True
        self._settle(self._log.append(content))

    def _settle(self, verdict: CopyVerdict) -> None:
        """Draws the consequences of what the log makes of the bytes."""
        if self.state is SlaveState.PROVING and not self._log.is_empty:
            self.state = after(self.state, SlaveEvent.PROVED)
        if verdict is not CopyVerdict.SOUND:
            self._damaged(verdict)

    def _compared(self, overlap: Overlap) -> None:
        if self.state is SlaveState.SEARCHING:
            self._searched(SlaveEvent.EQUAL if overlap.is_equal else SlaveEvent.DIFFERENT)
            return
        if overlap.is_equal:
            self.state = after(self.state, SlaveEvent.EQUAL)
            return
        if self._parted():
            return
        ours, theirs = overlap.digests
        self._refuse(
            SlaveEvent.DIFFERENT,
            overlap.start,
            f"the bytes up to {overlap.end} differ: SHA-256 {ours} here, {theirs} on the master",
            "this is another log, or the master lost messages and wrote on; nothing was changed: go back to the last "
            "common record with rucola replica --rejoin, or start another copy in an empty directory",
        )

    def _damaged(self, verdict: CopyVerdict) -> None:
        damage = self._log.damage
        assert damage is not None
        if verdict is CopyVerdict.ASK_AGAIN:
            self._end(SlaveEvent.DAMAGED, f"damaged record at {damage.physical_offset}: {damage.problem}")
            return
        self._refuse(
            SlaveEvent.STUCK,
            damage.physical_offset,
            f"the master sent a damaged record again: {damage.problem}",
            "the copy ends before it; is the segment size right, and does the master serve this record?",
        )

    def _end(self, event: SlaveEvent, reason: str) -> None:
        self.state, self.reason = after(self.state, event), reason

    def _refuse(self, event: SlaveEvent, physical_offset: int, problem: str, advice: str) -> None:
        self.state = after(self.state, event)
        self.refusal = CopyRefusedError(self._path, physical_offset, problem, advice)
