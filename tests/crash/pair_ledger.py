"""What producers sent to a pair, what they heard, and what every log may therefore have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.protocol.codes import ResponseCode
from rucola.store.message_store import MessageStore
from rucola.testing.simulated_disk import Inode, SimulatedDisk
from rucola.testing.store_life import ROOT

_STORE_TIMESTAMP_AT = 56
OK = int(ResponseCode.SUCCESS)
CODES = {
    OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT),
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
    int(ResponseCode.SLAVE_NOT_AVAILABLE),
}


class Broken(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if a promise was broken."""


@dataclass
class Send:
    """A message.

    Attributes:
        end: physical offset after its record.
        sent_s: when it was sent, in seconds of the clock.
        code: the response; None as long as there is none.
        is_waiting: whether the process that took it lives.
    """

    end: int
    sent_s: float
    code: int | None = None
    is_waiting: bool = True


@dataclass
class Ledger:
    """What was sent and heard.

    Attributes:
        log: the master's log, as it was written.
        lost: logs that the master had before it lost their ends in power cuts.
        sends: the messages by number.
        acked_end: physical offset up to which the master must have the log, wherever its power fails.
        copied_end: physical offset up to which senders were told that slaves have the log.
        ends: physical offsets at which records end, in any of the logs.
        reported: for each slave, the largest offset that it has reported.
        checked: for each slave whose power was not cut since, the end of its log when it was looked at last.
        stored_ms: store time of the newest message.
    """

    log: bytearray = field(default_factory=bytearray)
    lost: list[bytes] = field(default_factory=list)
    sends: dict[int, Send] = field(default_factory=dict)
    acked_end: int = 0
    copied_end: int = 0
    ends: set[int] = field(default_factory=lambda: {0})
    reported: dict[str, int] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    stored_ms: int = 0

    def copy(self) -> Ledger:
        """Returns a copy, whose senders have all gone."""
        return replace(
            self,
            log=bytearray(self.log),
            lost=list(self.lost),
            sends={},
            ends=set(self.ends),
            reported=dict(self.reported),
            checked=dict(self.checked),
        )

    def written(self, store: MessageStore) -> None:
        """Takes what the master has appended."""
        begin = len(self.log)
        self.log += log_bytes(store, begin, store.max_offset)
        while begin < len(self.log):
            size, magic = BLANK.unpack(self.log[begin : begin + BLANK.size])
            if magic != MAGIC_BLANK:
                before, self.stored_ms = self.stored_ms, self._stored_ms(begin)
                if self.stored_ms < before:
                    raise Broken(f"the record at {begin} was stored before the one before it")
            begin += size
            self.ends.add(begin)

    def _stored_ms(self, at: int) -> int:
        """Store time of the record at a physical offset."""
        return int.from_bytes(self.log[at + _STORE_TIMESTAMP_AT :][:8], "big")

    def _cut(self) -> None:
        """Finds the store time of the newest message that is left."""
        self.stored_ms = max(map(self._stored_ms, self._starts()), default=0)

    def _starts(self) -> Iterator[int]:
        """Physical offsets of the messages in the master's log."""
        at = 0
        while at < len(self.log):
            size, magic = BLANK.unpack(self.log[at : at + BLANK.size])
            if magic != MAGIC_BLANK:
                yield at
            at += size

    def recovered(self, store: MessageStore, may_lose: bool) -> None:
        """Takes what a new process of the master has found.

        Args:
            may_lose: whether the power was cut.

        Raises:
            Broken: it is not what was written, or too little.
        """
        end = store.max_offset
        if log_bytes(store, 0, end) != self.log[:end]:
            raise Broken(f"the master's log up to {end} is not what was written")
        if end < self.acked_end:
            raise Broken(f"the master's log ends at {end}, and {self.acked_end} was acknowledged")
        if end < len(self.log):
            if not may_lose:
                raise Broken(f"the master's log ends at {end} of {len(self.log)}, although no power was cut")
            self.lost.append(bytes(self.log))
            del self.log[end:]
            self._cut()

    def promoted(self, log: bytes) -> None:
        """The master's disk is lost, and a slave with ``log`` takes over.

        Raises:
            Broken: it lacks what senders were told that slaves have.
        """
        if len(log) < self.copied_end:
            raise Broken(f"slaves have the log up to {len(log)}, and {self.copied_end} was acknowledged")
        self.lost.append(bytes(self.log))
        self.log = bytearray(log)
        self._cut()
        self.acked_end, self.copied_end = self.copied_end, 0
        self.reported.clear()
        self.checked.clear()

    def check_ends(self, ends: dict[str, int], copies: int) -> None:
        """Compares the ends of recovered logs with what was told.

        Args:
            ends: end of the master's log and of those of slaves.
            copies: number of slaves that must have what was acknowledged.

        Raises:
            Broken: a log ends too early.
        """
        if ends["master"] < self.acked_end:
            raise Broken(f"the master's log ends at {ends['master']}, and {self.acked_end} was acknowledged")
        for name, reported in self.reported.items():
            if ends[name] < reported:
                raise Broken(f"the log of {name} ends at {ends[name]}, and {reported} was reported")
        held = sum(end >= self.copied_end for name, end in ends.items() if name != "master")
        if self.copied_end and held < copies:
            raise Broken(f"logs end at {ends}, and {self.copied_end} was acknowledged")

    def is_known(self, log: bytes) -> bool:
        """Whether a slave's log is the beginning of what the master has, or has had."""
        return any(known[: len(log)] == log for known in (self.log, *self.lost))

    def is_forked(self, log: bytes) -> bool:
        """Whether a slave's log has what the master has lost."""
        return self.log[: len(log)] != log

    @property
    def messages(self) -> int:
        """Number of messages in the master's log."""
        return sum(1 for _ in self._starts())


def log_bytes(store: MessageStore, begin: int, end: int) -> bytes:
    """The bytes of a store's log."""
    parts = []
    for file in store._log.segments.files:
        first, last = max(begin, file.start), min(end, file.end)
        if first < last:
            parts.append(bytes(file.map.view[first - file.start : last - file.start]))
    return b"".join(parts)


def synced_to(disk: SimulatedDisk, segment_bytes: int, log: bytes | bytearray) -> int:
    """Physical offset up to which ``disk`` has ``log``, whatever a power cut takes."""
    at = 0
    while at < len(log):
        start = at - at % segment_bytes
        path = f"{ROOT}/commitlog/{start:020d}"
        node = disk.names.get(path)
        if not isinstance(node, Inode) or disk.durable.get(path) is not node:
            return at
        there, wanted = node.disk, log[start : start + segment_bytes]
        if there[: len(wanted)] != wanted:
            both = enumerate(zip(there, wanted, strict=False))
            return at + next((position for position, (ours, theirs) in both if ours != theirs), len(there))
        at = start + len(wanted)
    return at


def queue_files(disk: SimulatedDisk) -> dict[str, bytes]:
    """The consume queues: content without the zeros at its end, by path."""
    prefix = f"{ROOT}/consumequeue/"
    found = {
        path: bytes(node.data).rstrip(b"\0")
        for path, node in disk.names.items()
        if isinstance(node, Inode) and path.startswith(prefix) and not path.endswith(".tmp")
    }
    return {path: content for path, content in found.items() if content}
