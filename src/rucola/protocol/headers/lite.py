"""Headers of the requests of lite topics, 200070 to 200079, as in RocketMQ 5.5.0 (``lite.md`` 3)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class PopLiteMessageRequestHeader(CommandHeader):
    """Request 200070 (POP_LITE_MESSAGE): messages of any lite topics to which the client has subscribed. Times in ms.

    Attributes:
        topic: the parent topic.
        born_time: when the client sent the request; the broker takes 0 as now.
        attempt_id: of a request that is repeated; with the same id, the broker gives a batch again that is in flight.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long = 0
    attempt_id: str | None = None


@late_dataclass
class PopLiteMessageResponseHeader(CommandHeader):
    """Response to 200070 (POP_LITE_MESSAGE). Times in ms.

    Attributes:
        revive_qid: always 999.
        order_count_info: how often each message was delivered before: one element per message, separated by ``;``.
            An element is a number, or ``0 qo0%OFFSET NUMBER``.
    """

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@late_dataclass
class NotifyUnsubscribeLiteRequestHeader(CommandHeader):
    """Request 200073 (NOTIFY_UNSUBSCRIBE_LITE), from the broker: another client of the group has taken over the lite
    topic.
    """

    lite_topic: str
    consumer_group: str
    client_id: str


@late_dataclass
class GetParentTopicInfoRequestHeader(CommandHeader):
    """Request 200075 (GET_PARENT_TOPIC_INFO)."""

    topic: str


@late_dataclass
class ListLiteTopicsRequestHeader(CommandHeader):
    """Request 200075 (GET_PARENT_TOPIC_INFO) for lite topics of the parent ``topic``; Rucola's own.

    Attributes:
        max_count: how many lite topics the response may have; 10,000 at most.
        prefix: how their names begin.
        group: whose offsets the response has.
        start: 0, or ``following`` of the page before.
    """

    topic: str
    max_count: Int
    prefix: str | None = None
    group: str | None = None
    start: Int = 0


@late_dataclass
class GetLiteTopicInfoRequestHeader(CommandHeader):
    """Request 200076 (GET_LITE_TOPIC_INFO)."""

    parent_topic: str
    lite_topic: str


@late_dataclass
class GetLiteClientInfoRequestHeader(CommandHeader):
    """Request 200077 (GET_LITE_CLIENT_INFO). ``max_count``: how many names of lite topics the response may have."""

    parent_topic: str
    group: str
    client_id: str
    max_count: Int = 1000


@late_dataclass
class GetLiteGroupInfoRequestHeader(CommandHeader):
    """Request 200078 (GET_LITE_GROUP_INFO). Without ``lite_topic``, the ``top_k`` lite topics that are furthest
    behind.
    """

    group: str
    lite_topic: str | None = None
    top_k: Int = 0


@late_dataclass
class TriggerLiteDispatchRequestHeader(CommandHeader):
    """Request 200079 (TRIGGER_LITE_DISPATCH): the broker looks through the lite topics of a client for messages;
    without ``client_id``, of all clients of the group.
    """

    group: str
    client_id: str | None = None


@late_dataclass
class LiteRowsRequestHeader(CommandHeader):
    """Of request 43 by a slave of ours: the number of the name from which on it wants rows (``lite.slave_rows``)."""

    lite_row: Long


@late_dataclass
class LiteRowsResponseHeader(CommandHeader):
    """Where the next page begins; -1 after the last one. RocketMQ's response has no such field."""

    lite_next: Long | None = None
