"""Requests with long bodies: their signatures are checked in several turns of the event loop. Before the whole body is
hashed, nobody knows who sent it; a frame of 16 MiB of an unknown sender would delay others by 61 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.broker.acl.permission import Sender
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.command import FLAG_RESPONSE
from rucola.protocol.frame import FrameBatch
from rucola.protocol.signature import LongBodySignature

_FLAG = int(FrameColumn.FLAG)
_BODY_LEN = int(FrameColumn.BODY_LEN)
HASHED_BYTES = 1024 * 1024
"""Number of bytes of a body that are hashed in one turn; this takes up to 4 ms."""


def is_long(batch: FrameBatch, row: int) -> bool:
    """Whether row ``row`` is a request whose body is hashed in several turns."""
    base = row * ROW_WIDTH
    return batch.table[base + _BODY_LEN] > HASHED_BYTES and not batch.table[base + _FLAG] & FLAG_RESPONSE


@dataclass(slots=True)
class LongBody:
    """A request whose body is being hashed.

    Attributes:
        row: its row.
        account: the account that it names, or nobody.
        position: number of bytes that are hashed.
    """

    row: int
    account: Sender
    signature: LongBodySignature
    position: int = 0

    def hash_on(self, batch: FrameBatch) -> bool:
        """Hashes the next piece of the body; returns whether it was the last one."""
        body, end = batch.body(self.row), self.position + HASHED_BYTES
        self.signature.update(body[self.position : end])
        self.position = end
        return end >= len(body)
