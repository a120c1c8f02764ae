"""Queue locks of orderly consumers (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 41 and 42).

A lock belongs to a client id. RocketMQ believes any request that names the id. Here, only a connection that has sent a
heartbeat with this id for the group takes and gives back the id's locks. Only queues of this broker are locked. Their
broker name is ignored, because otherwise one queue could be locked under many names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.processor.responses import success
from rucola.broker.senders import Senders
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel


class QueueLockProcessor:
    """Locks and unlocks queues."""

    def __init__(
        self,
        locks: RebalanceLockManager,
        topics: TopicConfigManager,
        consumers: ConsumerManager,
        senders: Senders,
    ) -> None:
        self._locks = locks
        self._topics = topics
        self._consumers = consumers
        self._account_of: Callable[[RemotingCommand], str] = senders.account_of

    def lock_queues(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 41: locks queues."""
        body = self._body(channel, command)
        asked = {(queue.topic, queue.queue_id): queue for queue in self._existing(body.mq_set)}
        owned = self._locks.try_lock(body.consumer_group, asked, body.client_id, self._account_of(command))
        return success(command, None, LockBatchResponseBody([asked[place] for place in owned]))

    def unlock_queues(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 42: unlocks queues."""
        body = self._body(channel, command)
        self._locks.unlock(
            body.consumer_group, ((queue.topic, queue.queue_id) for queue in body.mq_set), body.client_id
        )
        return success(command)

    def _body(self, channel: Channel, command: RemotingCommand) -> LockBatchRequestBody:
        """The body of a request.

        Raises:
            BrokerError: the connection has sent no heartbeat of this client for this group. A client repeats the
                request until its next heartbeat.
        """
        body = LockBatchRequestBody.decode(command.body)
        group = self._consumers.group(body.consumer_group)
        client = None if group is None else group.clients.get(channel)
        if client is None or client.client_id != body.client_id:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"this connection has sent no heartbeat of client {body.client_id} for group {body.consumer_group}",
            )
        return body

    def _existing(self, queues: Iterable[MessageQueue]) -> Iterable[MessageQueue]:
        for queue in queues:
            topic = self._topics.get(queue.topic)
            if topic is not None and 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
                yield queue
