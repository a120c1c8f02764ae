"""A task or thread that ends with messages in its hands: who waits for messages gets them, at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.brokers import Cluster
from tests.unit.client.test_loops_with_broker import ALL, first, made, rest, scene_of, until

from rucola import LitePullConsumer, Message, Producer, SimpleConsumer, sync
from rucola.client import caller


def failing(error: BaseException | None) -> Any:
    """A task that polls, waits for ``go``, and then ends."""

    async def work(consumer: LitePullConsumer, got: list[bytes], go: asyncio.Event) -> None:
        while not got:
            got += [message.body for message in await consumer.poll(5_000)]
        await go.wait()
        if error is not None:
            raise error

    return work


@pytest.mark.parametrize("waits", ["poll", "loop"])
@pytest.mark.parametrize("end", ["error", "cancel", "success"])
def test_messages_polled_by_an_ended_task_go_to_one_that_waits(tmp_path, waits, end):
    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []
        go = asyncio.Event()
        async with made("lite", servers, pull_batch_size=len(ALL)) as one, asyncio.timeout(15):
            task = asyncio.ensure_future(failing(ValueError() if end == "error" else None)(one, got, go))
            await until(lambda: got)
            waiter = asyncio.ensure_future(one.poll(60_000) if waits == "poll" else first(one))
            await asyncio.sleep(0.05)
            task.cancel() if end == "cancel" else go.set()
            await asyncio.wait([task])
            if end == "success":
                await producer.send(Message("T", b"next"))
            found = await waiter
            wanted = b"next" if end == "success" else got[0]
            assert (found[0].body if waits == "poll" else found) == wanted
            assert task.cancelled() or (task.exception() is None) == (end == "success")

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "orderly", "lite"])
def test_a_kept_iterator_does_not_keep_the_message_of_a_failed_task(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        async def loop(consumer: Any) -> None:
            messages = aiter(consumer)
            async for _ in messages:
                raise ValueError

        one = made(kind, servers)
        await one.start()
        ended = asyncio.ensure_future(loop(one))  # keeps the frame of the loop, and with it the iterator
        await asyncio.wait([ended])
        async with asyncio.timeout(15):
            assert await first(one) == ALL[0]
            await one.shutdown()
        assert isinstance(ended.exception(), ValueError)
        assert await rest(kind, servers) == ALL[1:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("call", ["poll", "anext"])
def test_a_task_that_only_carried_a_call_does_not_make_its_messages_done(tmp_path, call):
    """The messages are still being handled by whoever awaited the task, as with ``asyncio.wait_for`` in Python 3.11."""

    async def work(servers: Cluster, producer: Producer) -> None:
        async with made("lite", servers) as one, asyncio.timeout(15):
            messages = aiter(one)

            async def carry() -> None:
                await (one.poll(10_000) if call == "poll" else anext(messages))

            await asyncio.ensure_future(carry())
            for _ in range(5):
                await asyncio.sleep(0)
            (queue,) = [queue for queue in one.assignment if one.position(queue)]
            assert one._service.assigned(queue).committable == 0
            await (one.poll(0) if call == "poll" else anext(messages))
            assert one._service.assigned(queue).committable > 0

    scene_of(tmp_path, work)


def test_the_shutdown_of_a_simple_consumer_does_not_wait_for_an_ended_task(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        async def loop(consumer: Any) -> None:
            messages = aiter(consumer)
            async for _ in messages:
                raise ValueError

        one = SimpleConsumer("sg", servers.namesrv.address, topics=["T"])
        await one.start()
        ended = asyncio.ensure_future(loop(one))
        await asyncio.wait([ended])
        async with asyncio.timeout(10):
            await one.shutdown()
        assert isinstance(ended.exception(), ValueError)

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["orderly", "lite", "poll"])
def test_a_thread_that_ends_gives_its_messages_back(tmp_path, monkeypatch, kind, recwarn):
    monkeypatch.setattr(caller, "LOOK_S", 0.02)

    def program(servers: Cluster) -> None:
        local = threading.local()

        def end_with_a_message() -> None:
            if kind == "poll":
                while not consumer.poll(5_000):
                    pass
            else:
                local.iterator = iter(consumer)
                next(local.iterator)

        with made("lite" if kind == "poll" else kind, servers, face=sync, pull_batch_size=len(ALL)) as consumer:
            thread = threading.Thread(target=end_with_a_message)
            thread.start()
            thread.join()
            found: list[bytes] = []
            messages = iter(consumer)
            while len(found) < len(ALL):
                found += [one.body for one in (consumer.poll(10_000) if kind == "poll" else [next(messages)])]
            assert found == ALL

    async def work(servers: Cluster, producer: Producer) -> None:
        async with asyncio.timeout(30):
            await asyncio.to_thread(program, servers)

    scene_of(tmp_path, work)
    assert not [one for one in recwarn if "call stack" in str(one.message)]
