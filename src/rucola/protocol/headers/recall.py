"""Headers of 370 (``protocol.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rucola.protocol.headers.header import CommandHeader


@dataclass(slots=True)
class RecallMessageRequestHeader(CommandHeader):
    """370. ``recall_handle``: as the send of the message was answered."""

    wire_names: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class RecallMessageResponseHeader(CommandHeader):
    """370, the answer. ``msg_id``: unique key of the message that is withdrawn."""

    msg_id: str
