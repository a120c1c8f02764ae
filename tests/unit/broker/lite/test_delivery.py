"""Delivery of lite topics by a running broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.brokers import run_virtual
from tests.unit.broker.lite.lite_cluster import (
    POLLING_TIMEOUT,
    SUCCESS,
    LiteCluster,
    bodies,
    counts,
)


def test_messages_arrive_in_order_and_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            await cluster.add("one", "two")
            waiting = asyncio.create_task(cluster.pop(poll_ms=60_000))
            await asyncio.sleep(1)
            assert len(cluster.delivery.hold) == 1
            cluster.put("one", "a", "b")
            first = await waiting
            assert (bodies(first), counts(first), first.remark) == (["a", "b"], "0;0", "FOUND")
            assert first.ext_fields["reviveQid"] == "999"
            cluster.put("one", "c")
            cluster.put("two", "d")
            assert await cluster.take() == ["d"]  # the first batch of ``one`` is in flight
            for offset in (1, 0):
                assert (await cluster.ack(first, "one", offset)).code == SUCCESS
            assert await cluster.take() == ["c"]
            empty = await cluster.pop(poll_ms=1000)
            assert (empty.code, empty.remark, counts(empty)) == (POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", "")

    run_virtual(work())
