"""The other side of request and reply: a consumer that replies with the body of the request."""

from __future__ import annotations

from tests.scenario.matrix.world import World, account_options

from rucola import ConsumeFromWhere, MessageExt, Producer, ProducerConfig, PushConsumer, PushConsumerConfig


class Responder:
    """Replies as long as the ``async with`` block.

    Args:
        world: the servers.
    """

    def __init__(self, world: World) -> None:
        options = account_options(world.guarded)
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        self._topic = world.topic
        self._producer = Producer("Responder", world.namesrv, ProducerConfig(**options))
        self._consumer = PushConsumer(
            "Responders", world.namesrv, PushConsumerConfig(consume_from_where=first, **options)
        )

    async def __aenter__(self) -> None:
        await self._producer.start()
        await self._consumer.subscribe(self._topic)
        self._consumer.register_message_listener(self._reply)
        await self._consumer.start()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._consumer.shutdown()
        await self._producer.shutdown()

    async def _reply(self, message: MessageExt) -> None:
        await self._producer.reply(message, message.body)
