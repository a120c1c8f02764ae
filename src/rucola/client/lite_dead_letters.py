"""Makes messages of lite topics dead letters.

A message goes as a new one to the group's retry topic, with its retries used up; there, every broker makes it a dead
letter. It keeps its lite topic, and leaves behind what makes RocketMQ 5.5.0 put it into its lite topic again: request
36 keeps that, and the lite topic then stands still (``docs/reference/lite.md``). Source: RocketMQ 5.3.3,
``DefaultMQPushConsumerImpl#sendMessageBack``.
"""

from __future__ import annotations

import logging

from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.send_back import InnerProducer
from rucola.common import message_const
from rucola.common.key_builder import retry_topic
from rucola.common.message import MessageExt, SystemMessage
from rucola.common.system_properties import SYSTEM_PROPERTIES, Sent
from rucola.errors import RucolaError
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_NOT_SENT = frozenset(
    {message_const.MIN_OFFSET, message_const.MAX_OFFSET}
    | {name for name, own in SYSTEM_PROPERTIES.items() if own.sent is not Sent.KEPT}
)


class LiteDeadLetters:
    """Sends the dead letters of one group.

    Args:
        group: the group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings of the consumer.
        clock: clock of the consumer.
    """

    def __init__(self, group: str, namesrv: str, config: LiteConsumerConfig, clock: Clock) -> None:
        self._group = group
        self._inner = InnerProducer(namesrv, config, clock)

    async def send(self, message: MessageExt) -> bool:
        """Makes ``message`` a dead letter; returns False, after it was logged, if this fails."""
        about = {"group": self._group, "lite_topic": message.lite_topic, "id": message.msg_id}
        try:
            copy = self._copy(message)
            await (await self._inner.get()).send(copy)
        except RucolaError as error:  # also a body that cannot be read
            event(logger, logging.ERROR, "message of a lite topic is no dead letter yet", error=error, **about)
            return False
        event(logger, logging.WARNING, "message of a lite topic becomes a dead letter", **about)
        return True

    async def shutdown(self) -> None:
        """Closes the connections."""
        await self._inner.shutdown()

    def _copy(self, message: MessageExt) -> SystemMessage:
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_SENT}
        properties.setdefault(message_const.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[message_const.RETRY_TOPIC] = message.topic
        properties[message_const.DLQ_ORIGIN_TOPIC] = message.topic
        properties[message_const.DLQ_ORIGIN_MESSAGE_ID] = message.msg_id
        properties[message_const.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[message_const.MAX_RECONSUME_TIMES] = str(message.reconsume_times)
        return SystemMessage(retry_topic(self._group), message.body, flag=message.flag, properties=properties)
