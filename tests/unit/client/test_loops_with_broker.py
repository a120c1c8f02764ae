"""Loops and polls of the consumers with our broker, at every way in which they end. A later consumer of the group shows
what was stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run_virtual
from tests.unit.client.consuming import cluster

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    sync,
)
from rucola.client import lite_pull_service, push_service
from rucola.client.admin import AdminClient
from rucola.errors import ClientError

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
KINDS = ("push", "orderly", "lite")
COUNT = 8
ALL = [b"%d" % number for number in range(COUNT)]


def made(kind: str, servers: Cluster, group: str = "cg", face: Any = None, **options: Any) -> Any:
    """A consumer of topic T, not started."""
    if kind == "lite":
        lite = LitePullConsumerConfig(**{"consume_from_where": FIRST} | options)
        return (face.LitePullConsumer if face else LitePullConsumer)(group, servers.namesrv.address, lite, topics=["T"])
    push = PushConsumerConfig(**{"consume_from_where": FIRST, "consume_orderly": kind == "orderly"} | options)
    return (face.PushConsumer if face else PushConsumer)(group, servers.namesrv.address, push, topics=["T"])


async def fill(producer: Producer, bodies: list[bytes]) -> None:
    """Sends messages to one queue, in order."""
    queue = (await producer.message_queues("T"))[0]
    for body in bodies:
        await producer.send(Message("T", body), queue)


async def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def rest(kind: str, servers: Cluster) -> list[bytes]:
    """What the next consumer of the group gets: everything that is not stored as consumed."""
    found: list[bytes] = []
    await finish(servers, found, kind)
    return found


async def finish(servers: Cluster, found: list[bytes], kind: str) -> None:
    """Sends a last message, and collects what comes before it."""
    async with Producer("last", servers.namesrv.address) as producer:
        await fill(producer, [b"last"])
    async with made(kind, servers) as one, asyncio.timeout(15):
        async for message in one:
            if message.body == b"last":
                break
            found.append(message.body)


async def first(consumer: Any) -> bytes:
    """Takes one message, as a program does that handles one job at a time."""
    async for message in consumer:
        return bytes(message.body)
    raise AssertionError("the loop has ended")


def scene_of(tmp_path: Path, work: Callable[[Cluster, Producer], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await fill(producer, ALL)
            await work(servers, producer)

    run_virtual(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_one_message_a_loop_gets_each_message_once(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with made(kind, servers) as one, asyncio.timeout(15):
            assert [await first(one) for _ in range(COUNT - 3)] == ALL[:-3]
        assert await rest(kind, servers) == ALL[-3:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_whose_body_failed_comes_again_at_once_and_in_its_place(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        handled: list[bytes] = []
        failed = False

        async def loop(consumer: Any) -> None:
            nonlocal failed
            async for message in consumer:
                if message.body == b"3" and not failed:
                    failed = True
                    raise ValueError("the application's error")
                handled.append(message.body)
                if message.body == b"5":
                    return

        async with made(kind, servers) as one, asyncio.timeout(15):
            with pytest.raises(ValueError, match="application"):
                await loop(one)
            await loop(one)
        assert handled == ALL[:6]
        assert await rest(kind, servers) == ALL[6:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_body_has_not_handled_its_message(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        given: list[bytes] = []

        async def loop(consumer: Any) -> None:
            async for message in consumer:
                given.append(message.body)
                if message.body == b"2":
                    await asyncio.sleep(60)

        async with made(kind, servers) as one:
            task = asyncio.ensure_future(loop(one))
            await until(lambda: given[-1:] == [b"2"])
            task.cancel()
            await asyncio.wait([task])
        assert await rest(kind, servers) == ALL[2:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_consumers_block_settles_a_kept_iterator(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with made(kind, servers) as one, asyncio.timeout(15):
            kept = aiter(one)
            assert [(await anext(kept)).body for _ in range(3)] == ALL[:3]
        with suppress(OSError):
            async with made(kind, servers) as one, asyncio.timeout(15):
                kept = aiter(one)
                assert [(await anext(kept)).body for _ in range(3)] == ALL[3:6]
                raise OSError
        assert await rest(kind, servers) == ALL[5:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_in_a_body_ends_the_loop_after_it_and_counts_its_message(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        one, got = made(kind, servers), []
        await one.start()
        async with asyncio.timeout(15):
            async for message in one:
                got.append(message.body)
                if len(got) == 3:
                    await one.shutdown()
                    with pytest.raises(ClientError):
                        await anext(aiter(one))
        assert got == ALL[:3]
        assert not servers.broker.services.consumers.groups()  # the loop ends when the consumer is closed
        assert await rest(kind, servers) == ALL[3:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body_fails", [False, True])
def test_shutdown_of_another_task_waits_for_the_body_and_settles_it(tmp_path, kind, body_fails):
    async def work(servers: Cluster, producer: Producer) -> None:
        one, got, may_end = made(kind, servers), [], asyncio.Event()

        async def loop() -> None:
            async for message in one:
                got.append(message.body)
                if len(got) == 3:
                    await may_end.wait()
                    if body_fails:
                        raise OSError

        await one.start()
        looping = asyncio.ensure_future(loop())
        await until(lambda: len(got) == 3)
        closing = [asyncio.ensure_future(one.shutdown()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in closing)
        closing[0].cancel()  # the shutdown goes on
        may_end.set()
        async with asyncio.timeout(10):
            await closing[1]
            await asyncio.wait([looping])
        assert isinstance(looping.exception(), OSError) == body_fails
        assert got == ALL[:3]
        assert await rest(kind, servers) == ALL[2:] if body_fails else ALL[3:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_ends_the_block_does_not_wait_for_the_bodies_of_other_tasks(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []

        async def slow(consumer: Any) -> None:
            async for message in consumer:
                got.append(message.body)
                await asyncio.sleep(60)

        looping = []
        with pytest.raises(OSError, match="application"):
            async with asyncio.timeout(15), made(kind, servers) as one:
                looping.append(asyncio.ensure_future(slow(one)))
                await until(lambda: got)
                raise OSError("application")
        looping[0].cancel()
        await asyncio.wait(looping)
        assert await rest(kind, servers) == ALL

    scene_of(tmp_path, work)


def test_two_loops_do_not_commit_each_others_messages(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        given: dict[str, list[bytes]] = {"slow": [], "fast": []}

        async def loop(consumer: Any, name: str) -> None:
            async for message in consumer:
                given[name].append(message.body)
                await consumer.commit()
                if name == "slow":
                    await asyncio.sleep(60)

        async def commit_only_mine(consumer: Any) -> None:
            async for message in consumer:
                given["fast"].append(message.body)
                await consumer.commit()

        one = made("lite", servers)
        with suppress(OSError):
            async with one:
                queue = None
                async for message in one:  # holds the first message while others commit
                    queue = message
                    tasks = [asyncio.ensure_future(commit_only_mine(one))]
                    await until(lambda: len(given["fast"]) == COUNT - 1)
                    [owner] = [each for each in one.assignment if each.queue_id == message.queue_id]
                    assert await one.committed(owner) == 0
                    tasks[0].cancel()
                    await asyncio.wait(tasks)
                    raise OSError
                assert queue is not None
        assert await rest("lite", servers) == ALL

    scene_of(tmp_path, work)


def test_commit_in_a_loop_commits_what_the_loop_was_given(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        with suppress(OSError):
            async with made("lite", servers, auto_commit=False) as one:
                async for message in one:
                    await one.commit()
                    if message.body == b"2":
                        raise OSError  # a crash after the commit of this message
        assert await rest("lite", servers) == ALL[3:]

    scene_of(tmp_path, work)


def test_a_seek_in_the_body_takes_effect_with_the_next_message(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []
        async with made("lite", servers) as one, asyncio.timeout(15):
            async for message in one:
                got.append(message.body)
                [queue] = [each for each in one.assignment if each.queue_id == message.queue_id]
                if len(got) == 2:
                    await one.seek(queue, 6)
                if len(got) == 3:
                    assert one.position(queue) == 7
                    await one.seek_to_begin(queue)
                if len(got) == 4:
                    break
        assert got == [b"0", b"1", b"6", b"0"]
        assert await rest("lite", servers) == ALL[1:]

    scene_of(tmp_path, work)


def test_a_poll_settles_only_what_its_task_polled(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        with suppress(OSError):
            async with made("lite", servers, pull_batch_size=2) as one:

                async def bodies() -> list[bytes]:
                    found: list[bytes] = []
                    while not found:
                        found = [message.body for message in await asyncio.wait_for(one.poll(), 10)]
                    return found

                async def fails() -> None:
                    assert await bodies() == ALL[2:4]
                    raise OSError

                assert await bodies() == ALL[:2]
                with pytest.raises(OSError):
                    await asyncio.ensure_future(fails())
                assert await bodies() == ALL[2:4]  # the task that had them failed
                assert await bodies() == ALL[4:6]
                raise OSError
        assert await rest("lite", servers) == ALL[4:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("way", ["seek", "pause", "unsubscribe"])
def test_any_room_lets_other_queues_be_pulled(tmp_path, way):
    async def work(servers: Cluster, producer: Producer) -> None:
        one = made("lite", servers, pull_threshold_for_all=COUNT // 2, pull_batch_size=COUNT)
        async with one:
            await until(lambda: len(one.assignment) == 4)
            full = min(one.assignment)
            await until(lambda: len(one._service.queues[full]) == COUNT)
            await producer.send(Message("Other", b"other"))
            await one.subscribe("Other")
            await until(lambda: len(one.assignment) > 4)
            if way == "seek":
                await one.seek_to_end(full)
            elif way == "pause":
                one.pause([full])
            else:
                await one.unsubscribe("T")
            async with asyncio.timeout(10):
                async for message in one:
                    assert message.body == b"other"
                    break

    scene_of(tmp_path, work)


def test_progress_goes_on_where_the_filter_matches_nothing(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        one = LitePullConsumer("cg", servers.namesrv.address, LitePullConsumerConfig(consume_from_where=FIRST))
        await one.subscribe("T", "rare")
        async with one, PullConsumer("watch", servers.namesrv.address) as watcher:
            await until(lambda: one.assignment)
            queue = min(one.assignment)
            await until(lambda: one.position(queue) == COUNT)
        async with PullConsumer("cg", servers.namesrv.address) as watcher:
            await watcher.message_queues("T")
            assert await watcher.committed(queue) == COUNT

    scene_of(tmp_path, work)


@pytest.mark.parametrize("listening", [False, True])
def test_an_orderly_queue_is_handled_once_at_a_time_over_resets_and_leaves_no_task(tmp_path, listening):
    async def work(servers: Cluster, producer: Producer) -> None:
        running, most, calls, may_end = 0, 0, 0, asyncio.Event()

        async def handle(message: MessageExt) -> None:
            nonlocal running, most, calls
            running, calls = running + 1, calls + 1
            most = max(most, running)
            if calls == 1:
                await may_end.wait()
            running -= 1

        async def loop() -> None:
            async for message in one:
                await handle(message)

        one = made("orderly", servers)
        if listening:
            one.register_message_listener(handle)
        async with one, AdminClient(servers.namesrv.address) as admin:
            loops = [] if listening else [asyncio.ensure_future(loop()) for _ in range(2)]
            await until(lambda: calls == 1)
            before = len(asyncio.all_tasks())
            for _ in range(3):
                await admin.reset_offsets("cg", "T", 0, True)
            await asyncio.sleep(1.2)  # a round of the rebalance, which would add the queue again
            assert calls == 1
            may_end.set()
            await until(lambda: calls >= COUNT + 1)
            assert most == 1
            await until(lambda: len(asyncio.all_tasks()) <= before)
        await asyncio.gather(*loops)

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_an_unsubscribed_topic_comes_after_unsubscribe(tmp_path, kind, caplog):
    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []

        async def loop() -> None:
            async for message in one:
                got.append(message.body)
                if len(got) == 3:
                    await one.unsubscribe("T")
                    await fill(producer, [b"later"])

        async with made(kind, servers) as one:
            looping = asyncio.ensure_future(loop())
            await until(lambda: len(got) == 3)
            await until(lambda: not any(queue.topic == "T" for queue in one.assignment))
            assert got == ALL[:3]
            await one.subscribe("T")
            await until(lambda: b"later" in got)
            assert sorted(set(got)) == [*ALL, b"later"]
        await looping
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    scene_of(tmp_path, work)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["push", "listener", "lite", "poll"])
def test_members_that_join_get_nothing_again(tmp_path, kind, monkeypatch):
    """The old owner of a queue stores how far it came before the new one looks, and a late offset changes nothing."""
    count = 200
    # On a busy machine the old owner's round may begin later than half a second after the new owner's.
    for service in (push_service, lite_pull_service):
        monkeypatch.setattr(service, "FIRST_PULL_DELAY_S", 2.0)

    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []
        tasks, members = [], []

        async def handle(message: MessageExt) -> None:
            await asyncio.sleep(0.01)
            got.append(message.body)

        async def loop(consumer: Any) -> None:
            async for message in consumer:
                await handle(message)

        async def poll(consumer: Any) -> None:
            with suppress(ClientError):
                while True:
                    for message in await consumer.poll(100):
                        await handle(message)

        async def join() -> None:
            consumer = made("lite" if kind == "poll" else kind, servers)
            if kind == "listener":
                consumer.register_message_listener(handle)
            await consumer.start()
            members.append(consumer)
            if kind != "listener":
                tasks.append(asyncio.ensure_future((poll if kind == "poll" else loop)(consumer)))

        await producer.send_many(Message("T", b"m%d" % number) for number in range(count))
        await join()
        await until(lambda: len(got) > 20)
        await join()
        await until(lambda: len(members[1].assignment) == 2)
        await join()
        await until(lambda: len(set(got)) == count + COUNT)
        in_hand = {"push": 1, "listener": 20, "lite": 1, "poll": 32}[
            kind
        ]  # what a member repeats that hands over queues
        handed_over = 3  # the first member does so twice, the second once
        assert len(got) - len(set(got)) <= handed_over * in_hand
        await asyncio.gather(*(member.shutdown() for member in members))
        await asyncio.gather(*tasks)

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "orderly", "lite", "listener"])
def test_a_topic_deleted_and_created_again_is_read_from_its_first_message(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        got: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            got.append(message.body)

        async def loop() -> None:
            async for message in one:
                await handle(message)

        one = made(kind, servers)
        if kind == "listener":
            one.register_message_listener(handle)
        async with one, AdminClient(servers.namesrv.address) as admin:
            looping = [] if kind == "listener" else [asyncio.ensure_future(loop())]
            await until(lambda: len(got) == COUNT)
            await admin.delete_topic("T", "DefaultCluster")
            again = [b"again%d" % number for number in range(2 * COUNT)]
            async with Producer("again", servers.namesrv.address) as other:
                await fill(other, again)
            await until(lambda: len(got) >= 3 * COUNT)
            assert got[COUNT:] == again
        await asyncio.gather(*looping)

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_blocking_loops(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        def scene() -> None:
            with made(kind, servers, face=sync) as one:
                for number in range(2):
                    for message in one:
                        assert message.body == ALL[number]
                        break
                with pytest.raises(OSError, match="application"):
                    for message in one:
                        assert message.body == ALL[2]
                        raise OSError("application")
                with one.messages() as messages:
                    for message in messages:
                        assert message.body == ALL[2]
                        break
                got = []
                for message in one:
                    got.append(message.body)
                    if len(got) == 2:
                        one.shutdown()
                assert got == ALL[3:5]
            assert not [each for each in threading.enumerate() if each.name.startswith("rucola-consume")]

        await asyncio.to_thread(scene)
        assert await rest(kind, servers) == ALL[5:]

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite", "poll"])
def test_a_consumer_without_a_subscription_has_nothing_to_wait_for(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        kinds = (LitePullConsumer, LitePullConsumerConfig) if kind != "push" else (PushConsumer, PushConsumerConfig)
        consumer = kinds[0]("cg", servers.namesrv.address, kinds[1](consume_from_where=FIRST))
        take = consumer.poll if kind == "poll" else partial(first, consumer)
        async with consumer, asyncio.timeout(15):
            with pytest.raises(ClientError, match="no subscription: pass topics"):
                await take()
            await consumer.subscribe("T")
            assert await take()
            await consumer.unsubscribe("T")  # from now on it waits: the application may subscribe again
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await take()

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_makes_room_for_the_next_pull(tmp_path, kind):
    """With these limits, a queue that holds two messages is not pulled."""

    async def work(servers: Cluster, producer: Producer) -> None:
        async with made(kind, servers, pull_threshold_for_queue=1, pull_batch_size=1) as one, asyncio.timeout(15):
            found: list[bytes] = []
            async for message in one:
                found.append(message.body)
                if len(found) == COUNT:
                    break
            assert found == ALL

    scene_of(tmp_path, work)
