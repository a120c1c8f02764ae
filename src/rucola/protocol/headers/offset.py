"""Headers of 14, 15, 29 to 32 and 220 to 223 (``protocol.md`` 2.5, 2.6, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(CommandHeader):
    """14. ``set_zero_if_not_found``: whether a group without progress starts at 0 on a queue that still has all."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(CommandHeader):
    """15. Queue and offset are optional here because their absence has an error code of its own (29)."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    consumer_group: str
    topic: str
    queue_id: Int | None = None
    commit_offset: Long | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class SearchOffsetRequestHeader(CommandHeader):
    """29. ``timestamp`` in ms; ``boundary_type`` is UPPER in any case, or else LOWER."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class GetMaxOffsetRequestHeader(CommandHeader):
    """30."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    committed: bool | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class GetMinOffsetRequestHeader(CommandHeader):
    """31."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    queue_id: Int
    broker_name: str | None = None


@dataclass(slots=True)
class GetEarliestMsgStoretimeRequestHeader(GetMinOffsetRequestHeader):
    """32."""


@dataclass(slots=True)
class OffsetResponseHeader(CommandHeader):
    """Answer to 14, 29, 30 and 31: a consumer offset or queue offset."""

    offset: Long


@dataclass(slots=True)
class ResetOffsetRequestHeader(CommandHeader):
    """222, and 220 from the broker to its clients.

    Attributes:
        timestamp: ms; negative for the end of each queue.
        is_force: whether a group may be moved forward too.
        queue_id: -1 for all queues.
        offset: of one queue, instead of the time; -1 for none.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool = False
    queue_id: Int = -1
    offset: Long | None = None


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(CommandHeader):
    """223, and 221 from the broker to its clients. ``client_addr``: id of the one client that is meant."""

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True)
class GetEarliestMsgStoretimeResponseHeader(CommandHeader):
    """Answer to 32: ms, -1 for an empty queue."""

    timestamp: Long
