"""Queue locks of orderly consumers (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 41 and 42)."""

from __future__ import annotations

from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.processor.processor import success
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel


class QueueLockProcessor:
    """Locks and unlocks."""

    def __init__(self, locks: RebalanceLockManager) -> None:
        self._locks = locks

    def register_to(self, table: ProcessorTable) -> None:
        """Put both processors into ``table``."""
        table.register(RequestCode.LOCK_BATCH_MQ, self.lock_queues)
        table.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock_queues)

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
