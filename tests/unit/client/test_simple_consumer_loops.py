"""Tests of ``async for`` over a simple consumer, and of its blocking form."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.client.popping import pass_by, popped, popping, popping_from_two, refused
from tests.unit.client.test_simple_consumer_with_broker import come_again

import rucola.sync
from rucola import Message, Producer
from rucola.errors import BrokerError, ClientError
from rucola.testing.event_loop import run_stepped, settle
from rucola.testing.rocketmq import RocketMQ


async def loop(consumer: Any, got: list[int], last: int | None = None) -> None:
    """Leaves the loop after the message at offset ``last``."""
    async for message in consumer:
        got.append(message.queue_offset)
        if message.queue_offset == last:
            break


async def started(work: Any) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(work)
    await settle()
    return task


def test_after_break_the_other_messages_go_to_the_next_loop_or_call():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6, 7, 8)]
            got: list[int] = []
            await loop(consumer, got, 5)
            await loop(consumer, got, 6)
            (message,) = await consumer.receive(1)
            got.append(message.queue_offset)
            assert got == [5, 6, 7]
            assert len(broker.pops) == 1
            assert broker.hidden == broker.acked == []
            await settle()
            await pass_by(1.1)
            assert broker.hidden == [(8, 1_000)]
            assert broker.acked == []

    run_stepped(scene())


@pytest.mark.parametrize("end", ["return", "error", "cancel", "collected", "block"])
def test_a_loop_that_was_left_gives_back_the_rest_after_a_second(end):
    class BodyError(Exception):
        pass

    async def body(consumer: Any) -> None:
        if end == "block":
            async with consumer.messages() as messages:
                async for _ in messages:
                    return
        async for _ in consumer:
            if end == "error":
                raise BodyError
            if end == "cancel":
                await asyncio.sleep(3_600)
            if end == "return":
                return

    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6)]
            if end == "collected":
                iterator = aiter(consumer)
                await anext(iterator)
                await pass_by(3)
                assert broker.hidden == []  # the loop may go on
                del iterator
                gc.collect()
            else:
                task = await started(body(consumer))
                await broker.until(lambda: end == "cancel" or task.done())
                task.cancel()
                with suppress(BodyError, asyncio.CancelledError):
                    await task
            await settle()
            await pass_by(0.5)
            assert broker.hidden == []
            await pass_by(0.6)
            assert broker.hidden == [(6, 1_000)]
            assert broker.acked == []

    run_stepped(scene())


def test_while_a_body_runs_the_other_messages_wait_and_are_not_renewed():
    async def scene() -> None:
        async with popping(auto_renew=True) as (consumer, broker):
            broker.ready = [popped(5, 6, 7)]
            iterator = aiter(consumer)
            first = await anext(iterator)
            await pass_by(9)
            assert broker.hidden == []
            await pass_by(1.1)
            assert broker.hidden == [(5, 20_000)]  # only the message that the body has
            await consumer.ack(first)
            second = await anext(iterator)  # more than half of its invisible time has passed
            assert broker.hidden[1:] == [(6, 20_000)]
            assert second.properties["POP_CK"].startswith("6 1802 20000 ")
            await consumer.ack(second)
            broker.ready = [popped(8)]
            await pass_by(9.95)
            assert (await anext(iterator)).queue_offset == 8  # the invisible time of 7 has ended
            assert broker.hidden[2:] == []

    run_stepped(scene())


def test_a_message_that_cannot_be_hidden_again_is_not_given():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6, 7)]
            iterator = aiter(consumer)
            await anext(iterator)
            await pass_by(11)
            broker.refusals = [refused(1)]
            assert (await anext(iterator)).queue_offset == 7
            assert broker.hidden == [(6, 20_000), (7, 20_000)]

    run_stepped(scene())


def test_two_loops_share_the_messages():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            first, second = aiter(consumer), aiter(consumer)
            waiting = [await started(anext(each)) for each in (first, second)]
            await broker.pops_held(2)
            broker.answer(popped(5, 6))
            await broker.until(waiting[0].done)
            await broker.until(waiting[1].done)
            assert [task.result().queue_offset for task in waiting] == [5, 6]
            for task in waiting:
                task.result()
            waiting = [await started(anext(each)) for each in (first, second)]
            await broker.pops_held(2)  # the second loop's pop went on
            for task in waiting:
                task.cancel()

    run_stepped(scene())


def test_a_loop_goes_on_after_errors_that_pass(caplog):
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [refused(2), refused(1), refused(17), popped(4), refused(2), popped(5)]
            got: list[int] = []
            task = await started(loop(consumer, got, 5))
            for seconds, pops in ((0.0, 1), (0.2, 1), (0.4, 2), (0.5, 2), (0.6, 3), (1.2, 3), (0.9, 4)):
                await pass_by(seconds)
                await broker.until(lambda pops=pops: len(broker.pops) >= pops)
            await pass_by(0.6)
            await task
            assert got == [4, 5]

    run_stepped(scene())
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message.split(" error")[0] for record in logged] == ["receive failed, the loop goes on count=1"] * 4


def test_a_pause_ends_when_messages_arrive():
    async def scene() -> None:
        async with popping_from_two() as (consumer, first, second):
            waiting = await started(consumer.receive())
            await first.pops_held(1)
            await second.pops_held(1)
            waiting.cancel()
            await settle()
            await pass_by(14)
            got: list[int] = []
            consumer._deliveries._pause_s = 4.0
            pausing = await started(consumer._service.pause(4.0))
            first.answer(popped(5))
            await first.until(pausing.done)
            await loop(consumer, got, 5)
            assert got == [5]

    run_stepped(scene())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refused(3, "not supported"), "does not support POP"),
        (refused(16, "AclException: wrong signature"), "AclException"),
        (None, "no subscription"),
    ],
)
def test_errors_that_do_not_pass_end_a_loop(answer, error):
    async def scene() -> None:
        async with popping("T" if answer else "") as (consumer, broker):
            broker.ready = [answer]
            with pytest.raises(BrokerError if "Acl" in error else ClientError, match=error):
                await loop(consumer, [])

    run_stepped(scene())


def test_a_loop_waits_for_its_topic():
    async def scene() -> None:
        async with popping("missing") as (consumer, broker):
            got: list[int] = []
            task = await started(loop(consumer, got, 5))
            await pass_by(0.6)
            broker.script.topics["missing"] = 1
            broker.ready = [popped(5)]
            await pass_by(1.1)
            await broker.until(task.done)
            assert got == [5]

    run_stepped(scene())


def test_after_unsubscribe_a_loop_gets_no_more_messages_of_the_topic():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6)]
            iterator = aiter(consumer)
            message = await anext(iterator)
            await consumer.subscribe("U")
            await consumer.unsubscribe("T")
            waiting = await started(anext(iterator))
            await broker.pops_held(1)
            assert broker.hidden == [(6, 1_000)]
            broker.answer(popped(9))
            assert (await waiting).topic == "U"
            await consumer.ack(message)
            assert broker.acked == [5]

    run_stepped(scene())


def test_a_loop_waits_while_nothing_is_subscribed(caplog):
    async def scene() -> None:
        async with popping() as (consumer, broker):
            got: list[int] = []
            task = await started(loop(consumer, got, 9))
            await broker.pops_held(1)
            await consumer.unsubscribe("T")
            await pass_by(20)
            assert not task.done()
            assert len(consumer._service._calls) == 1
            await consumer.subscribe("U")
            await broker.pops_held(2)
            broker.answer(popped(9), 1)
            await task
            assert got == [9]

    run_stepped(scene())
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_shutdown_in_a_body_ends_the_loop_after_this_body():
    async def scene() -> None:
        async with popping() as (consumer, broker):
            broker.ready = [popped(5, 6, 7)]
            got = []
            async for message in consumer:
                got.append(message.queue_offset)
                if message.queue_offset == 6:
                    await consumer.shutdown()
                await consumer.ack(message)
            assert got == broker.acked == [5, 6]
            assert broker.hidden == [(7, 1_000)]
            with pytest.raises(ClientError, match="shut down"):
                await consumer.ack(message)
            with pytest.raises(ClientError, match="shut down"):
                await anext(aiter(consumer))
            with pytest.raises(ClientError, match="cannot be started again"):
                await consumer.start()

    run_stepped(scene())


def test_a_shutdown_waits_for_bodies_and_their_acks():
    async def scene() -> None:
        async with popping(await_termination_ms=5_000) as (consumer, broker):
            broker.ready = [popped(5, 6)]
            goes_on = asyncio.Event()

            async def work() -> None:
                async for message in consumer:
                    await goes_on.wait()
                    await consumer.ack(message)

            working = await started(work())
            await broker.until(lambda: consumer._deliveries.has_bodies)
            closing = await started(consumer.shutdown())
            await pass_by(4)
            assert not closing.done()
            assert broker.hidden == [(6, 1_000)]
            goes_on.set()
            await asyncio.gather(working, closing)
            assert broker.acked == [5]

    run_stepped(scene())


def test_a_shutdown_waits_for_a_body_only_for_its_time():
    async def scene() -> None:
        async with popping(await_termination_ms=5_000) as (consumer, broker):
            broker.ready = [popped(5, 6)]
            goes_on = asyncio.Event()
            refusals = []

            async def work() -> None:
                async for message in consumer:
                    await goes_on.wait()
                    try:
                        await consumer.ack(message)
                    except ClientError as error:
                        refusals.append(str(error))

            working = await started(work())
            await broker.until(lambda: consumer._deliveries.has_bodies)
            closing = await started(consumer.shutdown())
            await pass_by(4)
            assert not closing.done()
            await pass_by(1.1)
            await closing
            goes_on.set()
            await working
            assert refusals == ["the simple consumer is not started, or is shut down"]

    run_stepped(scene())


def test_a_block_that_an_error_ends_does_not_wait_for_its_loop():
    async def scene() -> None:
        broker = None
        with pytest.raises(ZeroDivisionError):
            async with popping() as (consumer, broker):
                broker.ready = [popped(5, 6)]
                async with consumer:
                    async for _ in consumer:
                        raise ZeroDivisionError
        assert broker is not None
        assert broker.hidden == [(6, 1_000)]

    run_stepped(scene())


def test_an_iterator_of_a_consumer_that_is_not_started():
    async def scene() -> None:
        with pytest.raises(ClientError, match="not started"):
            await anext(aiter(rucola.SimpleConsumer("cg", "127.0.0.1:9", topics=["T"])))

    run_stepped(scene())


def test_a_loop_goes_on_after_a_restart_of_the_broker(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        rocketmq.create_topic("T", queues=1)
        consumer = rucola.SimpleConsumer("cg", rocketmq.namesrv, topics=["T"])
        got: list[int] = []
        async with consumer, Producer("pg", rocketmq.namesrv) as producer, asyncio.timeout(60):
            await producer.send(Message("T", b"before"))
            task = asyncio.ensure_future(loop(consumer, got, 1))
            while not got:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(rocketmq.kill)
            await asyncio.to_thread(rocketmq.start)
            await producer.send(Message("T", b"after"))
            await task
            assert got == [0, 1]

    run_stepped(scene())


def test_blocking_loops(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("T", queues=1)
    with rucola.sync.Producer("pg", rocketmq.namesrv) as producer:
        producer.send_batch([Message("T", b"%d" % number) for number in range(6)])
    consumer = rucola.sync.SimpleConsumer("cg", rocketmq.namesrv, topics=["T"])
    got = []
    with consumer:
        for message in consumer:
            got.append(message.body)
            consumer.ack(message)
            if len(got) == 2:
                break
        with consumer.messages() as messages:
            for message in messages:
                got.append(message.body)
                consumer.ack(message)
                break
        ended = threading.Event()

        def work() -> None:
            for message in consumer:
                got.append(message.body)
                consumer.ack(message)
                if len(got) == 6:
                    closer.start()
            ended.set()

        closer = threading.Thread(target=consumer.shutdown)
        worker = threading.Thread(target=work)
        worker.start()
        assert ended.wait(20)
        worker.join()
        closer.join()
    assert got == [b"%d" % number for number in range(6)]
    assert come_again(rocketmq) == 0
