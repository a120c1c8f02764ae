"""The producer of transactional messages. Source: RocketMQ 5.3.3, TransactionMQProducer and DefaultMQProducerImpl.

A message is first stored as a half message, which no consumer sees. Then the application executes its local transaction
and decides about the message. If the broker does not receive the decision, because a process died or a connection was
lost, it later asks any producer of the group. It asks again until it gets a decision or reaches its limit of checks.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import cast

from rucola.client.application_call import FailedCall, awaited, called
from rucola.client.checks import check_message
from rucola.client.config import ProducerConfig
from rucola.client.daemon_threads import DaemonThreads
from rucola.client.instance import check_topic
from rucola.client.listener import shown
from rucola.client.producer import Producer
from rucola.client.send_result import SendResult, SendStatus
from rucola.client.transaction_listener import LocalTransactionState, TransactionListener, TransactionSendResult
from rucola.client.work_in_progress import WorkInProgress, Works
from rucola.common import message_const
from rucola.common.message import Message
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import ClientError, FormatError, RucolaError
from rucola.formats.message import decode_message
from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.protocol.trace import MessageType, TraceRecord, TraceType
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_CHECKS_AT_A_TIME = 16
_CHECKS_MAX = 2_000
"""Largest number of checks to which this producer has yet to respond. It ignores further checks; the broker will send
them again.
"""
_LISTENER_THREADS = 32
_PAUSE_S = 1.0

_DECISIONS = {
    LocalTransactionState.COMMIT_MESSAGE: int(MessageSysFlag.TRANSACTION_COMMIT),
    LocalTransactionState.ROLLBACK_MESSAGE: int(MessageSysFlag.TRANSACTION_ROLLBACK),
}


class TransactionProducer(Producer):
    """Sends transactional messages and, like a ``Producer``, normal messages.

    Life cycle: ``async with TransactionProducer(...)``, or ``start`` and ``shutdown``, on one event loop.

    After ``start``, the producer also responds to brokers' checks, even about messages that another producer of the
    group has sent. Any number of producers of a group may run at the same time.

    Args:
        group: producer group.
        namesrv: name servers, ``host:port`` separated by ``;``, or a list of them.
        listener: executes and checks local transactions.
        config: settings.
        topics: topics whose brokers may send checks; by default all brokers may.
        clock: gives the time for time stamps and ids.

    Raises:
        ClientError: the name of the group or of a topic is invalid.
        ConfigError: the address of a name server is not ``host:port``.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        listener: TransactionListener,
        config: ProducerConfig | None = None,
        *,
        topics: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(group, namesrv, config, clock=clock)
        if isinstance(topics, str):
            raise ClientError(f"topics must be a list of names, not the string {topics!r}")
        for topic in topics:
            check_topic(topic)
        self._listener = listener
        self._asking_topics = list(topics)
        self._checks = 0
        self._works = Works()  # transactions and checks in progress
        self._checking = asyncio.Semaphore(_CHECKS_AT_A_TIME)
        self._threads = DaemonThreads(_LISTENER_THREADS, "TransactionListener")

    async def __aenter__(self) -> TransactionProducer:
        await self.start()
        return self

    async def start(self) -> None:
        """Starts the producer; in the background, opens connections to the brokers that may send checks."""
        if not self._instance.running:
            self._instance.client.register_processor(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
            await super().start()
            self._instance.background.forever("search for brokers", self._meet_brokers)

    async def shutdown(self) -> None:
        """Refuses further messages and checks at once, waits for the local transactions and checks that have begun and
        for the results of all messages, then unregisters and closes.

        If the wait is cancelled or interrupted, brokers later ask another producer of the group about transactions
        without a decision. A listener may call ``shutdown``; the wait does not include its own transaction.
        """
        if self._works.excuse_current():
            # in a task of its own, because the end of the connections cancels a check that is in progress
            await asyncio.shield(asyncio.ensure_future(super().shutdown()))
        else:
            await super().shutdown()

    async def _settle(self) -> None:
        await self._works.wait()
        await super()._settle()

    def _note_end(self) -> None:
        super()._note_end()
        self._threads.shutdown(wait=False)

    async def send_message_in_transaction(
        self, message: Message, argument: object = None, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        """Stores ``message`` as a half message, calls the listener, and sends the listener's decision to the broker.

        If the half message is stored with a status other than SEND_OK, it may be lost. The listener is then not called,
        and the decision is ROLLBACK_MESSAGE.

        Args:
            message: the message; gets a UNIQ_KEY unless it has one.
            argument: passed to the listener.
            timeout_ms: total time for all attempts to store the half message; by default as configured.

        Returns:
            The result of the send, and the decision. If the broker does not receive the decision, it checks later.

        Raises:
            ClientError: the message cannot be sent in a transaction, or its topic has no route.
            BrokerError: the broker refused the message; the listener was not called.
            RemotingError: no broker could be reached, or none responded in time; the listener was not called.
        """
        check_message(message)
        if not message_const.DELAYING.isdisjoint(message.properties):
            raise ClientError("a message in a transaction cannot be delayed")
        self._check_open()
        await self._pipeline.ready()
        with WorkInProgress(self._works):
            return await self._transaction(message, argument, timeout_ms)

    async def _transaction(self, message: Message, argument: object, timeout_ms: int | None) -> TransactionSendResult:
        sent = await self._submit_half(message, timeout_ms)
        if sent.status is not SendStatus.SEND_OK:  # stored, but it may be lost: do not execute the local transaction
            result = TransactionSendResult(sent, LocalTransactionState.ROLLBACK_MESSAGE)
        else:
            result = await self._execute(message, argument, sent)
        place = parse_offset_message_id(sent.offset_msg_id.partition(",")[0])
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=place.physical_offset,
            commit_or_rollback=_DECISIONS.get(result.local_transaction_state, 0),
            topic=message.topic,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id or sent.msg_id,
            broker_name=sent.message_queue.broker_name,
        )
        try:
            address = self._instance.routes.master(sent.message_queue.broker_name)
        except ClientError as error:
            self._not_told(header, error)
        else:
            await self._end(address, header, result.local_transaction_state, message)
        return result

    async def _execute(self, message: Message, argument: object, sent: SendResult) -> TransactionSendResult:
        outcome = await _called(self._threads, self._listener.execute_local_transaction, message, argument)
        if isinstance(outcome, FailedCall):  # the message is not lost
            error = outcome.error
            event(logger, logging.ERROR, "local transaction failed, the broker will check later", error, id=sent.msg_id)
            return TransactionSendResult(sent, LocalTransactionState.UNKNOW, error)
        return TransactionSendResult(sent, outcome)

    async def _end(
        self, address: str, header: EndTransactionRequestHeader, state: LocalTransactionState, message: Message
    ) -> None:
        """Sends a decision to the broker; sends nothing for ``UNKNOW``. A broker without a decision checks again."""
        if state in _DECISIONS:
            try:
                await self._instance.api.end_transaction(address, header, self._config.mq_client_api_timeout_ms)
            except RucolaError as error:
                self._not_told(header, error)
                return
        if self._trace is not None:
            self._trace.append(
                [
                    TraceRecord(
                        trace_type=TraceType.END_TRANSACTION,
                        timestamp_ms=self._wall_ms(),
                        group=self._group,
                        topic=message.topic,
                        msg_id=header.msg_id or "",
                        tags=message.tags,
                        keys=message.keys,
                        store_host=address,
                        msg_type=MessageType.TRANSACTION_COMMIT.value,
                        transaction_id=header.transaction_id,
                        transaction_state=state.value,
                        from_transaction_check=header.from_transaction_check,
                    )
                ]
            )

    def _not_told(self, header: EndTransactionRequestHeader, error: RucolaError) -> None:
        event(
            logger,
            logging.WARNING,
            "transaction state not sent, the broker will check later",
            transaction=header.transaction_id,
            error=error,
        )

    async def _asked(self, address: str, command: RemotingCommand) -> None:
        """Handles CHECK_TRANSACTION_STATE: a broker asks for the state of a half message."""
        if not self._pipeline.is_open:
            event(logger, logging.INFO, "transaction check during shutdown, the broker will repeat it", peer=address)
            return
        if self._checks >= _CHECKS_MAX:
            event(logger, logging.WARNING, "too many transaction checks, the broker will repeat this one", peer=address)
            return
        self._checks += 1
        try:
            with WorkInProgress(self._works):
                async with self._checking:
                    await self._check(address, command)
        finally:
            self._checks -= 1

    async def _check(self, address: str, command: RemotingCommand) -> None:
        asked = CheckTransactionStateRequestHeader.from_ext_fields(command.ext_fields)
        try:
            message = decode_message(bytes(command.body))
        except FormatError as error:
            event(logger, logging.WARNING, "half message cannot be read", peer=address, error=error)
            return
        group = message.properties.get(message_const.PGROUP)
        if group != self._group:
            event(logger, logging.WARNING, "transaction check for another group", peer=address, group=group)
            return
        message.broker_name = asked.broker_name or ""
        state = await _called(self._threads, self._listener.check_local_transaction, message)
        if isinstance(state, FailedCall):
            text = "transaction check failed, the broker will repeat it"
            event(logger, logging.ERROR, text, state.error, id=message.uniq_key)
            return
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=_DECISIONS.get(state, 0),
            from_transaction_check=True,
            topic=message.topic,
            msg_id=message.uniq_key or asked.msg_id,
            transaction_id=asked.transaction_id or message.uniq_key,
            broker_name=asked.broker_name,
        )
        await self._end(address, header, state, message)

    async def _meet_brokers(self) -> None:
        """Fetches the addresses of brokers that may send checks; heartbeats then register this producer."""
        if not self._asking_topics:
            while True:
                await self._until_met(self._instance.meet_all_brokers)
                await asyncio.sleep(self._config.poll_name_server_interval_ms / 1000)
        routes = self._instance.routes  # the route table keeps these routes up to date
        await asyncio.gather(*(self._until_met(partial(routes.route, topic)) for topic in self._asking_topics))

    async def _until_met(self, look_up: Callable[[], Awaitable[object]]) -> None:
        pause_s, longest_s = _PAUSE_S, self._config.poll_name_server_interval_ms / 1000
        while True:
            try:
                await look_up()
                return
            except RucolaError as error:
                event(logger, logging.WARNING, "brokers not found", group=self._group, error=error)
            await asyncio.sleep(min(pause_s, longest_s))
            pause_s *= 2


async def _called(
    threads: Executor, function: Callable[..., object], *arguments: object
) -> LocalTransactionState | FailedCall:
    """Calls ``function`` of the listener, which may raise anything. A plain function runs in a thread of ``threads``,
    with the caller's context variables.

    Returns:
        The transaction state; a ``FailedCall`` if the function raised something, or returned anything else.
    """
    if inspect.iscoroutinefunction(function):
        outcome = await awaited(function, *arguments)
    else:
        in_context = partial(copy_context().run, called, function, *arguments)
        outcome = await asyncio.get_running_loop().run_in_executor(threads, in_context)
        if called(inspect.isawaitable, outcome) is True:
            pending = cast("Awaitable[object]", outcome)
            outcome = await awaited(lambda: pending)
    if type(outcome) is LocalTransactionState or type(outcome) is FailedCall:  # isinstance may run the result's code
        return outcome
    error = ClientError(f"a transaction listener must return a LocalTransactionState, not {shown(outcome)}")
    return FailedCall(error)
