"""Headers of requests 34, 35, 36, 38 and 40 (``protocol.md`` 2.4 to 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class HeartbeatResponseHeader(CommandHeader):
    """Response to 34 (HEART_BEAT): whether the broker supports heartbeat V2, and whether it needs the subscriptions
    again.
    """

    wire_names: ClassVar[Mapping[str, str]] = {
        "is_support_heart_beat_v2": "IS_SUPPORT_HEART_BEAT_V2",
        "is_sub_change": "IS_SUB_CHANGE",
    }

    is_support_heart_beat_v2: bool | None = None
    is_sub_change: bool | None = None


@late_dataclass
class UnregisterClientRequestHeader(CommandHeader):
    """Request 35 (UNREGISTER_CLIENT)."""

    wire_names: ClassVar[Mapping[str, str]] = {"client_id": "clientID", "broker_name": "bname"}

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    broker_name: str | None = None


@late_dataclass
class ConsumerSendMsgBackRequestHeader(CommandHeader):
    """Request 36 (CONSUMER_SEND_MSG_BACK). ``offset``: physical offset. ``delay_level``: 0 lets the retry count decide,
    a negative level means the dead-letter queue.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None
    broker_name: str | None = None


@late_dataclass
class GetConsumerListByGroupRequestHeader(CommandHeader):
    """Request 38 (GET_CONSUMER_LIST_BY_GROUP)."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    broker_name: str | None = None


@late_dataclass
class NotifyConsumerIdsChangedRequestHeader(CommandHeader):
    """Request 40 (NOTIFY_CONSUMER_IDS_CHANGED), sent by the broker."""

    consumer_group: str
