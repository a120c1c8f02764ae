"""The end of a transaction (RocketMQ 5.3.3, ``EndTransactionProcessor``; request 37)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from rucola.broker.processor.processor import success
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, is_decision
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import EndTransactionRequestHeader
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore

_LOOK_AGAIN_S = 0.002


class EndTransactionProcessor:
    """Serves request 37. Clients send it oneway; who waits for the answer gets it when the outcome is safe."""

    def __init__(self, store: MessageStore, transactions: TransactionalMessageService) -> None:
        self._store = store
        self._transactions = transactions

    def register_to(self, table: ProcessorTable) -> None:
        """Put the processor into ``table``."""
        table.register(RequestCode.END_TRANSACTION, self.end)

    def end(
        self, _channel: Channel, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """37. A producer that has not decided is not answered, it will be asked."""
        header = EndTransactionRequestHeader.from_ext_fields(command.ext_fields)
        if not is_decision(header.commit_or_rollback):
            return None
        end = self._transactions.end(header)
        if command.is_oneway or not self._store.config.sync_flush:
            return success(command)
        return self._when_safe(command, end)

    async def _when_safe(self, command: RemotingCommand, end: int) -> RemotingCommand | None:
        limit = asyncio.get_running_loop().time() + self._store.config.sync_flush_timeout_ms / 1000
        while self._store.flushed_offset < end:
            if asyncio.get_running_loop().time() > limit:
                return None  # the producer asks again, or is asked
            await asyncio.sleep(_LOOK_AGAIN_S)
        return success(command)
