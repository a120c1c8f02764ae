"""SQL92: the consumer states a condition on properties. Needs enablePropertyFilter=true in broker.conf."""

import asyncio
import os

from rucola import Message, MessageSelector, Producer, PushConsumer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "SqlExample"


async def main() -> None:
    async with Producer("sql-producer", NAMESRV_ADDR) as producer:
        for amount in (5, 50, 500):
            for region in ("eu", "us"):
                # Property values are text; the broker compares them as numbers where the condition has a number.
                properties = {"amount": str(amount), "region": region}
                await producer.send(Message(TOPIC, f"{amount} from {region}".encode(), properties=properties))
        print("sent 6 messages")

    consumer = PushConsumer("sql-consumer", NAMESRV_ADDR)
    await consumer.subscribe(TOPIC, MessageSelector.by_sql("amount >= 50 AND region = 'eu'"))
    async with consumer:
        count = 0
        async for message in consumer:
            print(f"consumed {message.body.decode()}")
            count += 1
            if count == 2:
                break


asyncio.run(main())
