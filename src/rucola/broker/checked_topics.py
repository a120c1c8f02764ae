"""Checks the topics of sends. The result for a topic is kept until a topic or group changes.

Source: RocketMQ 5.3.3, ``AbstractSendMessageProcessor.msgCheck``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.config import BrokerConfig
from rucola.broker.refusals import group_missing, topic_missing
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.internal_topics import only_broker_writes
from rucola.broker.topic.topic_config_manager import TopicConfigManager, describe
from rucola.broker.topic.topic_validator import validate_topic
from rucola.common.key_builder import group_of, is_retry_topic
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig, TopicFilterType
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.remoting.channel import Channel


@dataclass(slots=True)
class CheckedTopic:
    """The result of the checks of a topic, kept until a topic or group changes."""

    name: bytes
    config: TopicConfig
    queues: int
    """The larger of the numbers of read and write queues; queue ids below this number are accepted."""
    registration: asyncio.Future[None] | None
    """The unfinished creation or change of the topic. Responses to producers wait until the topic is synced, and then
    until each name server has answered or its time limit is over.
    """
    plain: bool = True
    """Whether the topic has no options that affect its messages."""

    def registered(self) -> None:
        """Notes that ``registration`` has ended."""
        self.registration = None

    @property
    def multi_tags(self) -> bool:
        """Whether the sysFlag of the topic's messages allows several tags."""
        return self.config.topic_filter_type is TopicFilterType.MULTI_TAG

    @property
    def keys_required(self) -> bool:
        """Whether the topic keeps only the newest message of each key, and therefore refuses messages without a key."""
        return self.config.attributes.get("cleanup.policy") == "COMPACTION"


class CheckedTopics:
    """Checks the topics of sends, and creates those that a send may create. Event loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        random_below: Callable[[int], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._random_below = random_below
        self._checked: dict[bytes, CheckedTopic] = {}
        topics.on_change(self._checked.clear)
        groups.on_change(self._checked.clear)

    def known(self, name: bytes) -> CheckedTopic | None:
        """The topic, if it was checked since the last change."""
        return self._checked.get(name)

    def find(self, name: bytes, default_topic: str, queue_nums: int) -> CheckedTopic:
        """The topic, which is first checked if necessary.

        Raises:
            BrokerError: sends to the topic are refused.
        """
        topic = self._checked.get(name)
        if topic is None:
            # If the check creates the topic, the creation clears ``_checked``, so the result is added after the check.
            topic = self.check(name, default_topic, queue_nums)
            self._checked[name] = topic
        return topic

    def choose_queue(self, queue_id: int, channel: Channel, topic: CheckedTopic) -> int:
        """The queue that the producer requested; any queue if the id is negative.

        Raises:
            BrokerError: INVALID_PARAMETER, the topic has no such queue.
        """
        if queue_id >= topic.queues:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {describe(topic.config)} Producer: {channel.remote_address}",
            )
        return queue_id if queue_id >= 0 else self._random_below(max(topic.config.write_queue_nums, 1))

    def check(self, name: bytes, default_topic: str, queue_nums: int) -> CheckedTopic:
        """The checks of protocol.md 3.2 that depend only on the topic, in RocketMQ's order.

        Raises:
            BrokerError: sends to the topic are refused.
        """
        topic = str(name, "utf-8", "replace")
        known = self._topics.get(topic)
        if not self._config.broker_permission & PermName.WRITE and known is not None and known.order:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._config.client_host}] sending message is forbidden"
            )
        validate_topic(topic)
        if only_broker_writes(topic):
            raise BrokerError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        registration: asyncio.Future[None] | None = None
        if is_retry_topic(topic):
            group = self._groups.find(group_of(topic))
            if group is None:
                raise group_missing(group_of(topic))
            known, registration = self._topics.create_for_group(topic, max(group.retry_queue_nums, 1))
        elif known is None:
            created = self._topics.create_on_send(topic, default_topic, queue_nums)
            if created is None:
                raise topic_missing(topic)
            known, registration = created
        else:
            registration = self._topics.registering(topic)
        checked = CheckedTopic(name, known, max(known.read_queue_nums, known.write_queue_nums), registration)
        checked.plain = not (checked.multi_tags or checked.keys_required)
        return checked
