"""Members and progress of consumer groups (RocketMQ 5.3.3, ``ConsumerManageProcessor``; requests 14, 15, 38)."""

from __future__ import annotations

from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.offset.offset_resets import OffsetResets
from rucola.broker.processor.responses import success
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import lite_parts
from rucola.errors import BrokerError
from rucola.protocol.bodies.consumer_list import GetConsumerListByGroupResponseBody
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import GetConsumerListByGroupRequestHeader
from rucola.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore


class ConsumerManageProcessor:
    """Answers the requests that consumers send when they rebalance."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        consumers: ConsumerManager,
        offsets: ConsumerOffsetManager,
        resets: OffsetResets,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._resets = resets

    def consumer_list(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 38: the client ids of a group."""
        group = GetConsumerListByGroupRequestHeader.from_ext_fields(command.ext_fields).consumer_group
        info = self._consumers.group(group)
        if info is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success(command, None, GetConsumerListByGroupResponseBody(info.client_ids()))

    def update_offset(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 15: commits a consumer offset."""
        header = UpdateConsumerOffsetRequestHeader.from_ext_fields(command.ext_fields)
        if header.consumer_group not in self._groups.table:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        queue_count = self._queue_count(header.topic)
        if header.queue_id is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {header.topic}")
        if header.commit_offset is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {header.topic}")
        # After the number of a topic's queues was reduced, groups may still commit offsets for the former queues. Other
        # queue ids are refused; otherwise the table would keep offsets of queues that never existed.
        if not 0 <= header.queue_id < queue_count and not self._is_known(header):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"{header.topic} has no queue {header.queue_id}, only queues 0 to {queue_count - 1}",
            )
        if self._resets.find(header.consumer_group, header.topic, header.queue_id) is not None:
            return command.answer(ResponseCode.SUCCESS, "Offset has been previously reset")
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return success(command)

    def _queue_count(self, name: str) -> int:
        """Returns the number of a topic's queues; a lite topic has one."""
        topic, lite = self._topics.get(name), self._offsets.lite
        if topic is not None:
            return max(topic.read_queue_nums, topic.write_queue_nums)
        if lite is None or lite_parts(name) is None or lite.id_of(name) < 0:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name} not exist!")
        return 1

    def _is_known(self, header: UpdateConsumerOffsetRequestHeader) -> bool:
        """True if the group has an offset in the queue, or if the queue has had messages. In both cases the topic had
        this queue before the number of its queues was reduced.
        """
        topic, queue_id = header.topic, header.queue_id
        if queue_id is None or queue_id < 0:
            return False
        if self._offsets.query(header.consumer_group, topic, queue_id) is not None:
            return True
        return self._store.max_queue_offset(topic.encode("utf-8", "surrogateescape"), queue_id) > 0

    def query_offset(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 14: the offset of a group in a queue.

        For a group without an offset, the response is offset 0 if the message at queue offset 0 is in memory, and
        QUERY_NOT_FOUND if it is not. Clients that set ``setZeroIfNotFound`` to false get QUERY_NOT_FOUND in both cases.
        After QUERY_NOT_FOUND, clients start where their ``consumeFromWhere`` says. So a new group reads a backlog from
        the disk only if its clients' ``consumeFromWhere`` says so.
        """
        header = QueryConsumerOffsetRequestHeader.from_ext_fields(command.ext_fields)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            # The group has read the topic before the topic was deleted. It must not start at the end of the new one.
            offset = self._resets.find(header.consumer_group, header.topic, header.queue_id)
        if offset is None or offset < 0:  # some clients commit -1 for a queue that they have not read
            if header.set_zero_if_not_found is False:
                raise BrokerError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            topic = header.topic.encode()
            if not self._store.in_memory(topic, header.queue_id, 0):
                raise BrokerError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            offset = 0
        return success(command, OffsetResponseHeader(offset))
