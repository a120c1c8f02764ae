"""Ordered messages: messages with the same sharding key go to one queue, and are consumed in the order of sending."""

import asyncio
import os
from collections import defaultdict

from rucola import Message, MessageExt, Producer, PushConsumer, PushConsumerConfig

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "OrderedExample"
STEPS = ["created", "paid", "shipped", "delivered"]
ORDERS = ["order-1", "order-2", "order-3"]


async def main() -> None:
    async with Producer("ordered-producer", NAMESRV_ADDR) as producer:
        for step in STEPS:
            for order in ORDERS:
                # Each send is awaited: the broker has stored one step before the next one is sent.
                await producer.send(Message(TOPIC, step.encode(), keys=order, sharding_key=order))

    consumed: dict[str, list[str]] = defaultdict(list)
    everything = asyncio.Event()

    async def listener(message: MessageExt) -> None:
        consumed[message.keys or ""].append(message.body.decode())
        if sum(map(len, consumed.values())) == len(ORDERS) * len(STEPS):
            everything.set()

    # consume_orderly: each queue has one consumer of the group, which handles one message at a time.
    consumer = PushConsumer("ordered-consumer", NAMESRV_ADDR, PushConsumerConfig(consume_orderly=True))
    await consumer.subscribe(TOPIC)
    consumer.register_message_listener(listener)
    async with consumer:
        await everything.wait()

    for order in ORDERS:
        print(f"{order}: {' > '.join(consumed[order])}")


asyncio.run(main())
