"""Sends back messages that a consumer could not consume: by CONSUMER_SEND_MSG_BACK (36) or, if that fails, as new ones.

Source: RocketMQ 5.3.3, ``DefaultMQPushConsumerImpl#sendMessageBack``.
"""

from __future__ import annotations

import logging
from dataclasses import fields

from rucola.client.config import ClientConfig, ProducerConfig
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.group_member import GroupMember
from rucola.client.producer import Producer
from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.common.key_builder import retry_topic
from rucola.common.message import MessageExt, SystemMessage
from rucola.errors import RucolaError, UnreadableBodyError
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

TIMES_MAX = 16
"""Number of retries if none is configured."""
ORDERLY_TIMES_MAX = (1 << 31) - 1
TIMEOUT_MS = 5_000
INNER_GROUP = "CLIENT_INNER_PRODUCER"
_FIRST_DELAY_LEVEL = 3
_NOT_SENT = frozenset({message_const.MIN_OFFSET, message_const.MAX_OFFSET, message_const.TRAN_MSG})


class SendBack:
    """Sends back messages of one group.

    Args:
        member: the consumer as a member of its group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings of the consumer.
        clock: clock of the consumer.
    """

    def __init__(self, member: GroupMember, namesrv: str, config: PushConsumerConfig, clock: Clock) -> None:
        self._member = member
        unlimited = ORDERLY_TIMES_MAX if config.consume_orderly else TIMES_MAX
        self._times_max = config.max_reconsume_times if config.max_reconsume_times >= 0 else unlimited
        self._inner = InnerProducer(namesrv, config, clock)

    async def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """Asks the broker to deliver a message again: by request 36 or, if that fails, as a new message. If the new
        message fails too, logs this and returns False.

        Args:
            message: a pulled message.
            delay_level: 1 to 18, 0 for the broker's choice, -1 for an immediate dead letter.
        """
        sent = await self._ask_back(message, delay_level) or await self.send_anew(message)
        if sent and (delay_level < 0 or message.reconsume_times >= self._times_max):
            self._note_dead(message)
        return sent

    async def dead_letter(self, message: MessageExt) -> bool:
        """Makes a message that an orderly consumer could not consume a dead letter; see ``send_anew``. If its body
        cannot be read, asks the broker for it by request 36.
        """
        sent = await (self.send_anew(message) if _is_readable(message) else self._ask_back(message, -1))
        if sent:
            self._note_dead(message)
        return sent

    def _note_dead(self, message: MessageExt) -> None:
        about = {"topic": message.topic, "attempts": message.reconsume_times + 1, "id": message.msg_id}
        event(logger, logging.WARNING, "message becomes a dead letter", group=self._member.group, **about)

    async def _ask_back(self, message: MessageExt, delay_level: int) -> bool:
        member = self._member
        try:
            routes = member.instance.routes
            address = routes.master(message.broker_name) if message.broker_name else host_text(message.store_host)
            header = ConsumerSendMsgBackRequestHeader(
                message.physical_offset,
                member.group,
                delay_level,
                origin_msg_id=message.offset_msg_id,
                origin_topic=message.topic,
                unit_mode=False,
                max_reconsume_times=self._times_max,
                broker_name=message.broker_name or None,
            )
            await member.api.send_back(address, header, TIMEOUT_MS)
            return True
        except RucolaError as error:
            event(logger, logging.WARNING, "message not sent back", group=member.group, id=message.msg_id, error=error)
        return False

    async def send_anew(self, message: MessageExt) -> bool:
        """Sends a copy to the group's retry topic; the broker makes it a dead letter after too many retries."""
        try:
            copy = self._copy(message)
            await (await self._inner.get()).send(copy)
            return True
        except RucolaError as error:  # also a body that cannot be read
            event(
                logger,
                logging.ERROR,
                "message neither consumed nor sent back",
                group=self._member.group,
                id=message.msg_id,
                error=error,
            )
            return False

    def _copy(self, message: MessageExt) -> SystemMessage:
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_SENT}
        properties.setdefault(message_const.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[message_const.RETRY_TOPIC] = message.topic
        properties[message_const.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[message_const.MAX_RECONSUME_TIMES] = str(self._times_max)
        properties[message_const.DELAY] = str(_FIRST_DELAY_LEVEL + message.reconsume_times)
        return SystemMessage(retry_topic(self._member.group), message.body, flag=message.flag, properties=properties)

    async def shutdown(self) -> None:
        """Closes the inner producer, if there is one."""
        await self._inner.shutdown()


class InnerProducer:
    """The producer of a consumer, with the same name servers, credentials and TLS settings; made when it is first
    needed.

    Args:
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings of the consumer.
        clock: clock of the consumer.
    """

    def __init__(self, namesrv: str, config: ClientConfig, clock: Clock) -> None:
        self._namesrv, self._config, self._clock = namesrv, config, clock
        self._producer: Producer | None = None

    async def get(self) -> Producer:
        """The started producer."""
        if self._producer is None:
            settings = {each.name: getattr(self._config, each.name) for each in fields(ClientConfig)}
            config = ProducerConfig(**settings | {"enable_trace": False})
            self._producer = Producer(INNER_GROUP, self._namesrv, config, clock=self._clock)
            await self._producer.start()
        return self._producer

    async def shutdown(self) -> None:
        """Closes the producer, if there is one."""
        if self._producer is not None:
            await self._producer.shutdown()


def _is_readable(message: MessageExt) -> bool:
    try:
        message.body  # noqa: B018 - decompresses the body
    except UnreadableBodyError:
        return False
    return True
