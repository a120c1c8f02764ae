"""Headers of request 370 (RECALL_MESSAGE) (``protocol.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader


@dataclass(slots=True)
class RecallMessageRequestHeader(CommandHeader):
    """Request 370 (RECALL_MESSAGE). ``recall_handle``: the handle in the response to the send of the message."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class RecallMessageResponseHeader(CommandHeader):
    """Response to 370 (RECALL_MESSAGE). ``msg_id``: unique key of the recalled message."""

    msg_id: str
