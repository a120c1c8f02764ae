"""Headers of requests 12 (QUERY_MESSAGE) and 33 (VIEW_MESSAGE_BY_ID) (``protocol.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long

PARTIAL = "only a part of the index was searched; there may be more messages"
"""Remark of a response to 12 (QUERY_MESSAGE) in which messages may be missing."""


@late_dataclass
class QueryMessageRequestHeader(CommandHeader):
    """Request 12 (QUERY_MESSAGE). Timestamps in ms. ``unique_key_query``: whether the key is a unique id; ``max_num``
    is then ignored.
    """

    wire_names: ClassVar[Mapping[str, str]] = {"unique_key_query": "_UNIQUE_KEY_QUERY", "broker_name": "bname"}

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool | None = None
    broker_name: str | None = None


@late_dataclass
class QueryMessageResponseHeader(CommandHeader):
    """Response to 12 (QUERY_MESSAGE): time and physical offset up to which the index is complete."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@late_dataclass
class ViewMessageRequestHeader(CommandHeader):
    """Request 33 (VIEW_MESSAGE_BY_ID). ``offset``: the physical offset of the message."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    offset: Long
    topic: str | None = None
    broker_name: str | None = None
