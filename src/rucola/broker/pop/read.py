"""Reads queues for a pop and stores checkpoints of the popped messages (RocketMQ 5.3.3,
``PopMessageProcessor#popMsgFromQueue``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from struct import Struct

from rucola.broker.filter.filtered_read import READ_BYTES_MAX, FilteredRead
from rucola.broker.offset.offset_resets import OffsetResets
from rucola.broker.pop.order_info import OrderInfoManager
from rucola.broker.pop.order_locks import OrderLocks
from rucola.broker.pop.pop_offsets import PopOffsets, PoppedQueue
from rucola.broker.pop.receipt import PopInfo, Receipt
from rucola.broker.pop.revive_log import ReviveLog
from rucola.broker.retry_owner import is_for, records_of
from rucola.broker.stored_copy import own_properties
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import StoreMessage
from rucola.common.message_const import POP_CK
from rucola.filter.sql import SqlExpression
from rucola.formats.message import RECORD_HEAD, decode_message, encode_message
from rucola.formats.pop import PopCheckpoint
from rucola.formats.properties import encode_properties, java_order
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageResult, GetMessageStatus

_MOVED = {
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_FOUND_NULL,
}
_FROM_FIRST = 0
_PARSED_CAPACITY = 128
_QUEUE_OFFSET = Struct(">q").unpack_from
_QUEUE_OFFSET_AT = RECORD_HEAD.position("queue_offset")


@dataclass(slots=True)
class Pop:
    """A running pop.

    Attributes:
        began_ms: monotonic time in ms at which the client created the request.
        begin: the queue to begin with.
        by_priority: whether the queues are read in the order of priority.
        waited_for: queues whose messages an earlier attempt fetched from the disk.
        reserved: number of messages that the pop has to get again from queues from which it has none yet, by queue id.
        parts: the records for the response.
        size: their number of bytes; counted only if the client has set a limit.
        out_of_bytes: whether a message did not fit into the response.
        rest: number of further messages in the queues.
        moved: whether the filter skipped all messages that were read from a queue.
        cold: fetches the missing messages of the first queue whose messages were not in memory; any thread may
            call it.
        filtered: reads the queues of a pop with an expression.
    """

    header: PopMessageRequestHeader
    pop_time_ms: int
    revive_queue: int
    tag_codes: frozenset[int] | None
    expression: SqlExpression | None
    began_ms: int
    begin: int = 0
    by_priority: bool = False
    waited_for: set[PoppedQueue] = field(default_factory=set)
    info: PopInfo = field(default_factory=PopInfo)
    reserved: dict[int, int] = field(default_factory=dict)
    parts: list[bytes | memoryview] = field(default_factory=list)
    count: int = 0
    size: int = 0
    out_of_bytes: bool = False
    rest: int = 0
    blocked: list[PoppedQueue] = field(default_factory=list)
    """Queues that give no messages until their last pop is acknowledged."""
    moved: bool = False
    cold: Callable[[], None] | None = None
    filtered: FilteredRead | None = None

    @property
    def is_full(self) -> bool:
        """Whether the response gets no further messages."""
        must_fetch = self.by_priority and self.cold is not None  # a queue of lower priority must not be read before
        return must_fetch or self.out_of_bytes or self.count >= self.header.max_msg_nums

    def again(self, now_ms: int) -> Pop:
        """A new pop for the same request, to be run after ``cold`` was called; ``now_ms`` is its pop time."""
        return Pop(
            self.header,
            now_ms,
            self.revive_queue,
            self.tag_codes,
            self.expression,
            self.began_ms,
            self.begin,
            self.by_priority,
            self.waited_for,
        )


class PopReader:
    """Reads messages for pops. Event loop only."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        log: ReviveLog,
        resets: OffsetResets,
        popped: PopOffsets,
        orders: OrderInfoManager,
        locks: OrderLocks,
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._broker_name = broker_name
        self._store = store
        self._log = log
        self._resets = resets
        self._popped = popped
        self._orders = orders
        self._locks = locks

    def queues_again(self, pop: Pop) -> Collection[int]:
        """Ids of the queues whose messages ``pop``, which is in order, gets again because it has the attempt id of an
        earlier pop. Its pop time differs from the earlier one, whose acknowledgements do not count any more.
        """
        header = pop.header
        infos = self._orders.of_attempt(header.topic, header.consumer_group, header.attempt_id)
        if header.queue_id >= 0:
            infos = {queue_id: info for queue_id, info in infos.items() if queue_id == header.queue_id}
        while any(info.pop_time_ms == pop.pop_time_ms for info in infos.values()):
            pop.pop_time_ms += 1
        pop.reserved = {queue_id: len(info.offsets) for queue_id, info in infos.items()}
        return infos

    def free_left(self, pop: Pop) -> None:
        """Frees the queues whose messages did not fit into the answer to ``pop`` again: nobody has them."""
        for queue_id in pop.reserved:
            queue = PoppedQueue(pop.header.topic, pop.header.consumer_group, queue_id)
            self._orders.free(queue)
            self._locks.changed(queue)

    def read_queue(self, pop: Pop, topic: str, queue_id: int) -> None:
        """Adds messages of a queue to ``pop``.

        Raises:
            BrokerError: the checkpoint cannot be stored.
        """
        header = pop.header
        queue = PoppedQueue(topic, header.consumer_group, queue_id)
        start = self.offset_of(queue, header.init_mode)
        if header.order and self._is_blocked(queue, header):
            pop.blocked.append(queue)
            return
        if pop.is_full or (pop.filtered is not None and pop.filtered.is_time_up()):
            pop.rest += max(self._store.max_queue_offset(topic.encode(), queue_id) - start, 0)
            return
        result = self._read(pop, queue, start)
        if result.status in _MOVED:
            start = result.next_offset
            self._popped.forget(queue)
            self._popped.commit(queue, start)
            result = self._read(pop, queue, start)
        next_offset = result.next_offset
        records = _records(result.views, header.topic, topic)
        if records:
            receipt = Receipt(start, pop.pop_time_ms, header.invisible_time, pop.revive_queue, self._broker_name)
            parts = _fitting(pop, topic, records, receipt)
            taken, left = records[: len(parts)], records[len(parts) :]
            if left:
                next_offset = _queue_offset(left[0])
            if taken:
                self._take(pop, queue, receipt, next_offset, [_queue_offset(record) for record in taken])
                pop.parts += parts
        elif (result.views or result.status is GetMessageStatus.NO_MATCHED_MESSAGE) and result.next_offset > start:
            self._popped.forget(queue)
            self._popped.commit(queue, result.next_offset)
            pop.moved = True
        pop.rest += max(result.max_offset - max(next_offset, 0), 0)

    def _is_blocked(self, queue: PoppedQueue, header: PopMessageRequestHeader) -> bool:
        return self._orders.blocked_until_ms(queue, header.attempt_id, header.invisible_time) is not None

    def offset_of(self, queue: PoppedQueue, init_mode: int) -> int:
        """The offset at which the group continues. A group that has never got a message starts at the first or at the
        last message of the queue, depending on ``init_mode``.
        """
        reset = None
        if self._resets.table:
            reset = self._resets.take(queue.group, queue.topic, queue.queue_id)
        if reset is not None:
            self._orders.forget(queue)
            self._popped.forget(queue)
            self._popped.commit(queue, reset)
            return reset
        known = self._popped.query(queue)
        if known is not None:
            return known
        name = queue.topic.encode()
        low = self._store.min_queue_offset(name, queue.queue_id)
        if init_mode == _FROM_FIRST or is_retry_topic(queue.topic):
            start = low
        else:  # a group gets all messages if none was removed yet
            start = 0 if low == 0 else max(self._store.max_queue_offset(name, queue.queue_id) - 1, 0)
        self._popped.commit(queue, start)
        return start

    def _read(self, pop: Pop, queue: PoppedQueue, start: int) -> GetMessageResult:
        count_max = pop.header.max_msg_nums - pop.count
        if pop.reserved:
            others = sum(count for queue_id, count in pop.reserved.items() if queue_id != queue.queue_id)
            count_max = max(count_max - others, 1)
        where = (queue.topic.encode(), queue.queue_id, start, count_max)
        may_block = queue in pop.waited_for
        if pop.expression is not None:
            if pop.filtered is None:
                pop.filtered = FilteredRead(self._store, pop.expression, self._monotonic)
            result = pop.filtered.get_message(*where, may_block=may_block)
        else:
            result = self._store.get_message(*where, READ_BYTES_MAX, pop.tag_codes, may_block=may_block)
        if result.cold is not None and pop.cold is None:
            pop.cold = result.cold
            pop.waited_for.add(queue)
        return result

    def _take(self, pop: Pop, queue: PoppedQueue, receipt: Receipt, end_offset: int, offsets: list[int]) -> None:
        """Notes that the messages at ``offsets`` are popped."""
        header, start = pop.header, receipt.start_offset
        if header.order:
            pop.reserved.pop(queue.queue_id, None)
            self._orders.popped(queue, header.attempt_id, (pop.pop_time_ms, header.invisible_time), offsets)
            self._orders.describe(queue, pop.info)
            self._popped.commit(queue, start)
            self._locks.changed(queue)
        else:
            distances = tuple(offset - start for offset in offsets)
            key = receipt.key(queue.topic, queue.group, queue.queue_id)
            checkpoint = PopCheckpoint(key, header.invisible_time, distances)
            end = self._log.put_checkpoint(checkpoint, pop.revive_queue)
            self._popped.advance(queue, end_offset, end)
        pop.info.add(queue.topic, queue.queue_id, start, offsets)
        pop.count += len(offsets)


