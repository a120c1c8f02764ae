"""Access control: clients sign with an account, and the broker's plain_acl.yml says what the account may do.

Start a broker for it with: rucola up --ephemeral -c examples/access_control/broker.conf
"""

import asyncio
import os

from rucola import Message, Producer, ProducerConfig, PushConsumer, PushConsumerConfig
from rucola.errors import BrokerError

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "AccessControlExample"
WRITER = ProducerConfig(access_key="orders-writer", secret_key="example-secret-of-the-writer")
READER = PushConsumerConfig(access_key="orders-reader", secret_key="example-secret-of-the-reader")
IMPOSTOR = ProducerConfig(access_key="orders-writer", secret_key="a guess")


async def main() -> None:
    async with Producer("access-control-producer", NAMESRV_ADDR, WRITER) as producer:
        result = await producer.send(Message(TOPIC, b"signed"))
        print(f"writer: {result.status.name}")

    for who, config in (("wrong secret", IMPOSTOR), ("unsigned", None)):
        async with Producer("access-control-producer", NAMESRV_ADDR, config) as producer:
            try:
                await producer.send(Message(TOPIC, b"refused"))
            except BrokerError as error:
                print(f"{who}: refused with {error.code_name}")

    consumer = PushConsumer("access-control-consumer", NAMESRV_ADDR, READER)
    await consumer.subscribe(TOPIC)
    async with consumer:
        async for message in consumer:
            print(f"reader: consumed {message.body.decode()}")
            break


asyncio.run(main())
