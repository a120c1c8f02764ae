"""One connection of a slave to a master behind a controller, without a socket: a handshake, then what ``slave_link``
does.

The owner sends ``report`` first: the handshake. The master answers with its epochs, which decide:

- The log is equal to the master's up to the end of the newest common epoch. If it has more, ``state`` becomes
  ``CUTTING``: the owner plans the cut at ``cut_offset`` with ``cut_epochs``, opens the store again, and connects.
- Without a common epoch this is another log: ``REFUSED``.
- Otherwise the slave reports at once, and the end of its log is compared, as on every connection. A slave of RocketMQ
  waits for its timer, 5 s, before it reports.

The epochs of the log are written before its bytes are: a byte never counts as one of an older epoch. They come from the
handshake, and from transfers that name an epoch younger than it. Which epoch a transfer names for its bytes is not
believed, because RocketMQ names the next one for the last bytes of an epoch.

Source: RocketMQ 5.3.3, ``AutoSwitchHAClient``.
"""

from __future__ import annotations

from rucola.errors import CopyRefusedError, FormatError
from rucola.formats.auto_switch import (
    AUTO_SWITCH_ANSWER,
    AUTO_SWITCH_TRANSFER,
    HANDSHAKE,
    STATE_BYTES,
    TRANSFER,
    Answer,
    EpochEntry,
    Hello,
    decode_answer,
    decode_epochs,
    decode_transfer,
    encode_epoch_report,
    encode_hello,
)
from rucola.formats.ha import NEWEST_SEGMENT, SLAVE_REPORT, encode_header
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import NO_COMMON_POINT, EpochList
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_log import SlaveLog
from rucola.store.ha.slave_state import FINAL, SlaveEvent, SlaveState, after


