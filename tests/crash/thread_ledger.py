"""Records the requests to a store with real threads, and their results, in a file that outlives a killed process.

Each fact is one line, appended by a single write, so lines written before a kill are still there after it.

====  =====================================================  ==========================================================
line  fields                                                 meaning
====  =====================================================  ==========================================================
S     number, topic, queue id                                a message is about to be appended
A     number, physical offset, size, queue offset            a message was acknowledged
L     number                                                 a later process did not find a message without A
B     topic, physical offset                                 messages of a topic below the offset are to be deleted
D     topic, physical offset                                 messages of a topic below the offset were deleted
====  =====================================================  ==========================================================
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rucola.common.message import StoreMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
_SIZES = (10, 100, 600, 2000, 6000)


def message_of(number: int, topic: bytes, queue_id: int) -> StoreMessage:
    """Returns message ``number``, whose body and properties depend only on the number."""
    random = Random(number)
    body = random.randbytes(random.choice(_SIZES))
    properties = b"KEYS\x01k%d\x02TAGS\x01t%d\x02UNIQ_KEY\x01U%d\x02" % (number, number % 3, number)
    return StoreMessage(topic, queue_id, body, properties, number % (1 << 40), HOST)


@dataclass(frozen=True)
class Place:
    """Offsets and size of an acknowledged message."""

    physical_offset: int
    size: int
    queue_offset: int

    @property
    def end(self) -> int:
        """Physical offset after the record."""
        return self.physical_offset + self.size


@dataclass
class Ledger:
    """The file of requests and results; see the module.

    Attributes:
        sent: topic and queue id of each message by number, without lost messages.
        places: offsets and sizes of acknowledged messages, by number.
        deleted: for each deleted topic, the physical offset below which its messages are in no queue.
        deleting: the same for deletions whose end was not recorded: they may or may not have taken effect.
    """

    path: Path
    sent: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    deleted: dict[bytes, int] = field(default_factory=dict)
    deleting: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):  # a kill may have cut the last line
                self._take(*line.split())
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if text and not text.endswith("\n"):
            os.write(self._descriptor, b"\n")

    def sends(self, messages: list[tuple[int, bytes, int]]) -> None:
        """Records that messages are about to be appended: number, topic, queue id."""
        self._note([f"S {number} {topic.decode()} {queue_id}" for number, topic, queue_id in messages])

    def acknowledged(self, places: dict[int, Place]) -> None:
        """Records that messages were appended, with their offsets."""
        self._note([f"A {n} {p.physical_offset} {p.size} {p.queue_offset}" for n, p in places.items()])

    def lost(self, numbers: list[int]) -> None:
        """Records that a process did not find messages when it opened the store."""
        self._note([f"L {number}" for number in numbers])

    def deletes(self, topic: bytes, physical_offset: int) -> None:
        """Records that a topic is about to be deleted."""
        self._note([f"B {topic.decode()} {physical_offset}"])

    def deletion_done(self, topic: bytes, physical_offset: int) -> None:
        """Records that the topic is deleted."""
        self._note([f"D {topic.decode()} {physical_offset}"])

    def _note(self, lines: list[str]) -> None:
        if lines:
            os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())
            for line in lines:
                self._take(*line.split())

    def _take(self, kind: str = "", *fields: str) -> None:
        if kind == "S":
            self.sent[int(fields[0])] = fields[1].encode(), int(fields[2])
        elif kind == "A":
            self.places[int(fields[0])] = Place(*map(int, fields[1:]))
        elif kind == "L":
            self.sent.pop(int(fields[0]), None)
        elif kind == "B":
            self.deleting[fields[0].encode()] = int(fields[1])
        elif kind == "D":
            self.deleted[fields[0].encode()] = int(fields[1])
            self.deleting.pop(fields[0].encode(), None)
