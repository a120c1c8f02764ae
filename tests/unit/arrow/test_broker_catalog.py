"""Offsets by time through brokers whose responses differ between versions."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Any

import pytest

from rucola.arrow.broker_catalog import offset_at
from rucola.client.pull_result import PullStatus, RawPullResult
from rucola.common.message import StoreMessage
from rucola.common.message_queue import MessageQueue
from rucola.formats.message import encode_message
from rucola.formats.properties import encode_properties

QUEUE = MessageQueue("T", "broker-a", 0)
TIMES_MS = [1000, 2000, 3000]


class Consumer:
    """A pull consumer of a queue with three messages."""

    def __init__(self, nearest: bool) -> None:
        self._nearest = nearest

    async def offset_for_time(self, _queue: MessageQueue, timestamp_ms: int) -> int:
        if self._nearest:  # RocketMQ 4.9
            return min(range(3), key=lambda at: abs(TIMES_MS[at] - timestamp_ms))
        return bisect_left(TIMES_MS, timestamp_ms)

    async def pull_raw(self, _queue: MessageQueue, queue_offset: int, _count: int) -> Any:
        if queue_offset == 3:
            return RawPullResult(PullStatus.NO_NEW_MSG, 3, 0, 3, b"")
        message = StoreMessage(b"T", 0, b"body", encode_properties({}), TIMES_MS[queue_offset], bytes(8))
        record = encode_message(message, 100 * queue_offset, queue_offset, TIMES_MS[queue_offset], bytes(8))
        return RawPullResult(PullStatus.FOUND, queue_offset + 1, 0, 3, record)


@pytest.mark.parametrize("nearest", [False, True])
def test_the_first_message_at_or_after_a_time(nearest: bool) -> None:
    expected = {0: 0, 1000: 0, 1100: 1, 1900: 1, 2000: 1, 2001: 2, 3000: 2, 3001: 3, 1 << 50: 3}
    found = {at: asyncio.run(offset_at(Consumer(nearest), QUEUE, at)) for at in expected}  # type: ignore[arg-type]
    assert found == expected
