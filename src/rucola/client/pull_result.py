"""What a pull gives back."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rucola.common.message import MessageExt


class PullStatus(Enum):
    """Outcome of a pull (RocketMQ 5.3.3, PullStatus). None of them is an error."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # the end of the queue is reached
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # messages were skipped by the filter; go on at next_begin_offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # below the minimum or above the maximum; next_begin_offset is where to go on


class PullResult(NamedTuple):
    """Messages of one queue.

    Attributes:
        status: what was found.
        next_begin_offset: queue offset to pull from next.
        min_offset: first queue offset the broker still holds.
        max_offset: the next free queue offset.
        messages: decoded messages, in queue order.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class RawPullResult(NamedTuple):
    """Like ``PullResult`` with the messages as they are stored, one record behind the other."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes
