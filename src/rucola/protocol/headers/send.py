"""Headers of the send requests: 10, 310, 320, 324 to 326 (``protocol.md`` 2.2, 2.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class SendMessageRequestHeader(CommandHeader):
    """Requests 10 (SEND_MESSAGE) and 324 (SEND_REPLY_MESSAGE), with full field names.

    Attributes:
        default_topic: template for a topic that does not exist yet, normally ``TBW102``.
        queue_id: id of the queue; negative if the broker chooses it.
        born_timestamp: time at which the client created the message, in ms.
        properties: encoded as in ``protocol.md`` 1.13.
        batch: whether the body holds encoded messages; this field decides, not the request code.
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


@late_dataclass
class SendMessageRequestHeaderV2(SendMessageRequestHeader):
    """Requests 310 (SEND_MESSAGE_V2), 320 (SEND_BATCH_MESSAGE) and 325 (SEND_REPLY_MESSAGE_V2): the fields of
    ``SendMessageRequestHeader`` with one-letter names.
    """

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


@late_dataclass
class ReplyMessageRequestHeader(CommandHeader):
    """Request 326 (PUSH_REPLY_MESSAGE_TO_CLIENT), by which the broker forwards a reply to the requesting client.

    Attributes:
        born_host: address of the replying client, ``ip:port``.
        store_host: address of the broker.
        store_timestamp: time at which the broker stored the reply, in ms.
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


@late_dataclass
class SendMessageResponseHeader(CommandHeader):
    """Response to a send. RocketMQ's class of this name lacks ``region`` and ``trace_on``, but the responses have them.

    Attributes:
        msg_id: 32 or 56 hexadecimal digits; for a batch, a list joined by commas.
        transaction_id: property ``UNIQ_KEY`` of the message.
        region: the broker's ``MSG_REGION``.
        trace_on: the broker's ``TRACE_ON``.
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
