"""Tags: the consumer names the tags that it wants, and the broker leaves out other messages."""

import asyncio
import os

from rucola import Message, Producer, PushConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "TagExample"


async def main() -> None:
    async with Producer("tag-producer", NAMESRV_ADDR) as producer:
        for number, tag in enumerate(["TagA", "TagB", "TagC"] * 2):
            await producer.send(Message(TOPIC, f"message {number}".encode(), tags=tag))
            print(f"sent message {number} with {tag}")

    consumer = PushConsumer("tag-consumer", NAMESRV_ADDR)
    await consumer.subscribe(TOPIC, "TagA || TagC")
    async with consumer:
        count = 0
        async for message in consumer:
            print(f"consumed {message.body.decode()} with {message.tags}")
            count += 1
            if count == 4:
                break


asyncio.run(main())
