"""Delayed messages: by level, by duration, and at a point in time; one message is recalled before its time."""

import asyncio
import os
from datetime import UTC, datetime, timedelta

from rucola import Message, Producer, PushConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "DelayExample"


async def main() -> None:
    async with Producer("delay-producer", NAMESRV_ADDR) as producer:
        sent = datetime.now(UTC)
        # Levels are RocketMQ's: 1 is one second, 2 is five seconds, 3 is ten seconds, ... 18 is two hours.
        await producer.send(Message(TOPIC, b"level 1", delay_level=1))
        await producer.send(Message(TOPIC, b"delay of 2 s", delay=timedelta(seconds=2)))
        await producer.send(Message(TOPIC, b"at a time", deliver_at=sent + timedelta(seconds=3)))

        # A recall needs recallMessageEnable=true in broker.conf.
        late = await producer.send(Message(TOPIC, b"never seen", delay=timedelta(minutes=10)))
        assert late.recall_handle is not None
        await producer.recall(TOPIC, late.recall_handle)
        print("recalled: never seen")

    consumer = PushConsumer("delay-consumer", NAMESRV_ADDR)
    await consumer.subscribe(TOPIC)
    async with consumer:
        count = 0
        async for message in consumer:
            waited = (datetime.now(UTC) - sent).total_seconds()
            print(f"{message.body.decode()}: came after {waited:.1f} s")
            count += 1
            if count == 3:
                break


asyncio.run(main())