class EpochSlaveLink:
    """A connection.

    Attributes:
        cut_offset: where the log must be cut, when ``state`` is ``CUTTING``; -1 otherwise.
        cut_epochs: the epochs that the log has then.
        confirm_offset: physical offset up to which all members of the set in sync have the log, as far as this slave
            has it; -1 before the first transfer.
        is_answered: False; see ``SlaveLink``.

    Args:
        log: the slave's log.
        epochs: its epochs.
        hello: who the slave is.
        path: the slave's directory, for errors.
    """

    def __init__(self, log: SlaveLog, epochs: EpochStore, hello: Hello, path: str) -> None:
        self.cut_offset = -1
        self.cut_epochs = EpochList()
        self.is_answered = False
        self._log, self._epochs, self._hello, self._path = log, epochs, hello, path
        self._state = SlaveState.HANDSHAKING
        self._link: SlaveLink | None = None
        self._reason = ""
        self._refusal: CopyRefusedError | None = None
        self._confirm_offset = -1
        self._progress = 0
        self._answer: Answer | None = None
        self._theirs = EpochList()
        self._is_unproved = False
        self._empty_heartbeats = 0
        self._head = bytearray()
        self._body_left = 0
        log.expect_again()

    @property
    def state(self) -> SlaveState:
        """What the connection is doing."""
        return self._state if self._link is None or self._state in FINAL else self._link.state

    @property
    def reason(self) -> str:
        """Why the connection has ended."""
        return self._reason or ("" if self._link is None else self._link.reason)

    @property
    def refusal(self) -> CopyRefusedError | None:
        """Why the copy must stop; None unless ``state`` is ``REFUSED``."""
        return self._refusal or (None if self._link is None else self._link.refusal)

    @property
    def progress(self) -> int:
        """Counts whole headers and bytes of the log; a master that is silent leaves it unchanged."""
        return self._progress

    @property
    def request(self) -> int:
        """Physical offset that the first report asks for; ``NEWEST_SEGMENT`` before the handshake is answered."""
        return NEWEST_SEGMENT if self._link is None else self._link.request

    @property
    def heartbeats(self) -> int:
        """Number of heartbeats since the last byte of the log."""
        return self._empty_heartbeats + (0 if self._link is None else self._link.heartbeats)

    @property
    def confirm_offset(self) -> int:
        """See the attributes of the class."""
        return min(self._confirm_offset, self._log.end_offset)

    def report(self, flushed_offset: int) -> bytes:
        """Returns what to send next: the handshake before it is answered, then a report.

        Args:
            flushed_offset: physical offset up to which the slave has the log, as it tells its master.
        """
        if self._link is None:
            return encode_hello(self._hello)
        (offset,) = SLAVE_REPORT.unpack(self._link.report(flushed_offset))
        return encode_epoch_report(offset)

    def receive(self, data: memoryview) -> None:
        """Takes bytes from the master. What comes after the end of the connection is ignored.

        Raises:
            DiskError: the slave's disk failed or is full.
        """
        while data and self.state not in FINAL:
            if self._link is not None and self._body_left:
                used = min(len(data), self._body_left)
                self._body_left -= used
                self._progress += used
                self._link.receive(data[:used])
            else:
                used = min(len(data), self._head_bytes - len(self._head))
                self._head += data[:used]
                if not self._is_of_another_state() and len(self._head) == self._head_bytes:
                    self._take_head()
            data = data[used:]

    def lost(self, reason: str) -> None:
        """Notes that the connection was closed, or that the master was silent for too long."""
        if self._link is not None:
            self._link.lost(reason)
        elif self._state not in FINAL:
            self._end(SlaveEvent.LOST, reason)

    def expired(self) -> None:
        """Notes that the beginning of the log expires on the master faster than it can be asked for."""
        assert self._link is not None, "nothing is asked for before the handshake is answered"
        self._link.expired()

    @property
    def _head_bytes(self) -> int:
        """Number of bytes that must be there before the slave can go on."""
        if self._link is not None:
            return AUTO_SWITCH_TRANSFER.size
        return AUTO_SWITCH_ANSWER.size + (0 if self._answer is None else self._answer.body_bytes)

    def _is_of_another_state(self) -> bool:
        """Ends the connection if the master sends a frame of another state, which may be shorter than the awaited."""
        if len(self._head) < STATE_BYTES:
            return False
        state, awaited = int.from_bytes(self._head[:STATE_BYTES], "big"), HANDSHAKE if self._link is None else TRANSFER
        if state != awaited:
            self._disorder(f"the master sends a frame of state {state}, awaited was {awaited}")
        return state != awaited

    def _take_head(self) -> None:
        try:
            if self._link is not None:
                self._take_transfer(self._link)
            elif self._answer is None:
                self._answer = decode_answer(self._head)
                if not self._answer.body_bytes:
                    self._decide(self._answer, EpochList())
            else:
                entries = decode_epochs(memoryview(self._head)[AUTO_SWITCH_ANSWER.size :])
                self._decide(self._answer, EpochList(entries))
        except FormatError as error:
            self._disorder(str(error))

    def _decide(self, answer: Answer, theirs: EpochList) -> None:
        """Compares the epochs of both logs."""
        self._head.clear()
        self._progress += 1
        log, own_end = self._log, self._log.end_offset
        ours = self._epochs.epochs.cut(own_end + 1)
        self._theirs = theirs
        if log.is_empty:
            self._begin(SlaveEvent.NEW)
            return
        if not ours.entries:
            # A log from before the controller has no epochs. The comparison of its end decides.
            self._is_unproved = True
            self._begin(SlaveEvent.AGREED)
            return
        point = ours.common_point(theirs, own_end, answer.max_offset)
        if point == NO_COMMON_POINT or point < log.min_offset:
            self._refuse(own_end, f"no epoch is common: {ours.entries} here, {theirs.entries} on the master")
        elif point == own_end:
            self._epochs.write(ours.learned(theirs, point))
            self._begin(SlaveEvent.AGREED)
        elif not log.begins_record(point):
            self._refuse(point, "the epochs part there, but no record begins there")
        else:
            self.cut_offset, self.cut_epochs = point, ours.learned(theirs, point)
            self._end(SlaveEvent.SURPLUS, f"the log must be cut at {point}")

    def _begin(self, event: SlaveEvent) -> None:
        """Goes on with the log as it is."""
        self._state = after(self._state, event)
        self._link = SlaveLink(self._log, NEWEST_SEGMENT, self._path)

    def _take_transfer(self, link: SlaveLink) -> None:
        transfer = decode_transfer(self._head)
        self._head.clear()
        self._progress += 1
        if transfer.physical_offset < 0:
            self._empty_heartbeats += 1  # the master's log is empty
            return
        end = transfer.physical_offset + transfer.body_bytes
        if transfer.body_bytes and not self._knows(EpochEntry(transfer.epoch, transfer.epoch_start), end):
            self._disorder(f"bytes up to {end} of epoch {transfer[2:4]}, known are {self._theirs.entries}")
            return
        self._write_epochs(link, end)
        self._confirm_offset = max(self._confirm_offset, transfer.confirm_offset)
        self._body_left = transfer.body_bytes
        self._empty_heartbeats = 0
        link.receive(memoryview(encode_header(transfer.physical_offset, transfer.body_bytes)))

    def _knows(self, epoch: EpochEntry, end: int) -> bool:
        """Notes the epoch that a transfer of bytes up to ``end`` names; returns whether it can be."""
        last = self._theirs.last
        if self._theirs.at(epoch.start_offset) == epoch:
            return epoch.start_offset <= end
        if epoch.start_offset > end or (last is not None and not last < epoch):
            return False
        if last is not None and epoch.start_offset < last.start_offset:
            return False
        self._theirs = self._theirs.append(*epoch)
        return True

    def _write_epochs(self, link: SlaveLink, end: int) -> None:
        """Writes the epochs of the bytes below ``end``, which are about to be appended."""
        if self._is_unproved and link.state is not SlaveState.COPYING:
            return
        newest = self._theirs.at(end - 1)
        if newest is not None and newest != self._epochs.epochs.last:
            self._epochs.write(self._epochs.epochs.learned(self._theirs, end))

    def _disorder(self, reason: str) -> None:
        if self._link is None:
            self._end(SlaveEvent.DISORDER, reason)
        else:
            self._state = after(self._link.state, SlaveEvent.DISORDER)
            self._reason = reason

    def _end(self, event: SlaveEvent, reason: str) -> None:
        self._state, self._reason = after(self._state, event), reason

    def _refuse(self, physical_offset: int, problem: str) -> None:
        self._state = after(self._state, SlaveEvent.NOTHING_COMMON)
        advice = "this is another log; nothing was changed, start the broker with an empty directory"
        self._refusal = CopyRefusedError(self._path, physical_offset, problem, advice)
