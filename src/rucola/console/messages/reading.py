"""Reads messages of a queue by offset. No read joins a group or commits an offset."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rucola.client.admin import AdminClient
from rucola.common.message import MessageExt
from rucola.common.sysflag import PullSysFlag
from rucola.errors import FormatError, MissingExtraError
from rucola.formats.inner_batch import decode_single_messages
from rucola.formats.message import decode_messages
from rucola.protocol.headers.pull import PullMessageRequestHeader

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
PULL_MESSAGES: Final = 32
TIMEOUT_MS: Final = 2_000
_PULL_BYTES: Final = 1024 * 1024
_DECODED_BYTES: Final = 64 * 1024
"""Responses above this size are decoded on a thread."""


@dataclass(slots=True)
class QueueAt:
    """A queue that is read.

    Attributes:
        position: the next offset.
        end: the first offset that is not wanted.
        passed: messages before the first position that are left out, as only the newest are wanted.
    """

    broker: str
    address: str
    number: int
    position: int
    end: int
    passed: int = 0


@dataclass(frozen=True, slots=True)
class PulledRange:
    """What a pull found, where the next one begins, and where the queue ends."""

    messages: list[MessageExt]
    next_offset: int
    max_offset: int


async def pulled(
    admin: AdminClient,
    topic: str,
    queue: QueueAt,
    count: int,
    expression: str = "*",
    expression_type: str | None = None,
) -> PulledRange:
    """Up to ``count`` messages from the position of a queue.

    Args:
        expression: tags or an SQL92 expression; the broker selects the messages.
        expression_type: ``TAG`` or ``SQL92``; None for tags.
    """
    position = queue.position
    header = PullMessageRequestHeader(
        TOOLS_GROUP, topic, queue.number, position, count, int(PullSysFlag.SUBSCRIPTION), 0, 0, 0, expression,
        expression_type, max_msg_bytes=_PULL_BYTES,
    )  # fmt: skip
    answer = await admin.api.pull_message(queue.address, header, TIMEOUT_MS)
    return PulledRange(
        await decoded(answer.body, position, queue.broker), answer.header.next_begin_offset, answer.header.max_offset
    )


async def decoded(records: bytes, queue_offset: int, broker: str) -> list[MessageExt]:
    """The messages in a response. A body that cannot be decompressed stays as it is stored."""
    if not records:
        return []

    def decode() -> list[MessageExt]:
        try:
            messages = decode_single_messages(records, queue_offset)
        except (FormatError, MissingExtraError):
            messages = decode_messages(records, unpack=False)
        for message in messages:
            message.broker_name = broker
        return messages

    return await asyncio.to_thread(decode) if len(records) > _DECODED_BYTES else decode()
