"""Sends to lite topics. The property ``__LITE_TOPIC`` names the lite topic, the message goes to its parent, and the
broker adds the light queue and the offset there. Event loop only.

Messages of retry and dead-letter topics keep the property, but belong to no lite topic. In RocketMQ 5.5.0 with queues
in files, a dead letter takes the place of the lite topic's next message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from rucola.broker.config import BrokerConfig
from rucola.broker.lite.attributes import is_parent
from rucola.common.key_builder import is_dlq_topic, is_retry_topic
from rucola.common.lite_topics import check_lite_topic, lite_queue_topic
from rucola.common.message_const import (
    DELAYING,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TRAN_MSG,
)
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.errors import BrokerError, ClientError
from rucola.protocol.codes import ResponseCode
from rucola.store.results import LightPlace

if TYPE_CHECKING:
    from rucola.store.lite.lite_topics import LiteTopics

_NO_LITE_TOPICS = "this broker has no lite topics; it needs enableLmq=true and enableMultiDispatch=true"
QUOTA_EXCEEDED = "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
"""RocketMQ's text."""


class LiteSends:
    """The rules of a broker.

    Args:
        topics: the lite topics of the store; None if it has none.
        new_name: called before a message makes a lite topic; raises ``BrokerError`` if its account may not.
    """

    def __init__(self, config: BrokerConfig, topics: LiteTopics | None, new_name: Callable[[], None]) -> None:
        self._config = config
        self._topics = topics
        self._new_name = new_name

    def address(self, parent: TopicConfig, properties: MutableMapping[str, str]) -> LightPlace | None:
        """Adds light queue and offset to the properties of a message with ``LITE_TOPIC``.

        Returns:
            Its place in the light queue, of which the store must be told; None if the message belongs to no lite topic.

        Raises:
            BrokerError: MESSAGE_ILLEGAL, the message cannot go to a lite topic; LMQ_QUOTA_EXCEEDED, there are too many.
        """
        topic = parent.topic_name
        if is_retry_topic(topic) or is_dlq_topic(topic):
            return None
        check_parent(parent)
        if self._topics is None:
            raise _illegal(_NO_LITE_TOPICS)
        try:
            name = lite_queue_topic(topic, check_lite_topic(properties[LITE_TOPIC]))
        except ClientError as error:
            raise _illegal(str(error)) from None
        _refuse_mixed(properties)
        queue = name.encode()
        queue_offset = self._topics.next_offset(queue)
        if queue_offset == 0 or (self._config.enable_lmq_quota and not self._topics.is_live(queue)):
            self._check_quota(queue_offset == 0)
        properties[INNER_MULTI_DISPATCH] = name
        properties[INNER_MULTI_QUEUE_OFFSET] = str(queue_offset)
        return LightPlace(queue, queue_offset)

    def _check_quota(self, is_new: bool) -> None:
        assert self._topics is not None
        config = self._config
        if config.enable_lmq_quota and self._topics.are_there(config.max_lmq_consume_queue_num):
            raise BrokerError(ResponseCode.LMQ_QUOTA_EXCEEDED, QUOTA_EXCEEDED)
        if is_new:
            self._new_name()


def check_parent(topic: TopicConfig) -> None:
    """Refuses a message with ``LITE_TOPIC`` to a topic that has no lite topics.

    Raises:
        BrokerError: MESSAGE_ILLEGAL.
    """
    if not is_parent(topic):
        kind = topic.attributes.get(MESSAGE_TYPE, "NORMAL")
        raise _illegal(f"{topic.topic_name} has {MESSAGE_TYPE}={kind}; a message with {LITE_TOPIC} needs LITE")


def refuse_in_batch(properties: Mapping[str, str]) -> None:
    """Refuses a message of a batch if it names a lite topic.

    Raises:
        BrokerError: MESSAGE_ILLEGAL.
    """
    if LITE_TOPIC in properties:
        raise _illegal(f"a batch cannot have messages with {LITE_TOPIC}; send each of them alone")


def _refuse_mixed(properties: Mapping[str, str]) -> None:
    """Refuses what no message to a lite topic can be."""
    if properties.get(TRAN_MSG, "").lower() == "true":
        raise _illegal("a message to a lite topic cannot be part of a transaction")
    found = [name for name in (*sorted(DELAYING), SHARDING_KEY, PRIORITY) if name in properties]
    if found:
        raise _illegal(f"a message to a lite topic cannot have the property {found[0]}: no delay, group or priority")


def _illegal(text: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
