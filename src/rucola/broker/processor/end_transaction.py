"""Ends transactions, and resumes checks of half messages (RocketMQ 5.3.3, ``EndTransactionProcessor``; requests 37,
323).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from rucola.broker.cold_reads import ColdReads
from rucola.broker.processor.responses import success
from rucola.broker.senders import Senders
from rucola.broker.transaction.check_service import TransactionCheckService
from rucola.broker.transaction.transactional_message_service import TransactionalMessageService, is_decision
from rucola.broker.when_safe import WhenSafe
from rucola.common.key_builder import TRANS_HALF_TOPIC
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import BrokerError
from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rucola.remoting.fairness.resumed import Resumed
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords

_NOT_PUT_BACK = f"Exception was thrown when putting message back to {TRANS_HALF_TOPIC}."


class EndTransactionProcessor:
    """Serves requests 37 and 323.

    Clients send request 37 as oneway and get no response. If a request 37 is not oneway, SYNC_FLUSH delays its response
    until the transaction's outcome is synced. SYNC_FLUSH also delays the response to request 323, until the half
    message that was put back is synced.
    """

    def __init__(
        self,
        transactions: TransactionalMessageService,
        checks: TransactionCheckService,
        senders: Senders,
        cold_reads: ColdReads,
        when_safe: WhenSafe,
    ) -> None:
        self._when_safe = when_safe
        self._transactions = transactions
        self._account_of = senders.account_of
        self._checks = checks
        self._resumed = Resumed()
        self._cold_reads = cold_reads

    def end(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 37: ends a transaction. If the producer has not decided yet, it gets no response, and the broker asks
        it again later.
        """
        header = EndTransactionRequestHeader.from_ext_fields(command.ext_fields)
        if not is_decision(header.commit_or_rollback):
            return None
        return self._serve(partial(self._end, channel, command, header))

    def resume_check(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 323: puts a half message from ``TRANS_CHECK_MAX_TIME_TOPIC`` back, so that it is checked again."""
        header = ResumeCheckHalfMessageRequestHeader.from_ext_fields(command.ext_fields)
        try:
            physical_offset = parse_offset_message_id(header.msg_id or "").physical_offset
        except ValueError:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, _NOT_PUT_BACK) from None
        return self._serve(partial(self._resume_check, channel, command, physical_offset))

    def _serve(self, step: Callable[[ColdRecords], Answer]) -> Answer | Awaitable[Answer]:
        """The result of ``step``. If too many half messages are not scanned yet, ``step`` runs after their scan."""
        return self._when_scanned(step) if self._checks.is_behind else self._cold_reads.serve(step)

    async def _when_scanned(self, step: Callable[[ColdRecords], Answer]) -> Answer:
        await self._checks.scan(self._cold_reads)
        await self._resumed.turn()
        answer = self._cold_reads.serve(step)
        return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

    def _end(
        self, channel: Channel, command: RemotingCommand, header: EndTransactionRequestHeader, cold: ColdRecords
    ) -> Answer:
        end = self._transactions.end(header, cold, self._account_of(command))
        if header.commit_or_rollback == MessageSysFlag.TRANSACTION_ROLLBACK and not command.is_oneway:
            end = self._transactions.note_outcomes()
        return self._when_safe(channel, command, success(command), end)

    def _resume_check(
        self, channel: Channel, command: RemotingCommand, physical_offset: int, cold: ColdRecords
    ) -> Answer:
        end = self._transactions.resume_check(physical_offset, cold)
        return self._when_safe(channel, command, success(command), end)
