"""The lite pull consumer with our broker, and with a scripted broker if the clock or the wire matters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster
from tests.unit.client.consuming import cluster, record, send
from tests.unit.client.test_push_consumer import Script, pulled

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    MessageSelector,
    Producer,
)
from rucola.client.lite_pull_service import AssignedQueue
from rucola.errors import BrokerError, ClientError
from rucola.testing.event_loop import advance, run_stepped, settle

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE = MessageQueue("T", "broker-a", 0)


def consumer(address: str, **options: Any) -> LitePullConsumer:
    return LitePullConsumer("cg", address, LitePullConsumerConfig(**{"consume_from_where": FIRST} | options))


@asynccontextmanager
async def filled(path: Path, count: int = 10, **options: Any) -> AsyncIterator[tuple[Cluster, Producer, MessageQueue]]:
    """Starts a broker with ``count`` messages in one queue."""
    async with cluster(path, **options) as (servers, producer):
        queue = (await producer.message_queues("T"))[0]
        for number in range(count):
            await producer.send(Message("T", b"%d" % number, tags="AB"[number % 2]), queue)
        yield servers, producer, queue


async def bodies(one: LitePullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [message.body for message in await one.poll()]
    return found


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_subscribed_messages_are_polled_and_progress_follows(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, _, queue):
            one = consumer(servers.namesrv.address, pull_batch_size=4)
            await one.subscribe("T")
            async with one:
                assert await bodies(one, 10) == numbers(0, 10)
                assert one.position(queue) == 10
                assert len(one.assignment) == 4
                assert await one.poll(0) == []
                await one.commit()
                assert await one.committed(queue) == 10

    run_stepped(scene())


def test_messages_of_the_last_poll_are_consumed_unless_the_block_failed(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, _, queue):

            async def part(fails: bool) -> list[bytes]:
                found = []
                one = consumer(servers.namesrv.address, pull_batch_size=2)
                await one.assign([queue])
                try:
                    async with one:
                        found += await bodies(one, 2)
                        found += await bodies(one, 2)
                        if fails:
                            raise OSError("application")
                except OSError:
                    pass
                return found

            assert await part(True) == numbers(0, 4)
            assert await part(False) == numbers(2, 6)
            assert await part(False) == numbers(6, 10)

    run_stepped(scene())


def test_without_auto_commit_only_commit_stores(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, _, queue):
            for begins_at, commits in ((0, None), (0, 3), (3, None)):
                one = consumer(servers.namesrv.address, auto_commit=False)
                await one.assign([queue])
                async with one:
                    assert (await bodies(one, 1))[0] == b"%d" % begins_at
                    with pytest.raises(ClientError, match="not assigned"):
                        await one.commit({MessageQueue("T", "elsewhere", 0): 3})
                    if commits is not None:
                        await one.commit({queue: commits})
                        assert await one.committed(queue) == commits

    run_stepped(scene())


def test_seeking(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, producer, queue):
            one = consumer(servers.namesrv.address)
            await one.assign([queue])
            async with one:
                assert await bodies(one, 10) == numbers(0, 10)
                await one.seek(queue, 7)
                assert await bodies(one, 3) == numbers(7, 10)
                await one.seek_to_begin(queue)
                assert (await bodies(one, 10))[:2] == numbers(0, 2)
                await one.seek_to_end(queue)
                await producer.send(Message("T", b"new"), queue)
                assert await bodies(one, 1) == [b"new"]
                await one.seek_to_time(queue, 0)
                assert (await bodies(one, 11))[0] == b"0"
                await one.seek_to_time(queue, 1 << 45)
                assert one.position(queue) in (10, 11)  # last message or end of the queue: the broker decides
                for offset in (-1, 12):
                    with pytest.raises(ClientError, match="queue_offset"):
                        await one.seek(queue, offset)
                with pytest.raises(ClientError, match="not assigned"):
                    await one.seek(MessageQueue("T", queue.broker_name, 1), 0)

    run_stepped(scene())


def test_messages_pulled_before_a_seek_are_not_given(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, _, queue):
            one = consumer(servers.namesrv.address, pull_batch_size=2)
            await one.assign([queue])
            async with one:
                assert await bodies(one, 2) == numbers(0, 2)
                async with asyncio.timeout(5):
                    while len(one._service.queues[queue]) < 10:
                        await asyncio.sleep(0.01)
                await one.seek(queue, 8)
                assert await bodies(one, 2) == numbers(8, 10)

    run_stepped(scene())


def test_a_paused_queue_is_left_out(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path, 3) as (servers, producer, queue):
            other = (await producer.message_queues("T"))[1]
            await producer.send(Message("T", b"other"), other)
            one = consumer(servers.namesrv.address)
            await one.assign([queue, other])
            one.pause([queue])
            async with one:
                assert await bodies(one, 1) == [b"other"]
                assert await one.poll(50) == []
                one.resume([queue])
                assert await bodies(one, 3) == numbers(0, 3)
                await producer.send(Message("T", b"late"), queue)
                await asyncio.sleep(0.05)
                one.pause([queue])  # these messages may be pulled already, but are not returned
                assert await one.poll(50) == []
                one.resume([queue])
                assert await bodies(one, 1) == [b"late"]

    run_stepped(scene())


def test_tags_and_sql(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path, 4, enable_property_filter=True) as (servers, _, queue):
            one = consumer(servers.namesrv.address)
            await one.assign([queue], "B")
            async with one:
                assert await bodies(one, 2) == [b"1", b"3"]
            two = LitePullConsumer("other", servers.namesrv.address, LitePullConsumerConfig(consume_from_where=FIRST))
            await two.subscribe("T", MessageSelector.by_sql("TAGS = 'A'"))
            async with two:
                assert await bodies(two, 2) == [b"0", b"2"]
            three = consumer(servers.namesrv.address)
            await three.subscribe("T", MessageSelector.by_sql("n >"))
            with pytest.raises(BrokerError):
                await three.start()

    run_stepped(scene())


def test_other_queues_can_be_assigned_later(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path, 2) as (servers, producer, queue):
            other = (await producer.message_queues("T"))[1]
            await producer.send(Message("T", b"other"), other)
            one = consumer(servers.namesrv.address)
            await one.assign([queue])
            async with one:
                assert await bodies(one, 2) == numbers(0, 2)
                await one.assign([other])
                assert one.assignment == [other]
                assert await bodies(one, 1) == [b"other"]

    run_stepped(scene())


def test_a_loop_over_messages(tmp_path):
    async def scene() -> None:
        async with filled(tmp_path) as (servers, _, queue):
            one = consumer(servers.namesrv.address, pull_batch_size=3)
            await one.assign([queue])
            found = []
            async with one:
                async for message in one:
                    found.append(message.body)
                    if len(found) == 10:
                        break
            assert found == numbers(0, 10)

    run_stepped(scene())


def test_two_share_the_queues(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0")
            one, two = (consumer(servers.namesrv.address) for _ in range(2))
            for each in (one, two):
                await each.subscribe("T")
            async with one:
                async with asyncio.timeout(20):
                    while len(one.assignment) < 4:
                        await asyncio.sleep(0.05)
                    async with two:
                        while (len(one.assignment), len(two.assignment)) != (2, 2):
                            await asyncio.sleep(0.05)
                        assert not set(one.assignment) & set(two.assignment)
                    while len(one.assignment) < 4:
                        await asyncio.sleep(0.05)

    run_stepped(scene())


def test_wrong_uses(tmp_path):
    async def scene() -> None:
        one = consumer("127.0.0.1:1")
        with pytest.raises(ClientError, match="not started"):
            await one.poll()
        with pytest.raises(ClientError, match="at least one queue"):
            await one.assign([])
        with pytest.raises(ClientError, match="must be a MessageQueue"):
            await one.assign(["T"])
        await one.assign([QUEUE])
        for call in (one.seek_to_time, one.offset_for_time):
            for moment in (math.nan, datetime.now(UTC)):
                with pytest.raises(ClientError, match="timestamp_ms must be a whole number, not "):
                    await call(QUEUE, moment)
        with pytest.raises(ClientError, match="cannot subscribe"):
            await one.subscribe("T")
        two = consumer("127.0.0.1:1")
        await two.subscribe("T")
        with pytest.raises(ClientError, match="subscribed to topics"):
            await two.assign([QUEUE])
        with pytest.raises(ClientError, match="consumer offset"):
            await one.start()
        with pytest.raises(ClientError, match="cannot be started again"):
            await one.start()

    run_stepped(scene())


@asynccontextmanager
async def scripted(broker: Any, **options: Any) -> AsyncIterator[Script]:
    """Yields a consumer that has one queue assigned and is not started yet, with its scripted broker."""
    async with broker(topics={"T": 1}) as one:
        made = consumer(one.address, **options)
        await made.assign([QUEUE])
        script = Script(one, made)
        script.broker.scripts[361] = [script._on_11] * 20
        try:
            yield script
        finally:
            await made.shutdown()


@pytest.mark.parametrize(("auto_commit", "stored"), [(True, [5]), (False, [])])
def test_progress_of_a_queue_that_goes_is_stored_at_once(broker, auto_commit, stored):
    async def scene() -> None:
        async with scripted(broker, auto_commit=auto_commit) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4))]
            await it.consumer.start()
            assert len(await it.consumer.poll()) == 2
            assert await it.consumer.poll(0) == []
            assert await it.consumer._service.remove_queue(QUEUE)
            assert it.commits == stored
            assert it.consumer._service.queues == {}

    run_stepped(scene())


def test_requests_have_these_fields(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4))]
            await it.consumer.start()
            await it.pulled(2)
            assert it.pulls[0] == {
                "consumerGroup": "cg",
                "topic": "T",
                "queueId": "0",
                "queueOffset": "3",
                "maxMsgNums": "10",
                "sysFlag": "22",
                "commitOffset": "0",
                "suspendTimeoutMillis": "20000",
                "subVersion": "0",
                "subscription": "*",
                "expressionType": "TAG",
                "bname": "broker-a",
            }
            assert it.pulls[1]["queueOffset"] == "5"
            # a consumer with assigned queues does not join the group, because it would take queues from its members
            assert all(not beat.consumer_data_set for beat in it.broker.heartbeats())

    run_stepped(scene())


def test_a_broker_before_5_0_is_asked_as_it_knows_it(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            it.broker.scripts[361] = [lambda command: command.answer(3, " request type 361 not supported")]
            it.answers = [pulled(0, 1, record(0))]
            await it.consumer.start()
            await it.pulled(2)
            assert [one["sysFlag"] for one in it.pulls] == ["22", "22"]
            assert [code for code in it.broker.codes() if code in (11, 361)] == [361, 11, 11]
            assert len(await it.consumer.poll()) == 1

    run_stepped(scene())


def test_progress_is_stored_every_5_s_one_poll_late(broker):
    async def scene() -> None:
        async with scripted(broker, pull_batch_size=1) as it:
            it.answers = [pulled(0, 1, record(0)), pulled(0, 2, record(1))]
            await it.consumer.start()
            await it.pulled(3)
            assert len(await it.consumer.poll()) == 1
            advance(5.1)
            await it.broker.until(lambda: len(it.commits) == 1)
            assert len(await it.consumer.poll()) == 1
            await settle()
            advance(5.1)
            await it.broker.until(lambda: len(it.commits) == 2)
            assert it.commits == [0, 1]
            await it.consumer.shutdown()
            assert it.commits[-1] == 2

    run_stepped(scene())


def test_an_illegal_offset_moves_on(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            it.answers = [pulled(21, 40), lambda command: command.answer(1, "busy")]
            await it.consumer.start()
            await it.pulled(2)
            await settle()
            advance(3.1)
            await it.pulled(3)
            assert [one["queueOffset"] for one in it.pulls] == ["0", "40", "40"]

    run_stepped(scene())


def test_a_queue_that_goes_back_drops_what_was_fetched_and_one_that_goes_forward_keeps_it(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4)), pulled(21, 20), pulled(21, 0), pulled(0, 1, record(0))]
            await it.consumer.start()
            await it.pulled(5)
            assert [one["queueOffset"] for one in it.pulls] == ["3", "5", "20", "0", "1"]
            assert [message.queue_offset for message in await it.consumer.poll()] == [0]
            await it.consumer.commit()
            assert it.commits[-1] == 1

    run_stepped(scene())


def test_messages_that_are_fetched_outlive_their_expiry_at_the_broker(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4)), pulled(21, 20)]
            await it.consumer.start()
            await it.pulled(3)
            assert [message.queue_offset for message in await it.consumer.poll()] == [3, 4]
            assert await it.consumer.poll(0) == []
            assert it.consumer.position(QUEUE) == 20
            await it.consumer.shutdown()
            assert it.commits[-1] == 20

    run_stepped(scene())


@pytest.mark.parametrize("limit", ["pull_threshold_for_queue", "pull_threshold_for_all", "consume_max_span"])
def test_pulling_waits_for_polls(broker, limit):
    async def scene() -> None:
        async with scripted(broker, **{limit: 1}) as it:
            it.answers = [pulled(0, 3, record(0) + record(1) + record(2))]
            await it.consumer.start()
            await it.pulled(1)
            await settle(50)
            assert len(it.pulls) == 1
            assert len(await it.consumer.poll()) == 3
            await settle(50)
            assert len(it.pulls) == 1  # the messages are still in memory
            assert await it.consumer.poll(0) == []
            await it.pulled(2)

    run_stepped(scene())


def test_a_poll_may_be_cancelled_and_waits_no_longer_than_told(broker):
    async def scene() -> None:
        async with scripted(broker) as it:
            held: list[Any] = []
            it.answers = [held.append]
            await it.consumer.start()
            await it.pulled(1)
            polling = asyncio.ensure_future(it.consumer.poll(3_600_000))
            await settle()
            polling.cancel()
            waiting = asyncio.ensure_future(it.consumer.poll(20_000))
            await settle()
            advance(19)
            await settle()
            assert not waiting.done()
            advance(2)
            assert await waiting == []
            it.broker.channels[0].send(pulled(0, 1, record(0))(held[0]).encode())
            assert len(await it.consumer.poll(1_000)) == 1

    run_stepped(scene())


def test_a_queue_has_one_task_that_pulls_and_ends_it() -> None:
    async def scene() -> None:
        assigned = AssignedQueue(QUEUE, 0, 0.0, is_paused=False)
        assigned.stop_reading()
        task = asyncio.create_task(asyncio.sleep(9))
        assigned.read_by(task)
        assigned.stop_reading()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_stepped(scene())
