"""Request and reply: the producer waits until a consumer has replied to its message.

On a new broker, the consumer logs that the topic does not exist yet; the first request creates it.
"""

import asyncio
import os

from rucola import Message, MessageExt, Producer, PushConsumer
from rucola.errors import RequestTimeoutError

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "RequestExample"


async def main() -> None:
    async with (
        Producer("request-producer", NAMESRV_ADDR) as asking,
        Producer("reply-producer", NAMESRV_ADDR) as replying,
    ):

        async def answer(request: MessageExt) -> None:
            if request.tags == "upper":
                await replying.reply(request, request.body.upper())

        consumer = PushConsumer("request-consumer", NAMESRV_ADDR)
        await consumer.subscribe(TOPIC)
        consumer.register_message_listener(answer)
        async with consumer:
            reply = await asking.request(Message(TOPIC, b"hello", tags="upper"), timeout_ms=10_000)
            print(f"reply: {reply.body.decode()}")
            try:
                await asking.request(Message(TOPIC, b"anybody?", tags="ignored"), timeout_ms=500)
            except RequestTimeoutError as error:
                print(f"no reply within {error.timeout_ms} ms")


asyncio.run(main())
