"""Headers of request 370 (RECALL_MESSAGE) (``protocol.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader


@late_dataclass
class RecallMessageRequestHeader(CommandHeader):
    """Request 370 (RECALL_MESSAGE). ``recall_handle``: the handle in the response to the send of the message."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = None


@late_dataclass
class RecallMessageResponseHeader(CommandHeader):
    """Response to 370 (RECALL_MESSAGE). ``msg_id``: unique key of the recalled message."""

    msg_id: str
