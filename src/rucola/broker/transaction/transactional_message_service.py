"""Commits, rolls back and checks half messages (RocketMQ 5.3.3, ``TransactionalMessageServiceImpl``). Event loop only.

A check asks a producer of the group for a decision that is still missing. Before each check a new copy of the half
message is stored; its property TRANSACTION_CHECK_TIMES holds the number of checks. A check counts only if a producer
was connected, so a producer that is absent for some minutes loses no message.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY, delay_rewrite
from rucola.broker.senders import AskedClient, Senders
from rucola.broker.set_aside import destination, set_aside
from rucola.broker.stored_copy import own_properties, stored_copy
from rucola.broker.timer.timer_rewrite import TIMER, TimerRewriter
from rucola.broker.transaction.half_messages import (
    GIVEN_UP,
    HALF,
    RESUMED_CHECKS,
    Half,
    HalfMessages,
    Identity,
    half_of,
    identity_of,
)
from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    REAL_TOPIC,
    SENDER,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
)
from rucola.common.sysflag import COMPRESSION_MASK, TRANSACTION_MASK, MessageSysFlag
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_message, encode_message
from rucola.formats.message_id import offset_message_id
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.runtime.logs import event
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageResult, PutMessageStatus

logger = logging.getLogger(__name__)

_HOUR_MS = 3600 * 1000
_OUTCOMES_MAX = 10_000
_WORK = "check of half messages"
_UNREADABLE = "the half message cannot be read"
_FOR_EVER = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""A message that the store refuses with these is refused always."""
_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)
_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)


class TransactionRules(NamedTuple):
    """The rules for checks.

    Attributes:
        timeout_ms: minimum age of a half message before its first check, unless its sender set a different age.
        check_max: number of checks after which the message moves to ``TRANS_CHECK_MAX_TIME_TOPIC``.
        level_max: highest delay level, for commits of delayed messages.
    """

    timeout_ms: int
    check_max: int
    level_max: int


