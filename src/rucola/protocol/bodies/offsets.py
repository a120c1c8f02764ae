"""Bodies with offsets of many queues: requests 43, 220 to 223 and 308 (``protocol.md`` 1.9, 2.8)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.data_version import DataVersion
from rucola.common.late_dataclass import late_dataclass
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.body import Body


@late_dataclass
class ConsumerOffsetSerializeWrapper(Body):
    """Response to 43 (GET_ALL_CONSUMER_OFFSET): consumer offsets by ``topic@group`` and queue id; 5.x adds the topics
    of each group.
    """

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None


@late_dataclass
class CorrectionOffsetBody(Body):
    """Response to 308 (QUERY_CORRECTION_OFFSET): consumer offsets by queue id."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@late_dataclass
class ResetOffsetBody(Body):
    """Response to 222 and body of request 220 (RESET_CONSUMER_CLIENT_OFFSET): offsets by queue; the keys are JSON
    objects.
    """

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@late_dataclass
class MessageQueueForC(Body):
    """A queue and its offset, in the form which C++ clients understand."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@late_dataclass
class ResetOffsetBodyForC(Body):
    """Body of request 220 (RESET_CONSUMER_CLIENT_OFFSET) to a C++ client."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


@late_dataclass
class GetConsumerStatusBody(Body):
    """Response to 221: a client's own offsets in ``message_queue_table``. Response to 223: offsets of several clients,
    by client id.
    """

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
