"""Result of a send."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rucola.common.message_queue import MessageQueue


class SendStatus(Enum):
    """Whether flush and replication were confirmed in time. The message is stored in every case (protocol.md 2.2)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"  # stored in memory, not confirmed on disk in time
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"  # stored on the master, not confirmed by a slave in time
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"  # stored on the master, no slave is available


class SendResult(NamedTuple):
    """Result of a send.

    Attributes:
        status: whether flush and replication were confirmed in time.
        msg_id: the message's UNIQ_KEY, created by the client; for a batch, all UNIQ_KEYs, joined by commas.
        offset_msg_id: the broker's address and the physical offset in hex; for a batch, the ids of all messages, joined
            by commas.
        message_queue: the queue that holds the message.
        queue_offset: queue offset of the message, or of the first message of a batch.
        transaction_id: set for transactional messages.
        recall_handle: handle for ``recall`` of a delayed message; None if the broker returned none.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