class TransactionalMessageService:
    """Ends transactions as their producers decide, and asks producers for missing decisions.

    Args:
        prepare_give_up: creates ``TRANS_CHECK_MAX_TIME_TOPIC`` if it is missing.
        on_finished: called when a half message was committed, rolled back or given up.
        timer: redirects committed messages that have a delivery time.
        read_queue: returns the queue of a topic for a message of a queue; see ``TopicConfigManager.read_queue``.
        broker_name: name of this broker, which is sent to the producer with each check.
        senders: says which clients may be asked, and which accounts may decide.
    """

    def __init__(
        self,
        store: MessageStore,
        halves: HalfMessages,
        producers: ProducerManager,
        rules: TransactionRules,
        broker_name: str,
        wall_ms: Callable[[], int],
        prepare_give_up: Callable[[], object],
        on_finished: Callable[[], None],
        timer: TimerRewriter,
        senders: Senders,
        read_queue: Callable[[str, int], int],
    ) -> None:
        self._senders = senders
        self._read_queue = read_queue
        self._store = store
        self._halves = halves
        self._producers = producers
        self._rules = rules
        self._broker_name = broker_name
        self._wall_ms = wall_ms
        self._prepare_give_up = prepare_give_up
        self._on_finished = on_finished
        self._timer = timer
        self._outcomes: OrderedDict[Identity, int] = OrderedDict()
        """Outcomes of the transactions that ended last; they answer repeated requests."""
        self._asked = 0
        self._named: set[int] = set()
        """Physical offsets of unfinished half messages that were named in the log because they cannot be checked."""

    def end(self, header: EndTransactionRequestHeader, cold: ColdRecords | None = None, account: str = "") -> int:
        """Commits or rolls back. Repeating the same request changes nothing.

        Args:
            account: the account that sent the request; empty without accounts.
            cold: see ``MessageStore.message_at``.

        Returns:
            The physical offset up to which the log must be synced before the outcome is durable.

        Raises:
            BrokerError: another account sent the half message, or the request does not name a half message of the
                producer's group, or the transaction has ended
                with a different or unknown outcome, or the message's topic was deleted after the half message was
                stored; the transaction has then ended.
            NotInMemoryError: half messages must be fetched from the disk; nothing was committed or rolled back.
        """
        self._halves.scan(cold)
        message = self._find(header, cold, account)
        identity = identity_of(message)
        if identity not in self._halves.pending:
            if self._outcomes.get(identity) != header.commit_or_rollback:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, "the transaction has ended already, or was given up")
            return self._store.max_offset
        if self._is_deleted(message, self._halves.pending[identity]):
            self._finish(identity, 0)
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "the topic of the transaction was deleted")
        if header.commit_or_rollback == _COMMIT:
            result = self._store.put_copy(self._committed(message))
            if result.status is not PutMessageStatus.PUT_OK:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, result.status.value)
        self._finish(identity, header.commit_or_rollback)
        return self._store.max_offset

    def note_outcomes(self) -> int:
        """Stores the outcomes that are only in memory so far, such as rollbacks, so that producers are not asked about
        them after a restart.

        Returns:
            The physical offset up to which the log must be synced before these outcomes are durable.

        Raises:
            BrokerError: the store refuses messages at the moment.
        """
        if not self._halves.write_ops():
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the outcome cannot be stored")
        return self._store.max_offset

    def is_due(self, half: Half) -> bool:
        """Whether ``half`` is due for a check, or must be given up."""
        now_ms = self._wall_ms()
        return self._old(half, now_ms) or self._hopeless(half, now_ms)

    def check(self, half: Half, cold: ColdRecords | None = None) -> None:
        """Moves ``half`` to ``TRANS_CHECK_MAX_TIME_TOPIC`` if its checks are used up or it is too old; otherwise asks
        one connected producer of its group, if there is any that may be asked. Does nothing if the transaction has
        already ended. If the message's topic was deleted, the transaction ends.

        A message that cannot be checked is named in the log, and stays.

        ``cold`` is as in ``end``.
        """
        try:
            self._check(half, cold)
        except (FormatError, ValueError) as error:
            self._name_once(half, error)

    def _check(self, half: Half, cold: ColdRecords | None) -> None:
        if self._halves.pending.get(half.identity) is not half:
            return
        hopeless = self._hopeless(half, self._wall_ms())
        audience = self._audience(half)
        is_removed = half.physical_offset < self._store.min_offset
        if not (hopeless or audience or is_removed):
            # The record is not read, because thousands of messages may wait for one absent producer.
            return
        record = self._store.message_at(half.physical_offset, cold)
        if record is None:
            self._name_once(half, _UNREADABLE)
            if is_removed:  # the log segment with the message is gone
                self._finish(half.identity, 0)
            return
        message = decode_message(record, unpack=False)
        if self._is_deleted(message, half):
            self._finish(half.identity, 0)
            return
        try:
            destination(message.properties)
        except FormatError as error:
            set_aside(self._store.stats, _WORK, half.physical_offset, error)
            hopeless = True
        if hopeless:
            self._give_up(half, record)
            return
        properties = own_properties(message)
        properties[TRANSACTION_CHECK_TIMES] = str(half.checks + 1)
        copy = _half_copy(message, properties)
        result = self._put_half(message, copy, properties)
        if result.status in _FOR_EVER:
            set_aside(self._store.stats, _WORK, half.physical_offset, result.status.value)
            self._give_up(half, record)
        if result.status is not PutMessageStatus.PUT_OK:
            return
        self._asked += 1
        asked = audience[self._asked % len(audience)]
        asked.client.channel.invoke_oneway(self._question(copy, properties, result, asked.reads))

    def renew(self, half: Half, cold: ColdRecords | None = None) -> None:
        """Stores a copy of ``half`` that replaces it, because the part of the log that holds it is to be removed. Does
        nothing if there is a newer copy, or if the transaction has ended.

        ``cold`` is as in ``end``.
        """
        if self._halves.pending.get(half.identity) is not half:
            return
        record = self._store.message_at(half.physical_offset, cold)
        if record is None:
            self._name_once(half, _UNREADABLE)
            return
        message = decode_message(record, unpack=False)
        properties = own_properties(message)
        self._put_half(message, _half_copy(message, properties), properties)

    def resume_check(self, physical_offset: int, cold: ColdRecords | None = None) -> int:
        """Puts a message of ``TRANS_CHECK_MAX_TIME_TOPIC`` back into the half topic, so that its checks begin again.

        Changes nothing if the message has been put back before and still waits for its producer's decision.

        Args:
            physical_offset: physical offset of that message.
            cold: as in ``end``.

        Returns:
            The physical offset up to which the log must be synced before the message is durable.

        Raises:
            BrokerError: there is no such message; or an earlier call put it back, and its transaction has ended since
                then; or the store refuses messages at the moment.
        """
        record = self._store.message_at(physical_offset, cold)
        message = None if record is None else decode_message(record, unpack=False)
        if message is None or message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"Put message back to {TRANS_HALF_TOPIC} failed: "
                f"no message of {TRANS_CHECK_MAX_TIME_TOPIC} has this id",
            )
        self._halves.scan(cold)
        identity = identity_of(message)
        if identity not in self._halves.pending:
            if self._outcomes.get(identity):
                raise BrokerError(ResponseCode.SYSTEM_ERROR, "the transaction has ended already")
            properties = own_properties(message)
            # This property names an older copy, which is finished. A new copy with this property would count as
            # finished, too, when the broker starts again.
            properties.pop(TRAN_PREPARED_QUEUE_OFFSET, None)
            properties[TRANSACTION_CHECK_TIMES] = RESUMED_CHECKS
            result = self._put_half(message, _half_copy(message, properties), properties, renewed=True)
            if result.status is not PutMessageStatus.PUT_OK:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, f"Put message back to {TRANS_HALF_TOPIC} failed.")
            event(logger, logging.WARNING, "half message put back", unique_key=identity[0])
        return self._store.max_offset

    def _put_half(
        self, message: MessageExt, copy: StoreMessage, properties: dict[str, str], renewed: bool = False
    ) -> PutMessageResult:
        """Stores a newer copy of a half message, which replaces the previous copy.

        Args:
            renewed: whether the message's age is counted from the store time of this copy.
        """
        result = self._store.put_copy(copy)
        if result.status is PutMessageStatus.PUT_OK:
            message.properties = properties
            newer = half_of(message, result.queue_offset, result.physical_offset)
            self._halves.replace(replace(newer, stored_ms=result.store_timestamp_ms) if renewed else newer)
        return result

    def _find(self, header: EndTransactionRequestHeader, cold: ColdRecords | None, account: str) -> MessageExt:
        """The half message that the request names directly or through a copy.

        Raises:
            BrokerError: SYSTEM_ERROR as in RocketMQ; ILLEGAL_OPERATION if the message is older than the check
                immunity time that its producer set.
        """
        record = self._store.message_at(header.commit_log_offset, cold)
        renewed = None
        if record is None and header.commit_log_offset < self._store.min_offset:
            # The record was removed for lack of space. The producer does not know the copy that was stored before.
            renewed = self._halves.by_unique_key(header.transaction_id or "")
            record = None if renewed is None else self._store.message_at(renewed.physical_offset, cold)
        message = None if record is None else decode_message(record, unpack=False)
        if message is None or message.topic != TRANS_HALF_TOPIC:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        properties = message.properties
        self._senders.check_end(account, properties.get(SENDER, ""))
        if properties.get(PGROUP) != header.producer_group:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if renewed is None and message.queue_offset != header.tran_state_table_offset:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if header.transaction_id and header.transaction_id != properties.get(
            TRANSACTION_ID, properties.get(UNIQ_KEY, "")
        ):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The transaction id wrong")
        immunity_s = half_of(message, 0, 0).immunity_s
        age_ms = self._wall_ms() - message.born_timestamp_ms
        if immunity_s is not None and not header.from_transaction_check and age_ms > immunity_s * 1000:
            raise BrokerError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the transaction is older than its {CHECK_IMMUNITY_TIME_IN_SECONDS}; its producer will be asked",
            )
        return message

    def _committed(self, message: MessageExt) -> StoreMessage:
        """The half message as its consumers will receive it."""
        record = self._store.message_at(message.physical_offset)
        assert record is not None
        copy, properties = stored_copy(record)
        try:
            topic, queue_id = destination(properties)
            queue_id = self._read_queue(topic.decode(), queue_id)
        except FormatError:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the half message does not name its destination") from None
        committed = replace(
            copy,
            topic=topic,
            queue_id=queue_id,
            sys_flag=copy.sys_flag & ~TRANSACTION_MASK | _COMMIT,
            prepared_transaction_offset=message.physical_offset,
        )
        rewritten = self._timer.rewrite(delay_rewrite(committed, self._rules.level_max), accepted=True)
        return rewritten if rewritten.topic == TIMER else without_sender(rewritten)

    def _is_deleted(self, message: MessageExt, half: Half) -> bool:
        """Whether the message's topic was deleted after its newest copy was stored."""
        topic = message.properties.get(REAL_TOPIC, "")
        return self._store.is_deleted(topic.encode(errors="replace"), half.physical_offset)

    def _hopeless(self, half: Half, now_ms: int) -> bool:
        """True if ``half`` must not be checked again: its checks are used up, or it is too old. Even an old
        message is checked at least once if a producer is connected, because a clock that jumps forward makes all
        messages old.
        """
        if half.checks >= self._rules.check_max:
            return True
        # After this time the log may remove the message. Even with a retention of zero hours, producers must be asked.
        old = now_ms - half.stored_ms > max(self._store.config.file_reserved_time_h, 1) * _HOUR_MS
        return old and (half.checks > 0 or not self._audience(half))

    def _audience(self, half: Half) -> list[AskedClient]:
        return self._senders.audience(self._producers.clients(half.group), half.sender, half.topic)

    def _old(self, half: Half, now_ms: int) -> bool:
        """Whether the check of ``half`` is due. The age of a message whose producer's clock is ahead is counted from
        its storage.
        """
        limit_ms = self._rules.timeout_ms if half.immunity_s is None else half.immunity_s * 1000
        return now_ms - min(half.born_ms, half.stored_ms) > limit_ms

    def _name_once(self, half: Half, error: object) -> None:
        """Names a half message that cannot be checked. It stays, because the disk may recover."""
        if half.physical_offset not in self._named:
            self._named.add(half.physical_offset)
            set_aside(self._store.stats, _WORK, half.physical_offset, error)

    def _give_up(self, half: Half, record: memoryview) -> None:
        self._prepare_give_up()
        copy, _ = stored_copy(record)
        given_up = replace(copy, topic=GIVEN_UP, queue_id=0, sys_flag=copy.sys_flag & ~TRANSACTION_MASK)
        status = self._store.put_copy(given_up).status
        if status in _FOR_EVER:
            set_aside(self._store.stats, _WORK, half.physical_offset, status.value)
            self._finish(half.identity, 0)
        elif status is PutMessageStatus.PUT_OK:
            event(logger, logging.WARNING, "half message given up", unique_key=half.identity[0], checks=half.checks)
            self._finish(half.identity, 0)

    def _finish(self, identity: Identity, outcome: int) -> None:
        if len(self._outcomes) >= _OUTCOMES_MAX:
            self._outcomes.popitem(last=False)
        self._outcomes[identity] = outcome
        self._named.discard(self._halves.pending[identity].physical_offset)
        self._halves.finish(identity)
        self._on_finished()

    def _question(
        self, copy: StoreMessage, properties: dict[str, str], result: PutMessageResult, reads: bool
    ) -> RemotingCommand:
        """Builds the request CHECK_TRANSACTION_STATE (39), which asks the producer for its decision about ``copy``. The
        request's body is the message as consumers would receive it. If the producer may not read it (``reads``), the
        message has no body, but its ids, keys and other properties, by which a listener decides.
        """
        unique_key = properties.get(UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            result.queue_offset,
            result.physical_offset,
            TRANS_HALF_TOPIC,
            unique_key,
            properties.get(TRANSACTION_ID, unique_key),
            offset_message_id(self._store.store_host, result.physical_offset),
            self._broker_name,
        )
        topic, queue_id = destination(properties)
        seen = without_sender(copy) if reads else without_body(without_sender(copy))
        real = replace(seen, topic=topic, queue_id=queue_id)
        body = encode_message(
            real, result.physical_offset, result.queue_offset, result.store_timestamp_ms, self._store.store_host
        )
        return RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext_fields=header.to_ext_fields(), body=body)


