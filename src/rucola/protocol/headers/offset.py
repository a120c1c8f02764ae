"""Headers of requests 14, 15, 29 to 32 and 220 to 223 (``protocol.md`` 2.5, 2.6, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class QueryConsumerOffsetRequestHeader(CommandHeader):
    """Request 14 (QUERY_CONSUMER_OFFSET). For a group without an offset, the response is offset 0 if the message at
    queue offset 0 is in memory, unless ``set_zero_if_not_found`` is False.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


@late_dataclass
class UpdateConsumerOffsetRequestHeader(CommandHeader):
    """Request 15 (UPDATE_CONSUMER_OFFSET). Queue and offset are optional here, because the broker itself refuses a
    request without them, with code 29 (INVALID_PARAMETER).
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: Int | None = None
    commit_offset: Long | None = None
    broker_name: str | None = None


@late_dataclass
class SearchOffsetRequestHeader(CommandHeader):
    """Request 29 (SEARCH_OFFSET_BY_TIMESTAMP). ``timestamp``: ms. ``boundary_type``: ``UPPER``, in upper or lower case;
    anything else means ``LOWER``.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    broker_name: str | None = None


@late_dataclass
class GetMaxOffsetRequestHeader(CommandHeader):
    """Request 30 (GET_MAX_OFFSET)."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    committed: bool | None = None
    broker_name: str | None = None


@late_dataclass
class GetMinOffsetRequestHeader(CommandHeader):
    """Request 31 (GET_MIN_OFFSET)."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    broker_name: str | None = None


@late_dataclass
class GetEarliestMsgStoretimeRequestHeader(GetMinOffsetRequestHeader):
    """Request 32 (GET_EARLIEST_MSG_STORETIME)."""


@late_dataclass
class OffsetResponseHeader(CommandHeader):
    """Response to 14, 29, 30 and 31: a consumer offset or queue offset."""

    offset: Long


@late_dataclass
class ResetOffsetRequestHeader(CommandHeader):
    """Request 222 (INVOKE_BROKER_TO_RESET_OFFSET), and request 220 (RESET_CONSUMER_CLIENT_OFFSET) from the broker to
    its clients.

    Attributes:
        timestamp: time in ms; the group continues with messages stored from then on; negative for the end of each
            queue.
        is_force: whether the group's offset may also move forward.
        queue_id: -1 for all queues.
        offset: new offset of one queue, used in place of the time; -1 if not given.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool = False
    queue_id: Int = -1
    offset: Long | None = None


@late_dataclass
class GetConsumerStatusRequestHeader(CommandHeader):
    """Request 223 (INVOKE_BROKER_TO_GET_CONSUMER_STATUS), and request 221 (GET_CONSUMER_STATUS_FROM_CLIENT) from the
    broker to its clients. ``client_addr``: id of the client to ask; empty for all clients.
    """

    topic: str
    group: str
    client_addr: str | None = None


@late_dataclass
class GetEarliestMsgStoretimeResponseHeader(CommandHeader):
    """Response to 32 (GET_EARLIEST_MSG_STORETIME): time in ms, -1 for an empty queue."""

    timestamp: Long
