"""Headers of the POP family (``protocol.md`` 2.9)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class PopMessageRequestHeader(CommandHeader):
    """200050. Times in ms; ``queue_id`` -1: all queues; ``init_mode`` 0: from the first message, 1: from the last."""

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


@dataclass(slots=True)
class PopMessageResponseHeader(CommandHeader):
    """200050, the answer."""

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0
    rest_num: Long = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class PeekMessageRequestHeader(CommandHeader):
    """200052; ``queue_id`` -1: all queues. Answered with a ``PopMessageResponseHeader``."""

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int


@dataclass(slots=True)
class AckMessageRequestHeader(CommandHeader):
    """200051."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


@dataclass(slots=True)
class ChangeInvisibleTimeRequestHeader(CommandHeader):
    """200053."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long


@dataclass(slots=True)
class ChangeInvisibleTimeResponseHeader(CommandHeader):
    """200053, the answer: what goes into the message's next receipt."""

    pop_time: Long = 0
    invisible_time: Long = 0
    revive_qid: Int = 0


@dataclass(slots=True)
class NotificationRequestHeader(CommandHeader):
    """200054: is there something to pop? Waits for it up to ``poll_time`` ms after ``born_time``."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True)
class NotificationResponseHeader(CommandHeader):
    """200054, the answer."""

    has_msg: bool = False
    polling_full: bool = False


@dataclass(slots=True)
class PollingInfoRequestHeader(CommandHeader):
    """200055."""

    consumer_group: str
    topic: str
    queue_id: Int


@dataclass(slots=True)
class PollingInfoResponseHeader(CommandHeader):
    """200055, the answer."""

    polling_num: Int = 0
