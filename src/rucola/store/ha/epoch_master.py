"""One connection of a master behind a controller to a slave, without a socket: the counterpart of ``master_link``, and
used like it. What differs:

- A slave begins with a handshake, which is answered with the epochs of the log. A report without one is refused:
  nobody knows then whose it is. A second handshake is answered, and the transfer goes on where it was. Those that come
  before an answer leaves get one answer, so that a slave that only sends them costs no more.
- Each transfer has bytes of one epoch, and names this epoch. RocketMQ names the next one where a piece would reach
  across the end of an epoch, so that its slaves never hear of a short one. They take the right names, too.
- What is written may leave before it is synced: the next handshake cuts what a slave has too much.
- A report of 0 asks for the oldest byte, or for the newest segment if the handshake says so.

Source: RocketMQ 5.3.3, ``AutoSwitchHAConnection``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rucola.errors import DiskError
from rucola.formats.auto_switch import (
    AUTO_SWITCH_HELLO,
    AUTO_SWITCH_REPORT,
    HANDSHAKE,
    STATE_BYTES,
    TRANSFER,
    EpochEntry,
    EpochTransfer,
    Hello,
    decode_hello,
    encode_answer,
    encode_transfer,
)
from rucola.formats.ha import FIRST_BYTE
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.master_link import NO_REPORT, Transfer
from rucola.store.ha.sent_log import SentLog
from rucola.store.log.cold_read import ColdRead

_SIZES: Final = {HANDSHAKE: AUTO_SWITCH_HELLO.size, TRANSFER: AUTO_SWITCH_REPORT.size}


class EpochMasterLink:
    """A connection.

    Attributes:
        hello: the slave's handshake; None before it.
        acknowledged: physical offset up to which the slave says it has the log; ``NO_REPORT`` before its first report.
        next_offset: physical offset of the byte that is sent next; ``NO_REPORT`` before the first report.
        start: physical offset before which the slave will never have the log; 0 unless it begins at a later one.
        reason: why the connection must be closed; empty as long as it may stay.
        cold: what must be fetched from the disk before ``transfer`` can go on; call ``fetched`` then.

    Args:
        log: the log, up to what is written.
        epochs: returns the epochs of the log.
        confirm_offset: returns the physical offset up to which all members of the set in sync have the log.
        transfer_bytes: largest number of bytes of the log in one transfer.
    """

    __slots__ = (
        "_asked",
        "_begun",
        "_confirm_offset",
        "_epochs",
        "_is_fetched",
        "_is_greeted",
        "_is_told",
        "_log",
        "_told",
        "_transfer_bytes",
        "acknowledged",
        "cold",
        "hello",
        "next_offset",
        "reason",
        "start",
    )

    def __init__(
        self, log: SentLog, epochs: Callable[[], EpochList], confirm_offset: Callable[[], int], transfer_bytes: int
    ) -> None:
        self.hello: Hello | None = None
        self.acknowledged = self.next_offset = NO_REPORT
        self.start = 0
        self.reason = ""
        self.cold: ColdRead | None = None
        self._is_fetched = self._is_told = False
        self._is_greeted = False
        """Whether a handshake waits for its answer."""
        self._log, self._epochs, self._confirm_offset = log, epochs, confirm_offset
        self._transfer_bytes = transfer_bytes
        self._begun = self._told = b""
        self._asked = NO_REPORT

    @property
    def confirmed(self) -> int:
        """Physical offset up to which senders may be told that the slave has the log; ``NO_REPORT`` before its first
        report. The handshake has cut what the slave had of another log, so the first report counts.
        """
        return self.acknowledged

    def receive(self, data: bytes | memoryview) -> bool:
        """Takes bytes from the slave; returns whether it acknowledges more than before."""
        data, at, before = self._begun + bytes(data), 0, self.acknowledged
        while not self.reason and len(data) - at >= STATE_BYTES:
            state = int.from_bytes(data[at : at + STATE_BYTES], "big", signed=True)
            size = _SIZES.get(state)
            if size is None:
                self.reason = f"the slave sends the state {state}; allowed are {HANDSHAKE} and {TRANSFER}"
                break
            if len(data) - at < size:
                break
            frame, at = data[at : at + size], at + size
            if state == HANDSHAKE:
                self._greeted(decode_hello(frame))
            else:
                self._reported(AUTO_SWITCH_REPORT.unpack(frame)[1])
        self._begun = data[at:]
        return not self.reason and self.acknowledged > before

    def transfer(self) -> Transfer | None:
        """Returns the next frame; None if there is nothing to send, or something to fetch, or if the connection must be
        closed.
        """
        log = self._log
        if self.reason:
            return None
        if self._is_greeted or self._told:
            answer = encode_answer(log.sendable_offset, self._epochs().entries) if self._is_greeted else b""
            frames, self._is_greeted, self._told = answer + self._told, False, b""
            return Transfer(frames, b"")
        if self.cold is not None or not 0 <= self.next_offset < log.sendable_offset:
            return None
        if self.next_offset < log.min_offset:
            self.reason = f"what follows {self.next_offset} has expired; the log begins at {log.min_offset}"
            return None
        epochs = self._epochs()
        epoch = epochs.at(self.next_offset)
        if epoch is None:
            self.reason = f"the epochs of the log begin behind {self.next_offset}: {epochs}"
            return None
        return self._piece(epoch, min(self._transfer_bytes, epochs.end_of(epoch.epoch) - self.next_offset))

    def _piece(self, epoch: EpochEntry, most: int) -> Transfer | None:
        cold = None if self._is_fetched else ColdRead()
        try:
            content = self._log.copy_of(self.next_offset, most, cold)
        except DiskError as error:
            self.reason = f"the log cannot be read: {error}"
            return None
        if content is None:
            self.cold = cold
            return None
        self._is_fetched = False
        header = self._header(len(content), self.next_offset, epoch)
        self.next_offset += len(content)
        return Transfer(header, content)

    def fetched(self) -> None:
        """Notes that ``cold`` was fetched, as far as the disk gave it."""
        self.cold, self._is_fetched = None, True

    def heartbeat(self) -> bytes:
        """Returns a transfer without bytes; nothing before the first report, and while something is fetched."""
        if self.next_offset < 0 or self.cold is not None or self._is_greeted or self._told:
            return b""
        epochs = self._epochs()
        epoch = epochs.at(self.next_offset) or (epochs.entries or (EpochEntry(-1, -1),))[0]
        is_unknown = self._asked == 0 and not self._log.sendable_offset
        return self._header(0, -1 if is_unknown else self.next_offset, epoch)

    def _header(self, body_bytes: int, physical_offset: int, epoch: EpochEntry) -> bytes:
        return encode_transfer(EpochTransfer(body_bytes, physical_offset, *epoch, self._confirm_offset()))

    def _greeted(self, hello: Hello) -> None:
        if self.hello is not None and self.hello.broker_id != hello.broker_id:
            self.reason = f"a handshake of broker {hello.broker_id} follows one of broker {self.hello.broker_id}"
            return
        self.hello, self._is_greeted = hello, True

    def _reported(self, report: int) -> None:
        if self.hello is None:
            self.reason = f"the slave reports {report} without a handshake"
        elif self.next_offset < 0:
            self._begin(self.hello, report)
        elif report > self.next_offset:
            self.reason = f"the slave reports {report}, but was sent the log up to {self.next_offset} only"
        elif report < self.acknowledged:
            self.reason = f"the slave reports {report} after {self.acknowledged}"
        else:
            self.acknowledged = report

    def _begin(self, hello: Hello, report: int) -> None:
        """Begins where the first report says."""
        log = self._log
        end = log.sendable_offset
        if report == 0:
            newest = max(end - 1, 0)
            oldest = (
                max(newest - newest % log.segment_bytes, log.min_offset) if hello.from_last_file else log.min_offset
            )
            self.start = self.next_offset = oldest
            self._asked = self.acknowledged = 0
        elif report < 0:
            self.reason = f"the slave asks for {report}; allowed is an offset of 0 or more"
        elif report > max(end, FIRST_BYTE) and not self._is_told:
            epoch = self._epochs().last or EpochEntry(-1, -1)
            self._told, self._is_told = self._header(0, end, epoch), True
        elif report > max(end, FIRST_BYTE):
            self.reason = f"the slave has the log up to {report}, and this one ends at {end}: it is another log"
        elif report < log.min_offset:
            self.reason = f"the slave asks for {report}, but the log begins at {log.min_offset}"
        else:
            self._asked = self.next_offset = report
            self.acknowledged = min(report, end)  # of an empty log, a slave asks for what follows the first byte
