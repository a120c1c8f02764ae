"""Headers of the send family: 10, 310, 320, 324 to 326 (``protocol.md`` 2.2, 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class SendMessageRequestHeader(CommandHeader):
    """``SendMessageRequestHeader``: full names, codes 10 and 324.

    Attributes:
        default_topic: template of a topic that does not exist yet, normally ``TBW102``.
        queue_id: negative: the broker chooses.
        born_timestamp: ms.
        properties: encoded as in ``protocol.md`` 1.13.
        batch: the body holds encoded messages; this decides, not the request code.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int | None = None
    batch: bool | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """``SendMessageRequestHeaderV2``: the same fields under letters, codes 310, 320 and 325."""

    wire_names: ClassVar[Mapping[str, str]] = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }


@dataclass(slots=True)
class ReplyMessageRequestHeader(CommandHeader):
    """326: ``ReplyMessageRequestHeader``, the reply on its way to the client that asked.

    Attributes:
        born_host: of the client that replied, ``ip:port``.
        store_host: of the broker.
        store_timestamp: ms.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None


@dataclass(slots=True)
class SendMessageResponseHeader(CommandHeader):
    """``SendMessageResponseHeader`` and the two fields every send answer carries beside it.

    Attributes:
        msg_id: 32 or 56 hexadecimal digits; a list of them, joined by commas, for a batch.
        transaction_id: property ``UNIQ_KEY`` of the message.
        region: ``MSG_REGION`` of the broker.
        trace_on: ``TRACE_ON`` of the broker.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"region": "MSG_REGION", "trace_on": "TRACE_ON"}

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = None
    trace_on: bool | None = None
