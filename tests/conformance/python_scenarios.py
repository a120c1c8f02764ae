"""Scenarios of RocketMQ's quick start, with our consumers."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageExt,
    MessageModel,
    MessageSelector,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
    SimpleConsumer,
)
from rucola.errors import ClientError

if TYPE_CHECKING:
    from tests.conformance.python_client import Scene

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Collected:
    """A listener that records messages."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self._came = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)
        self._came.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._came.clear()
            await self._came.wait()

    async def count(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)


def equal(got: object, expected: object) -> None:
    """Raises ``AssertionError`` with both values unless they are equal."""
    if got != expected:
        raise AssertionError(f"got {got!r}, expected {expected!r}")


def push(scene: Scene, listener: Any = None, group: str | None = None, **options: Any) -> PushConsumer:
    config = PushConsumerConfig(**{"consume_from_where": FIRST} | options)
    consumer = PushConsumer(group or scene.group, scene.namesrv, config)
    if listener is not None:
        consumer.register_message_listener(listener)
    return consumer


def bodies(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


async def simple(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        for body in bodies(50):
            await producer.send(Message(scene.topic, body, keys="k"))
        got = Collected()
        consumer = push(scene, got)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await got.count(50)
            equal(sorted(got.bodies), bodies(50))
            await producer.send(Message(scene.topic, b"late"))
            await got.count(51)
        again = Collected()
        consumer = push(scene, again)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await producer.send(Message(scene.topic, b"last"))
            await again.count(1)
        equal(again.bodies, [b"last"])


async def ordered(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        await producer.send(Message(scene.topic, b"first"))
        queues = await producer.message_queues(scene.topic)
        for number in range(60):
            await producer.send(Message(scene.topic, b"%d" % number), queues[number % len(queues)])
        failed: set[bytes] = set()
        got = Collected()

        async def listener(message: MessageExt) -> None:
            if message.body.endswith(b"7") and message.body not in failed:
                failed.add(message.body)
                raise ReconsumeLater
            await got(message)

        consumer = push(scene, listener, consume_orderly=True, suspend_current_queue_time_ms=50)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await got.count(61)
        for queue in queues:
            line = [message.queue_offset for message in got.messages if message.queue_id == queue.queue_id]
            equal(line, sorted(line))
        equal(len(failed), 6)


async def delay(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        await producer.send(Message(scene.topic, b"now"))
        got = Collected()
        consumer = push(scene, got)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await got.count(1)
            began = time.time()
            await producer.send(Message(scene.topic, b"later", delay_level=2))
            await got.count(2)
            equal((got.bodies, time.time() - began > 0.7), ([b"now", b"later"], True))


async def batch(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        await producer.send(Message(scene.topic, b"first"))
        queue = (await producer.message_queues(scene.topic))[0]
        await producer.send_batch([Message(scene.topic, body) for body in bodies(40)], queue)
        sizes: list[int] = []
        got: list[bytes] = []
        done = asyncio.Event()

        async def listener(messages: list[MessageExt], context: Any) -> None:
            sizes.append(len(messages))
            got.extend(message.body for message in messages)
            if len(got) == 41:
                done.set()

        consumer = push(scene, consume_message_batch_max_size=16)
        consumer.register_message_listener(listener, batch=True)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await done.wait()
        equal((sorted(got), max(sizes)), ([*bodies(40), b"first"], 16))


async def tag(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        for number, name in enumerate(["A", "B", "C", "AaAa", "BBBB"]):
            await producer.send(Message(scene.topic, b"%d" % number, tags=name))
        got = Collected()
        consumer = push(scene, got)
        await consumer.subscribe(scene.topic, "A || C || BBBB")
        async with consumer:
            await got.count(3)
            await asyncio.sleep(0.3)
        equal(sorted(got.bodies), [b"0", b"2", b"4"])


async def sql(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        for number in range(10):
            await producer.send(Message(scene.topic, b"%d" % number, properties={"n": str(number), "r": "eu"}))
        got = Collected()
        consumer = push(scene, got)
        await consumer.subscribe(scene.topic, MessageSelector.by_sql("n BETWEEN 3 AND 5 AND r = 'eu'"))
        async with consumer:
            await got.count(3)
            await asyncio.sleep(0.3)
        equal(sorted(got.bodies), [b"3", b"4", b"5"])


async def broadcasting(scene: Scene) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = {"message_model": MessageModel.BROADCASTING, "local_offset_store_dir": folder}
        async with Producer("python", scene.namesrv) as producer:
            await producer.send(Message(scene.topic, b"0000"))
            got = [Collected(), Collected()]
            consumers = [push(scene, one, instance_name=f"i{n}", **options) for n, one in enumerate(got)]
            for consumer in consumers:
                await consumer.subscribe(scene.topic)
            async with consumers[0], consumers[1]:
                for body in bodies(20)[1:]:
                    await producer.send(Message(scene.topic, body))
                for one in got:
                    await one.count(20)
                    equal(sorted(one.bodies), bodies(20))


async def retry_dead_letter(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        await producer.send(Message(scene.topic, b"bad", keys="key"))
        times: list[tuple[str, int]] = []

        async def listener(message: MessageExt) -> None:
            times.append((message.topic, message.reconsume_times))
            raise ReconsumeLater

        dead = Collected()
        consumer = push(scene, listener, max_reconsume_times=2)
        letters = push(scene, dead, f"{scene.group}_letters")
        await consumer.subscribe(scene.topic)
        await letters.subscribe(f"%DLQ%{scene.group}")
        async with consumer, letters:
            await dead.count(1)
        equal(times, [(scene.topic, 0), (scene.topic, 1), (scene.topic, 2)])
        (letter,) = dead.messages
        equal((letter.body, letter.keys, letter.properties["RETRY_TOPIC"]), (b"bad", "key", scene.topic))


async def flow_control(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        await producer.send(Message(scene.topic, b"first"))
        queue = (await producer.message_queues(scene.topic))[0]
        await asyncio.gather(*(producer.submit(Message(scene.topic, body), queue) for body in bodies(300)))
        gate = asyncio.Event()
        got = Collected()

        async def listener(message: MessageExt) -> None:
            await gate.wait()
            await got(message)

        consumer = push(scene, listener, pull_threshold_for_queue=64)
        await consumer.subscribe(scene.topic)
        async with consumer:
            await asyncio.sleep(2)
            assert consumer._service is not None
            held = max(len(one) for one in consumer._service.queues.values())
            equal(64 < held <= 64 + 32, True)  # one pull goes beyond the limit, which is only checked after a pull
            gate.set()
            await got.count(301)


async def lite_pull(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        first = await producer.send(Message(scene.topic, b"first"))
        queue = next(one for one in await producer.message_queues(scene.topic) if one != first.message_queue)
        for body in bodies(30):
            await producer.send(Message(scene.topic, body), queue)
        config = LitePullConsumerConfig(consume_from_where=FIRST)
        consumer = LitePullConsumer(scene.group, scene.namesrv, config)
        await consumer.subscribe(scene.topic)
        got: list[MessageExt] = []
        async with consumer:
            while len(got) < 31:
                got += await consumer.poll()
            await consumer.seek_to_begin(queue)
            await consumer.seek(queue, got[-1].queue_offset if got[-1].queue_id == queue.queue_id else 1)
            await consumer.commit()
        consumer = LitePullConsumer(f"{scene.group}_assign", scene.namesrv, config)
        await consumer.assign([queue])
        async with consumer:
            again: list[MessageExt] = []
            while len(again) < 30:
                again += await consumer.poll()
            equal([message.body for message in again], bodies(30))
            await consumer.commit({queue: 5})
            equal(await consumer.committed(queue), 5)


async def pop(scene: Scene) -> None:
    async with Producer("python", scene.namesrv) as producer:
        for body in bodies(40):
            await producer.send(Message(scene.topic, body))
        consumer = SimpleConsumer(scene.group, scene.namesrv)
        await consumer.subscribe(scene.topic)
        async with consumer:
            if scene.kind.startswith("4."):
                try:
                    await consumer.receive()
                except ClientError as error:
                    equal("does not support POP" in str(error), True)
                    return
                raise AssertionError("a broker of 4.9 popped")
            got: list[bytes] = []
            while len(got) < 40:
                for message in await consumer.receive():
                    got.append(message.body)
                    await consumer.change_invisible_duration(message, 10_000)
                    await consumer.ack(message)
            equal(sorted(got), bodies(40))
            equal(await consumer.receive(await_duration_ms=15_000), [])  # none comes again


SCENARIOS = {
    one.__name__: one
    for one in (simple, ordered, delay, batch, tag, sql, broadcasting, retry_dead_letter, flow_control, lite_pull, pop)
}
