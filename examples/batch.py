"""Batches: one request for a few messages that belong together, or `send_many` for any number of messages."""

import asyncio
import os

from rucola import Message, Producer
from rucola.errors import SendManyError

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "BatchExample"


async def main() -> None:
    async with Producer("batch-producer", NAMESRV_ADDR) as producer:
        # One topic, one queue, one request: all are stored, or none.
        batch = [Message(TOPIC, f"together {number}".encode(), keys=f"k{number}") for number in range(5)]
        result = await producer.send_batch(batch)
        print(f"send_batch: {len(result.msg_id.split(','))} messages, {result.status.name}")

        # Any number of messages to any topics: they are grouped, split by size, and sent in many concurrent requests.
        many = [Message(TOPIC + "AB"[number % 2], f"row {number}".encode()) for number in range(10_000)]
        try:
            results = await producer.send_many(many)
        except SendManyError as error:  # The other messages were sent; `errors` says which were not, and why.
            print(f"send_many: {len(error.errors)} failed: {error}")
        else:
            topics = {each.message_queue.topic for each in results}
            print(f"send_many: {len(results)} messages to {', '.join(sorted(topics))}")


asyncio.run(main())
