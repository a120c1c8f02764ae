"""Broadcasting: every consumer of the group gets every message, and keeps its own progress in a file."""

import asyncio
import os
from tempfile import TemporaryDirectory

from rucola import ConsumeFromWhere, Message, MessageModel, Producer, PushConsumer, PushConsumerConfig

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "BroadcastExample"


async def screen(name: str, directory: str, wanted: set[str]) -> None:
    config = PushConsumerConfig(
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,  # default: messages sent from now on
        instance_name=name,  # fixed, so that a consumer finds its progress after a restart
        local_offset_store_dir=directory,  # default: ~/.rocketmq_offsets
    )
    consumer = PushConsumer("broadcast-consumer", NAMESRV_ADDR, config)
    await consumer.subscribe(TOPIC)
    seen: set[str] = set()
    async with consumer:
        async for message in consumer:
            if message.msg_id in wanted:  # leave out messages of an earlier run
                seen.add(message.msg_id)
                print(f"{name}: {message.body.decode()}")
            if seen == wanted:
                break


async def main() -> None:
    async with Producer("broadcast-producer", NAMESRV_ADDR) as producer:
        sent = [await producer.send(Message(TOPIC, f"price {price}".encode())) for price in (10, 11, 12)]
    wanted = {result.msg_id for result in sent}
    with TemporaryDirectory() as directory:  # each run then starts from the beginning
        await asyncio.gather(screen("screen-1", directory, wanted), screen("screen-2", directory, wanted))


asyncio.run(main())
