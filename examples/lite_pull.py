"""Lite pull: the application polls for messages when it wants them, and decides when they count as consumed."""

import asyncio
import os

from rucola import LitePullConsumer, LitePullConsumerConfig, Message, Producer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "LitePullExample"


async def subscribed() -> None:
    """The consumers of the group share the queues."""
    consumer = LitePullConsumer("lite-pull-consumer", NAMESRV_ADDR, LitePullConsumerConfig(auto_commit=False))
    await consumer.subscribe(TOPIC)
    count = 0
    async with consumer:
        while count < 20:
            messages = await consumer.poll(timeout_ms=1_000)
            count += len(messages)
            await consumer.commit()  # Stores the progress immediately instead of some time later.
    print(f"subscribed: polled {count} messages")


async def assigned() -> None:
    """The application chooses queues and offsets, and shares them with nobody."""
    async with LitePullConsumer("lite-pull-reader", NAMESRV_ADDR) as consumer:
        queues = await consumer.message_queues(TOPIC)
    consumer = LitePullConsumer("lite-pull-reader", NAMESRV_ADDR)
    await consumer.assign(queues[:1])
    async with consumer:
        await consumer.seek_to_begin(queues[0])
        messages = await consumer.poll(timeout_ms=5_000)
        print(f"assigned: queue {queues[0].queue_id} begins with offset {messages[0].queue_offset}")


async def main() -> None:
    async with Producer("lite-pull-producer", NAMESRV_ADDR) as producer:
        for number in range(20):
            await producer.send(Message(TOPIC, f"message {number}".encode()))
    await subscribed()
    await assigned()


asyncio.run(main())
