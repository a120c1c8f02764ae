"""Headers of 34, 35, 36, 38 and 40 (``protocol.md`` 2.4 to 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class HeartbeatResponseHeader(CommandHeader):
    """Answer to 34: whether the broker knows heartbeat V2, and whether it wants the subscriptions again."""

    wire_names: ClassVar[Mapping[str, str]] = {
        "is_support_heart_beat_v2": "IS_SUPPORT_HEART_BEAT_V2",
        "is_sub_change": "IS_SUB_CHANGE",
    }

    is_support_heart_beat_v2: bool | None = None
    is_sub_change: bool | None = None


@dataclass(slots=True)
class UnregisterClientRequestHeader(CommandHeader):
    """35."""

    wire_names: ClassVar[Mapping[str, str]] = {"client_id": "clientID", "broker_name": "bname"}

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(CommandHeader):
    """36. ``offset``: the physical offset of the message; ``delay_level`` 0: by times consumed, below: dead letter."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class GetConsumerListByGroupRequestHeader(CommandHeader):
    """38."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    broker_name: str | None = None


@dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(CommandHeader):
    """40, from the broker."""

    consumer_group: str
