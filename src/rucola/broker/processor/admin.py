"""Topics, groups and locks by request (RocketMQ 5.3.3, ``AdminBrokerProcessor``).

Requests 17, 21, 28, 41, 42, 200, 207, 215.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.processor.processor import success
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.topic.topic_validator import validate_topic
from rucola.common.key_builder import is_system_topic
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig, TopicFilterType
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel

QUEUES_MAX = 65536


class AdminProcessor:
    """Changes topics and groups.

    Args:
        delete_queues: removes the queues of a topic from the store, for good.
        system_names: topics named after this broker; refused like the other system topics.
        runtime_info: figures for request 28.
    """

    def __init__(
        self,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        locks: RebalanceLockManager,
        system_names: frozenset[str],
        runtime_info: Callable[[], dict[str, str]],
        delete_queues: Callable[[bytes], None],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._locks = locks
        self._system_names = system_names
        self._runtime_info = runtime_info
        self._delete_queues = delete_queues

    def register_to(self, table: ProcessorTable) -> None:
        """Put every processor into ``table``."""
        table.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self.update_topic)
        table.register(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic)
        table.register(RequestCode.GET_ALL_TOPIC_CONFIG, self.all_topics)
        table.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group)
        table.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group)
        table.register(RequestCode.LOCK_BATCH_MQ, self.lock_queues)
        table.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock_queues)
        table.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info)

    async def update_topic(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """17; answered when the name servers know the topic, or could not be told."""
        header = CreateTopicRequestHeader.from_ext_fields(command.ext_fields)
        self._refuse_system_topic(header.topic)
        validate_topic(header.topic)
        queues = (header.read_queue_nums, header.write_queue_nums)
        if not all(0 <= number <= QUEUES_MAX for number in queues) or not 0 <= header.perm <= 15:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queues {queues} and perm {header.perm}: 0 to {QUEUES_MAX} queues and a perm of 0 to 15 are allowed",
            )
        if header.topic_filter_type not in TopicFilterType.__members__:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"unknown topicFilterType {header.topic_filter_type}")
        known = self._topics.get(header.topic)
        config = TopicConfig(
            header.topic,
            *queues,
            header.perm,
            TopicFilterType[header.topic_filter_type],
            header.topic_sys_flag or 0,
            header.order,
            _change_attributes(known.attributes if known else {}, header.attributes or ""),
        )
        if known is not None and known.is_batch_queue != config.is_batch_queue:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "queue.type of a topic cannot be changed")
        if config != known:
            registration = self._topics.update(config)
            if registration is not None:
                await asyncio.wait([registration])
        return success(command)

    def delete_topic(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """215; with the topic go its POP retry topics, of both kinds of names."""
        topic = DeleteTopicRequestHeader.from_ext_fields(command.ext_fields).topic
        if not topic.strip():
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._refuse_system_topic(topic)
        retry_topics = [
            name
            for group in self._offsets.groups_of(topic)
            for name in (f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
            if self._topics.get(name) is not None
        ]
        for name in (topic, *retry_topics):
            self._topics.delete(name)
            self._delete_queues(name.encode("utf-8", "surrogateescape"))
            self._offsets.remove_topic(name)
        # Else a crash would give a topic made anew the progress of the old one.
        self._offsets.persist()
        return success(command)

    def all_topics(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """21."""
        wrapper = TopicConfigSerializeWrapper(dict(self._topics.table), self._topics.data_version)
        answer = success(command, None, wrapper)
        answer.ext_fields["totalTopicNum"] = str(len(self._topics.table))
        return answer

    def update_group(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """200."""
        data = fastjson.load_object(command.body, "SubscriptionGroupConfig")
        try:
            config = SubscriptionGroupConfig.from_dict(data)
        except (TypeError, ValueError) as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not config.group_name:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "the group has no name")
        self._groups.update(config)
        return success(command)

    def delete_group(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """207."""
        header = DeleteSubscriptionGroupRequestHeader.from_ext_fields(command.ext_fields)
        self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        return success(command)

    def lock_queues(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """41."""
        body = LockBatchRequestBody.decode(command.body)
        owned = self._locks.try_lock(body.consumer_group, body.mq_set, body.client_id)
        return success(command, None, LockBatchResponseBody(owned))

    def unlock_queues(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """42."""
        body = LockBatchRequestBody.decode(command.body)
        self._locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return success(command)

    def runtime_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """28."""
        return success(command, None, KVTable(self._runtime_info()))

    def _refuse_system_topic(self, topic: str) -> None:
        if is_system_topic(topic) or topic in self._system_names:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _change_attributes(known: Mapping[str, str], changes: str) -> dict[str, str]:
    """Apply ``+key=value,-key`` to the attributes of a topic."""
    attributes = dict(known)
    for change in filter(None, changes.split(",")):
        key, _, value = change[1:].partition("=")
        if change[0] == "+" and key and value:
            attributes[key] = value
        elif change[0] == "-" and key:
            attributes.pop(key, None)
        else:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"attribute change {change!r}: +key=value or -key expected"
            )
    return attributes
