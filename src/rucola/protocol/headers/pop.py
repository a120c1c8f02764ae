"""Headers of the POP requests (``protocol.md`` 2.9)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class PopMessageRequestHeader(CommandHeader):
    """Request 200050 (POP_MESSAGE). Times in ms.

    Attributes:
        queue_id: id of the queue; -1 for all queues.
        init_mode: where a new group starts: 0 at the first message; 1 at the last one, or at the first if no message
            was removed yet.
        max_bytes: largest number of bytes of the response's body; its first message may exceed it. RocketMQ has no
            such field, and its brokers ignore it.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    max_bytes: Int | None = None


@late_dataclass
class PopMessageResponseHeader(CommandHeader):
    """Response to 200050 (POP_MESSAGE)."""

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0
    rest_num: Long = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@late_dataclass
class PeekMessageRequestHeader(CommandHeader):
    """Request 200052 (PEEK_MESSAGE); ``queue_id`` -1 means all queues. The response has a
    ``PopMessageResponseHeader``.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int


@late_dataclass
class AckMessageRequestHeader(CommandHeader):
    """Request 200051 (ACK_MESSAGE). ``lite_topic``: the lite topic, if ``topic`` is the parent of one (5.5.0)."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    lite_topic: str | None = None


@late_dataclass
class ChangeInvisibleTimeRequestHeader(CommandHeader):
    """Request 200053 (CHANGE_MESSAGE_INVISIBLETIME).

    Attributes:
        lite_topic: the lite topic, if ``topic`` is the parent of one (5.5.0).
        suspend: whether the next delivery does not count as an attempt (5.5.0).
    """

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool | None = None


@late_dataclass
class ChangeInvisibleTimeResponseHeader(CommandHeader):
    """Response to 200053 (CHANGE_MESSAGE_INVISIBLETIME): the values from which the client makes the message's new
    receipt handle.
    """

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0


@late_dataclass
class NotificationRequestHeader(CommandHeader):
    """Request 200054 (NOTIFICATION): asks whether there are messages to pop. If there are none, the broker waits for
    one, at the latest until ``poll_time`` ms after ``born_time``.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


@late_dataclass
class NotificationResponseHeader(CommandHeader):
    """Response to 200054 (NOTIFICATION)."""

    has_msg: bool = False
    polling_full: bool = False


@late_dataclass
class PollingInfoRequestHeader(CommandHeader):
    """Request 200055 (POLLING_INFO)."""

    consumer_group: str
    topic: str
    queue_id: Int


@late_dataclass
class PollingInfoResponseHeader(CommandHeader):
    """Response to 200055 (POLLING_INFO)."""

    polling_num: Int = 0
