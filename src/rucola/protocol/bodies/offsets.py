"""Offsets of many queues at once: 43, 220 to 223 and 308 (``protocol.md`` 1.9, 2.8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.common.data_version import DataVersion
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class ConsumerOffsetSerializeWrapper(Body):
    """Answer to 43: consumer offsets by ``topic@group`` and queue id; topics by group in 5.x."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None


@dataclass(slots=True)
class CorrectionOffsetBody(Body):
    """Answer to 308: consumer offsets by queue id."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class ResetOffsetBody(Body):
    """Answer to 222 and body of 220: offsets by queue, under keys that are beans."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True)
class MessageQueueForC(Body):
    """A queue and an offset, as clients written in C++ read them."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(slots=True)
class ResetOffsetBodyForC(Body):
    """Body of 220 to a client written in C++."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


@dataclass(slots=True)
class GetConsumerStatusBody(Body):
    """Answer to 221: a client's own offsets, ``message_queue_table``; to 223: those of the clients by id."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
