"""Bodies of requests 41 (LOCK_BATCH_MQ) and 42 (UNLOCK_BATCH_MQ) (``protocol.md`` 2.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.body import Body


@late_dataclass
class LockBatchRequestBody(Body):
    """Request to lock (41) or unlock (42) queues for one client of a group."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


@late_dataclass
class LockBatchResponseBody(Body):
    """Response to 41 (LOCK_BATCH_MQ): the queues that the client now holds."""

    json_names: ClassVar[Mapping[str, str]] = {"lock_ok_mq_set": "lockOKMQSet"}

    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list)
