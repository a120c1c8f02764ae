"""Messages popped in order."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.brokers import Cluster, run_virtual
from tests.tables import Tables, keep_nothing
from tests.unit.broker.test_pop import ACK, CHANGE, ILLEGAL, POLLING_TIMEOUT, SUCCESS, bodies, pop, receipt, send

from rucola.broker.pop.order_info import ILLEGAL as UNKNOWN_MESSAGE
from rucola.broker.pop.order_info import NOTHING_TO_COMMIT, OrderInfoManager, order_info_pieces
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.pop.receipt import PopInfo
from rucola.errors import DiskFullError
from rucola.protocol.command import RemotingCommand
from rucola.runtime.clock import SystemClock
from rucola.testing.clock import ManualClock

QUEUE = PoppedQueue("T", "cg", 0)
FIELDS = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}


async def ack(cluster: Cluster, answer: RemotingCommand, queue_offset: int) -> RemotingCommand:
    return await cluster.ask(ACK, FIELDS | {"offset": str(queue_offset), "extraInfo": receipt(answer, queue_offset)})


async def pop_in_order(
    cluster: Cluster, attempt: str, count: int = 2, poll_ms: int = 0, invisible_ms: int = 60_000
) -> RemotingCommand:
    return await pop(
        cluster, order="true", attemptId=attempt, maxMsgNums=count, pollTime=poll_ms, invisibleTime=invisible_ms
    )


def test_a_queue_is_blocked_until_its_messages_are_acknowledged(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await send(cluster, 5)
            first = await pop_in_order(cluster, "a")
            fields = first.ext_fields
            assert (bodies(first), fields["reviveQid"], fields["orderCountInfo"]) == ([b"0", b"1"], "999", "0 0 0")
            assert (await pop_in_order(cluster, "b")).code == POLLING_TIMEOUT
            again = await pop_in_order(cluster, "a")
            assert (bodies(again), again.ext_fields["orderCountInfo"]) == ([b"0", b"1"], "0 0 0")
            waiting = asyncio.create_task(pop_in_order(cluster, "c", poll_ms=60_000))
            assert (await ack(cluster, again, 0)).code == SUCCESS
            assert (await ack(cluster, first, 1)).code == SUCCESS  # a receipt of an earlier pop has no effect
            assert not waiting.done()
            assert (await ack(cluster, again, 1)).code == SUCCESS
            assert bodies(await waiting) == [b"2", b"3"]
            assert (await ack(cluster, await pop_in_order(cluster, "c"), 4)).code == ILLEGAL

    run_virtual(work())


def test_a_queue_is_free_when_the_time_is_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await send(cluster, 3)
            first = await pop_in_order(cluster, "a", invisible_ms=60_000)
            assert (await ack(cluster, first, 0)).code == SUCCESS
            change = {"offset": "1", "extraInfo": receipt(first, 1), "invisibleTime": "300"}
            asked_ms = SystemClock().wall_ms()
            answer = await cluster.ask(CHANGE, FIELDS | change)
            assert answer.ext_fields["popTime"] == first.ext_fields["popTime"]
            assert int(answer.ext_fields["invisibleTime"]) >= asked_ms + 299 - int(first.ext_fields["popTime"])
            second = await pop_in_order(cluster, "b", poll_ms=60_000)
            assert bodies(second) == [b"1", b"2"]
            assert second.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"

    run_virtual(work())


def test_nothing_acknowledged_comes_again_after_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path / "store", flush_consumer_offset_interval_ms=600_000) as first:
            await send(first, 5)
            answer = await pop_in_order(first, "a", count=3)
            for queue_offset in (0, 1):
                assert (await ack(first, answer, queue_offset)).code == SUCCESS
            shutil.copytree(tmp_path / "store", tmp_path / "copy")
        async with Cluster(tmp_path / "copy") as second:
            assert bodies(await pop_in_order(second, "b", count=9)) == [b"2", b"3", b"4"]

    run_virtual(work())


def test_the_table_is_what_the_file_says() -> None:
    files: list[bytes] = []
    tables = Tables(files.append)
    clock = ManualClock(1_700_000_000_000)
    orders = OrderInfoManager(tables.keep, clock.wall_ms, lambda queue: True)
    orders.popped(QUEUE, "attempt", (1_700_000_000_000, 60_000), [100, 101, 102])
    orders.hide_until(QUEUE, 100, 1_700_000_000_000, 1_700_000_060_000)
    assert orders.acknowledge(QUEUE, 101, 1_700_000_000_000) == 100
    orders.persist()
    orders.persist()
    tables.write()
    orders.persist()
    tables.write()
    (text,) = files
    assert b"".join(text.split()) == (
        b'{"table":{"T@cg":{0:{"a":"attempt","cm":2,"i":60000,"l":1700000000000,"o":[100,1,2],'
        b'"ot":{100:1700000060000},"popTime":1700000000000}}}}'
    )
    again = OrderInfoManager(tables.keep, clock.wall_ms, lambda queue: True)
    again.load(text)
    assert again.table == orders.table
    assert again.blocked_until_ms(QUEUE, "attempt", 5) is None
    assert again.blocked_until_ms(QUEUE, "other", 5) == 1_700_000_060_000
    assert again.acknowledge(QUEUE, 100, 7) == NOTHING_TO_COMMIT
    assert again.acknowledge(QUEUE, 99, 1_700_000_000_000) == UNKNOWN_MESSAGE
    assert again.acknowledge(QUEUE, 100, 1_700_000_000_000) == 102
    assert again.acknowledge(QUEUE, 102, 1_700_000_000_000) == 103


def test_messages_given_out_again_are_counted() -> None:
    orders = OrderInfoManager(keep_nothing(), ManualClock().wall_ms, lambda queue: True)
    for expected, offsets in (("0 0 0", [0, 1]), ("0 qo0%1 1;0 0 0", [1, 2]), ("0 qo0%1 2;0 qo0%2 1;0 0 1", [1, 2])):
        orders.popped(QUEUE, None, (1, 1), offsets)
        answer = PopInfo()
        orders.describe(QUEUE, answer)
        assert answer.order_counts == expected


def test_failed_writes_are_repeated_with_the_next_look() -> None:
    """The thread writes the table as it was when the write began, without later acknowledgements."""
    files: list[bytes] = []
    full = [True]

    def take(text: bytes) -> None:
        if full.pop() if full else False:
            raise DiskFullError("consumerOrderInfo.json", "write", "no space")
        files.append(text)

    tables = Tables(take)
    orders = OrderInfoManager(tables.keep, ManualClock(1).wall_ms, lambda queue: True)
    orders.popped(QUEUE, None, (1, 1), [5, 6])
    infos = order_info_pieces([(queue, info.copy()) for queue, info in orders.table.items()])
    orders.hide_until(QUEUE, 5, 1, 9)
    orders.acknowledge(QUEUE, 6, 1)
    text = b"".join(b"".join(infos).split())
    assert b'"cm":0' in text and b'"ot"' not in text
    orders.persist()
    tables.write()
    assert not files
    orders.persist()
    tables.write()
    assert b'"cm":2' in files[0]
    orders.persist()
    tables.write()
    assert len(files) == 1