def _half_copy(message: MessageExt, properties: dict[str, str]) -> StoreMessage:
    """A copy for the half topic."""
    return StoreMessage(
        HALF,
        0,
        message.body,
        encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY)),
        message.born_timestamp_ms,
        message.born_host,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        store_host=message.store_host,
    )


def without_sender(copy: StoreMessage) -> StoreMessage:
    """``copy`` without the mark of its sender, which clients do not get."""
    properties = decode_properties(copy.properties)
    if properties.pop(SENDER, None) is None:
        return copy
    return replace(copy, properties=encode_properties(properties))


def without_body(copy: StoreMessage) -> StoreMessage:
    """``copy`` without its body. A compressed message then no longer says so: clients would unpack nothing."""
    compression = int(MessageSysFlag.COMPRESSED) | COMPRESSION_MASK
    return replace(copy, body=b"", sys_flag=copy.sys_flag & ~compression)


def is_decision(commit_or_rollback: int) -> bool:
    """True if the producer has decided; if False, the broker will ask the producer later.

    Raises:
        FormatError: the number is none of the three outcomes: commit, rollback and undecided (0).
    """
    if commit_or_rollback not in (0, _COMMIT, _ROLLBACK):
        raise FormatError("end of a transaction", 0, f"0, {_COMMIT} or {_ROLLBACK}", str(commit_or_rollback))
    return commit_or_rollback != 0
