"""An agent: answers each prompt word by word, into the lite topic of its session. Start as many as you like.

A worker that is killed leaves its prompt to another one, which answers it from the beginning. Each word carries the id
of its prompt and its place in the answer, so the client shows it once. An agent whose answers differ from one time to
the next would keep them, or begin the new answer with a word that tells the client to forget the old one.
"""

import asyncio
import os

from rucola import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer, PushConsumerConfig

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
PAUSE_S = float(os.environ.get("AGENT_PAUSE_S", "0.2"))


async def main() -> None:
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    async with Producer("workers", NAMESRV_ADDR) as producer:

        async def answer(prompt: MessageExt) -> None:
            words = prompt.body.decode().upper().split()
            for place, word in enumerate(words):
                await asyncio.sleep(PAUSE_S)  # a model that thinks
                properties = {
                    "prompt": prompt.properties["prompt"],
                    "place": str(place),
                    "last": str(place == len(words) - 1),
                }
                session = prompt.properties["session"]
                await producer.send(Message("agents", word.encode(), lite_topic=session, properties=properties))

        consumer = PushConsumer("workers", NAMESRV_ADDR, config, topics=["prompts"])
        consumer.register_message_listener(answer)
        async with consumer:
            print("worker: ready", flush=True)
            await asyncio.Event().wait()


asyncio.run(main())
