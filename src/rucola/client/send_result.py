"""What a send gives back."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rucola.common.message_queue import MessageQueue


class SendStatus(Enum):
    """How far the broker got with a message. In every case it is stored (protocol.md 2.2)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # stored in memory, not confirmed on disk in time
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"  # stored on the master, not confirmed by a slave in time
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"  # stored on the master, no slave is there


class SendResult(NamedTuple):
    """Where a message went.

    Attributes:
        status: how far the broker got.
        msg_id: the message's UNIQ_KEY, made by the client; of a batch all of them, joined by commas.
        offset_msg_id: the broker's id, address and physical offset in hex; of a batch all of them, joined by commas.
        message_queue: the queue that holds it.
        queue_offset: its place in that queue; of a batch that of its first message.
        transaction_id: set for transactional messages.
        recall_handle: what ``recall`` takes, of a message that waits for its time; None where the broker gives none.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
