"""Queue locks of orderly consumers (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 41 and 42)."""

from __future__ import annotations

from rucola.broker.processor.responses import success
from rucola.broker.services import BrokerServices
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel


class QueueLockProcessor:
    """Locks and unlocks queues."""

    def __init__(self, services: BrokerServices) -> None:
        self._locks = services.locks

    def lock_queues(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 41: locks queues."""
        body = LockBatchRequestBody.decode(command.body)
        owned = self._locks.try_lock(body.consumer_group, body.mq_set, body.client_id)
        return success(command, None, LockBatchResponseBody(owned))

    def unlock_queues(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 42: unlocks queues."""
        body = LockBatchRequestBody.decode(command.body)
        self._locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return success(command)
