"""Three ways to send: wait for the broker's response, collect the responses later, or request none."""

import asyncio
import os

from rucola import Message, Producer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "SimpleExample"


async def main() -> None:
    async with Producer("simple-producer", NAMESRV_ADDR) as producer:
        # Synchronous: the next line runs once the broker has stored the message.
        result = await producer.send(Message(TOPIC, b"synchronous", tags="TagA", keys="order-1"))
        print(f"sync: {result.status.name}, id {result.msg_id}, offset {result.queue_offset}")

        # Asynchronous: many messages are in flight at once. `ready` waits if there are too many.
        futures = []
        for number in range(10):
            await producer.ready()
            futures.append(producer.submit(Message(TOPIC, f"asynchronous {number}".encode())))
        results = await asyncio.gather(*futures)
        print(f"async: {len(results)} messages in {len({each.message_queue for each in results})} queues")

        # One-way: there is no response, so a lost message is not noticed.
        await producer.send_oneway(Message(TOPIC, b"one-way"))
        print("oneway: sent, nobody knows whether it arrived")


asyncio.run(main())
