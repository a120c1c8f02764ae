"""Simple consumer: messages are received and acknowledged one by one; unacknowledged messages are delivered again
(POP).
"""

import asyncio
import os

from rucola import Message, Producer, SimpleConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "SimpleConsumerExample"


async def main() -> None:
    async with Producer("pop-producer", NAMESRV_ADDR) as producer:
        for text in ("good", "slow"):
            await producer.send(Message(TOPIC, text.encode()))

    consumer = SimpleConsumer("pop-consumer", NAMESRV_ADDR)
    await consumer.subscribe(TOPIC)
    acknowledged = 0
    async with consumer:
        while acknowledged < 2:
            # Each received message is hidden from the rest of the group for 30 s.
            for message in await consumer.receive(max_messages=16, invisible_duration_ms=30_000):
                print(f"received {message.body.decode()}")
                # Gives the application more time; without `ack` the message would come again after 60 s.
                if message.body == b"slow":
                    await consumer.change_invisible_duration(message, 60_000)
                    print("slow: hidden for 60 s more")
                await consumer.ack(message)
                acknowledged += 1
    print(f"acknowledged {acknowledged}")


asyncio.run(main())
