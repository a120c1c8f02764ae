"""Result of a pull."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rucola.common.message import MessageExt


class PullStatus(Enum):
    """Outcome of a pull (RocketMQ 5.3.3, PullStatus). None of the outcomes is an error."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # the end of the queue is reached
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # the filter skipped all messages; continue at next_begin_offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # below the minimum or above the maximum; continue at next_begin_offset


class PullResult(NamedTuple):
    """The messages and offsets that a pull from one queue returned.

    Attributes:
        status: outcome of the pull.
        next_begin_offset: queue offset to pull from next.
        min_offset: first queue offset that the broker still has.
        max_offset: queue offset of the next message to be stored.
        messages: decoded messages, in queue order.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class RawPullResult(NamedTuple):
    """Like ``PullResult``, but with the records as stored, back to back."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes
