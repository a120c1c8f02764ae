"""The file ``rucola-pop-acks``: acknowledgements of popped messages on their way into the log.

The file exists while a broker with ASYNC_FLUSH serves POP clients, and after such a broker was killed. It has two
halves of 1 MiB. Each holds entries from its start on; the first entry that is not valid, or not of the same round as
the first one, ends the half. RocketMQ does not know this file. It only repeats what is stored in the log soon after, so
an acknowledgement that is in both does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from rucola.errors import FormatError
from rucola.formats.checksum import CHECKSUM_MASK, crc32
from rucola.formats.layout import Field, Layout
from rucola.formats.pop import PopAck, PopKey, encode_ack

FILE_NAME: Final = "rucola-pop-acks"
HALF_BYTES: Final = 1 << 20
JOURNALED_ACK: Final = Layout(
    "journaled acknowledgement",
    24,
    Field("checksum", "i", "CRC-32 of the rest of the entry without its top bit."),
    Field("round", "i", "Number of the round of writing; each round begins at the start of a half."),
    Field("due_ms", "q", "Time in ms at which the acknowledgement is due in the revive topic."),
    Field("revive_queue", "i", "Queue of the revive topic."),
    Field("body_bytes", "i", "Length of the acknowledgement that follows, as in the revive topic (JSON)."),
)
_CHECKED_FROM = 4
_CHECKED = Struct(JOURNALED_ACK.struct.format.replace("i", "", 1)).pack
"""Packs the fields after the checksum."""


class JournaledAck(NamedTuple):
    """One entry."""

    ack: PopAck
    due_ms: int
    revive_queue: int


def encode_entry(round_: int, key: PopKey, queue_offsets: Sequence[int], due_ms: int, revive_queue: int) -> bytes:
    """Returns the bytes of an entry."""
    body = encode_ack(key, queue_offsets, batch=len(queue_offsets) > 1)
    checked = _CHECKED(round_, due_ms, revive_queue, len(body)) + body
    return (crc32(checked) & CHECKSUM_MASK).to_bytes(_CHECKED_FROM, "big") + checked


def journaled_acks(half: bytes | memoryview) -> Iterator[JournaledAck]:
    """The entries of one half."""
    position, first_round = 0, None
    while position + JOURNALED_ACK.size <= len(half):
        checksum, round_, due_ms, revive_queue, body_bytes = JOURNALED_ACK.unpack(half, position)
        body = position + JOURNALED_ACK.size
        if round_ != (round_ if first_round is None else first_round) or not 0 < body_bytes <= len(half) - body:
            return
        end = body + body_bytes
        if crc32(memoryview(half)[position + _CHECKED_FROM : end]) & CHECKSUM_MASK != checksum:
            return
        try:
            yield JournaledAck(PopAck.decode(bytes(half[body:end])), due_ms, revive_queue)
        except FormatError:
            return
        position, first_round = end, round_