def _records(views: list[memoryview], asked: str, topic: str) -> list[memoryview]:
    """The records in ``views`` of ``topic`` that a pop of topic ``asked`` gets."""
    records = [record for view in views for record in records_of(view)]
    return [record for record in records if is_for(record, asked)] if is_retry_topic(topic) else records


def _queue_offset(record: memoryview) -> int:
    """The queue offset of a record."""
    queue_offset: int = _QUEUE_OFFSET(record, _QUEUE_OFFSET_AT)[0]
    return queue_offset


def _fitting(pop: Pop, topic: str, records: list[memoryview], receipt: Receipt) -> Sequence[bytes | memoryview]:
    """The first of ``records`` of ``topic``, as many as fit into the response, in the form that the client gets. The
    first record of a response always fits; otherwise no pop would ever get it. If one does not fit, the response is
    complete: a smaller message of another queue must not overtake it.
    """
    asked, bytes_max = pop.header.topic, pop.header.max_bytes
    if topic == asked and bytes_max is None:
        return records
    parts: list[bytes | memoryview] = []
    for record in records:
        part = record if topic == asked else _as_original(record, receipt, asked)
        if bytes_max is not None and pop.size + len(part) > bytes_max and (parts or pop.count):
            pop.out_of_bytes = True
            break
        pop.size += len(part)
        parts.append(part)
    return parts


def _as_original(record: memoryview, receipt: Receipt, topic: str) -> bytes:
    """A record of a retry topic, converted to a record of the original topic with the receipt inside."""
    message = decode_message(record, unpack=False)
    text = receipt.encode(message.topic, message.queue_id, message.queue_offset)
    properties = {POP_CK: text} | own_properties(message)
    return encode_message(
        StoreMessage(
            topic.encode(),
            message.queue_id,
            message.body,
            encode_properties(java_order(properties.items(), _PARSED_CAPACITY)),
            message.born_timestamp_ms,
            message.born_host,
            message.flag,
            message.sys_flag,
            message.reconsume_times,
            message.prepared_transaction_offset,
            message.store_host,
        ),
        message.physical_offset,
        message.queue_offset,
        message.store_timestamp_ms,
        message.store_host,
    )
