"""Bodies of requests 200151, 400 and 401 (``protocol.md`` 2.7 and 2.9)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import POP_MESSAGES_MAX
from rucola.errors import FormatError
from rucola.protocol.bodies.body import Body

_BITS_BYTES_MAX = 4096


@late_dataclass
class BatchAck(Body):
    """Messages of the same queue and same pop. ``bits``: the messages' distances from ``start_offset``, as a bit set
    in base64.
    """

    json_names: ClassVar[Mapping[str, str]] = {
        "consumer_group": "c",
        "topic": "t",
        "retry": "r",
        "start_offset": "so",
        "queue_id": "q",
        "revive_queue_id": "rq",
        "pop_time": "pt",
        "invisible_time": "it",
        "bits": "b",
    }

    consumer_group: str
    topic: str
    queue_id: int
    revive_queue_id: int
    start_offset: int
    pop_time: int
    invisible_time: int
    retry: str = "0"
    bits: str = ""

    def queue_offsets(self) -> Iterator[int]:
        """Yields the queue offsets of the messages, ascending.

        Raises:
            FormatError: ``bits`` is not a bit set in base64, or names more messages than a pop can have.
        """
        try:
            bits = base64.b64decode(self.bits, validate=True)
        except (ValueError, binascii.Error):
            bits = b""
        if not 0 < len(bits) <= _BITS_BYTES_MAX:
            raise FormatError("BatchAck, b", 0, f"base64 of 1 to {_BITS_BYTES_MAX} bytes", self.bits[:64])
        left = int.from_bytes(bits, "little")
        if left.bit_count() > POP_MESSAGES_MAX:
            raise FormatError("BatchAck, b", 0, f"up to {POP_MESSAGES_MAX} messages of one pop", f"{left.bit_count()}")
        while left:
            lowest = left & -left
            left ^= lowest
            yield self.start_offset + lowest.bit_length() - 1


@late_dataclass
class BatchAckMessageRequestBody(Body):
    """Body of request 200151 (BATCH_ACK_MESSAGE)."""

    broker_name: str = ""
    acks: list[BatchAck] = field(default_factory=list)


@late_dataclass
class QueryAssignmentRequestBody(Body):
    """Body of request 400 (QUERY_ASSIGNMENT)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


@late_dataclass
class MessageQueueAssignment(Body):
    """A queue assigned to a consumer. ``mode``: PULL or POP."""

    message_queue: MessageQueue
    mode: str = "PULL"


@late_dataclass
class QueryAssignmentResponseBody(Body):
    """Response to 400 (QUERY_ASSIGNMENT). The consumer keeps its queues if ``message_queue_assignments`` is None."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


@late_dataclass
class SetMessageRequestModeRequestBody(Body):
    """Body of request 401 (SET_MESSAGE_REQUEST_MODE)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0
