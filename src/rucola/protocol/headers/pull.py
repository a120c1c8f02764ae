"""Headers of requests 11 (PULL_MESSAGE) and 361 (LITE_PULL_MESSAGE) (``protocol.md`` 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class PullMessageRequestHeader(CommandHeader):
    """Requests 11 (PULL_MESSAGE) and 361 (LITE_PULL_MESSAGE).

    Attributes:
        sys_flag: bits of ``PullSysFlag``.
        commit_offset: consumer offset, stored when bit 0 of ``sys_flag`` is set.
        suspend_timeout_millis: how long to wait for messages when bit 1 of ``sys_flag`` is set.
        sub_version: version of the subscription.
        subscription: expression text when bit 2 of ``sys_flag`` is set.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    broker_name: str | None = None


@late_dataclass
class PullMessageResponseHeader(CommandHeader):
    """Response to 11 (PULL_MESSAGE) and 361 (LITE_PULL_MESSAGE). Clients need the first four fields (``protocol.md``
    9.3).
    """

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None
