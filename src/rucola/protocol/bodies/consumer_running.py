"""Responses from a consumer to requests 307 and 309 (RocketMQ 5.3.3, ``ConsumerRunningInfo``,
``ConsumeMessageDirectlyResult``).

Times are in ms since the epoch, rates are per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.heartbeat import SubscriptionData


@late_dataclass
class ProcessQueueInfo(Body):
    """One queue of a consumer. ``droped`` is RocketMQ's spelling. Members with ``transaction`` in their name describe
    the messages that an orderly consumer is processing but has not committed.
    """

    json_names: ClassVar[Mapping[str, str]] = {"cached_msg_size_in_mib": "cachedMsgSizeInMiB"}

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@late_dataclass
class ConsumeStatus(Body):
    """The consumption rates of a consumer for one topic."""

    json_names: ClassVar[Mapping[str, str]] = {
        "pull_tps": "pullTPS",
        "consume_ok_tps": "consumeOKTPS",
        "consume_failed_tps": "consumeFailedTPS",
    }

    pull_tps: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0


@late_dataclass
class ConsumerRunningInfo(Body):
    """Response to 307 (GET_CONSUMER_RUNNING_INFO)."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


@late_dataclass
class ConsumeMessageDirectlyResult(Body):
    """Response to 309 (CONSUME_MESSAGE_DIRECTLY). ``consume_result``: a value of RocketMQ's ``CMResult``."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: int = 0
