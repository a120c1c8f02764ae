"""Acknowledges popped messages and changes their invisible time (RocketMQ 5.3.3, ``AckMessageProcessor``,
``ChangeInvisibleTimeProcessor``; requests 200051, 200151 and 200053).

If a change has a record in the log, the response is sent only after the record is stored, and with SYNC_FLUSH only
after the record is synced. With ASYNC_FLUSH, the ``AckBuffer`` stores most acknowledgements, a little later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rucola.broker.pop.ack_buffer import AckBuffer
from rucola.broker.pop.order_info import ILLEGAL, OrderInfoManager
from rucola.broker.pop.order_locks import OrderLocks
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.pop.receipt import Receipt
from rucola.broker.pop.revive_log import ReviveLog
from rucola.broker.processor.responses import NO_CODE
from rucola.broker.refusals import FAQ
from rucola.broker.services import BrokerServices
from rucola.broker.when_safe import WhenSafe
from rucola.common.key_builder import lite_parts
from rucola.common.pop_topics import ORDER_REVIVE_QUEUE, real_topic
from rucola.errors import BrokerError
from rucola.formats.pop import IN_ORDER, PopAck, PopCheckpoint, PopKey
from rucola.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rucola.remoting.fairness.steps import Steps, at_once, in_turns
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel

if TYPE_CHECKING:
    from rucola.broker.lite.delivery import LiteDelivery

_LITE_TOPIC = "liteTopic"
"""The field of requests about messages of lite topics."""
_BATCHES_AT_ONCE = 32
"""Each batch takes up to 100 µs."""


class PopAckProcessor:
    """Serves acknowledgements. Event loop only; ``lite`` returns what serves those of lite topics."""

    def __init__(
        self,
        services: BrokerServices,
        orders: OrderInfoManager,
        log: ReviveLog,
        buffer: AckBuffer,
        locks: OrderLocks,
        when_safe: WhenSafe,
        lite: Callable[[], LiteDelivery],
    ) -> None:
        self._lite = lite
        self._services = services
        self._orders = orders
        self._log = log
        self._buffer = buffer
        self._locks = locks
        self._when_safe = when_safe
        self._now_ms = services.store.now_ms

    def ack(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200051: acknowledges a message."""
        if command.ext_fields.get(_LITE_TOPIC):
            return self._lite().acks.ack(command)
        header = AckMessageRequestHeader.from_ext_fields(command.ext_fields)
        self._check_queue(channel, header.topic, header.queue_id)
        low, high = self._range(header.topic, header.queue_id)
        if not low <= header.offset <= high:
            raise BrokerError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, store:{low}~{high}",
            )
        receipt = Receipt.decode(header.extra_info)
        self._check_topic_is_same(header.topic, receipt)
        queue = PoppedQueue(header.topic, header.consumer_group, header.queue_id)
        if receipt.ordered:
            end = self._ack_in_order(channel, queue, receipt, header.offset)
        else:
            end = self._put(queue, receipt, (header.offset,))
        return self._when_safe(channel, command, command.answer(ResponseCode.SUCCESS), end)

    def acknowledge(self, queue: PoppedQueue, receipt: Receipt, queue_offset: int) -> bool:
        """Acknowledges a message, if that is all there is to do; returns False if request 200051 must be sent, which
        then says what is wrong.
        """
        topic, queue_id, store = queue.topic, queue.queue_id, self._services.store
        config, name = self._services.topics.get(topic), topic.encode()
        if receipt.ordered or config is None or not 0 <= queue_id < config.read_queue_nums:
            return False
        low, high = store.queue_range(name, queue_id)
        if not low <= queue_offset <= high or receipt.pop_time_ms < store.deleted_ms(name):
            return False
        due_ms = receipt.pop_time_ms + receipt.invisible_ms
        return self._buffer.take(receipt.key(*queue), (queue_offset,), due_ms, receipt.revive_queue)

    def batch_ack(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 200151: acknowledges several messages; skips messages that are gone. A long request is served in
        steps, with other requests in between.
        """
        body = BatchAckMessageRequestBody.decode(command.body) if command.body else BatchAckMessageRequestBody()
        if not body.acks:
            raise BrokerError(ResponseCode.NO_MESSAGE, "")
        steps = self._put_batches(channel, body)
        if len(body.acks) > _BATCHES_AT_ONCE:
            return self._batch_ack_in_turns(channel, command, steps)
        return self._when_safe(channel, command, command.answer(ResponseCode.SUCCESS), at_once(steps))

    async def _batch_ack_in_turns(self, channel: Channel, command: RemotingCommand, steps: Steps[int]) -> Answer:
        end = await in_turns(steps)
        return self._when_safe(channel, command, command.answer(ResponseCode.SUCCESS), end)

    def _put_batches(self, channel: Channel, body: BatchAckMessageRequestBody) -> Steps[int]:
        """Stores the acknowledgements; returns the physical offset after the last record."""
        end = 0
        for batch in body.acks:
            if lite_parts(batch.topic) is not None:
                self._lite().acks.ack_batch(batch)
                yield
                continue
            topic = real_topic(batch.topic, batch.consumer_group, batch.retry)
            low, high = self._range(topic, batch.queue_id)
            offsets = tuple(offset for offset in batch.queue_offsets() if low <= offset <= high)
            if offsets and not self._is_of_former_topic(topic, batch.pop_time):
                end = max(end, self._put_batch(channel, topic, batch, body.broker_name, offsets))
            yield
        return end

    def change_invisible_time(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200053: stores a new checkpoint for the message, and an acknowledgement that removes the message from
        its old checkpoint. A message popped in order has no checkpoint; only its time in ``OrderInfo`` changes.
        """
        if command.ext_fields.get(_LITE_TOPIC):
            return self._lite().acks.change_invisible_time(command)
        header = ChangeInvisibleTimeRequestHeader.from_ext_fields(command.ext_fields)
        try:
            self._check_queue(channel, header.topic, header.queue_id)
            low, high = self._range(header.topic, header.queue_id)
            if not low <= header.offset < high:
                raise BrokerError(ResponseCode.NO_MESSAGE, NO_CODE)
            receipt = Receipt.decode(header.extra_info)
            self._check_topic_is_same(header.topic, receipt)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, ChangeInvisibleTimeResponseHeader().to_ext_fields())
        queue = PoppedQueue(header.topic, header.consumer_group, header.queue_id)
        if receipt.ordered:
            answer, end = self._change_in_order(queue, receipt, header), 0
        else:
            # The new pop time must differ from the old one. Otherwise both checkpoints could have the same key.
            pop_time_ms = max(self._now_ms(), receipt.pop_time_ms + 1)
            key = PopKey(*queue, header.offset, pop_time_ms, receipt.broker_name)
            self._log.put_checkpoint(PopCheckpoint(key, header.invisible_time, (0,)), receipt.revive_queue)
            ack = PopAck(receipt.key(*queue), (header.offset,))
            end = self._log.put_ack(ack, receipt.pop_time_ms + receipt.invisible_ms, receipt.revive_queue)
            answer = ChangeInvisibleTimeResponseHeader(pop_time_ms, header.invisible_time, receipt.revive_queue)
        return self._when_safe(
            channel, command, command.answer(ResponseCode.SUCCESS, NO_CODE, answer.to_ext_fields()), end
        )

    def _put_batch(
        self, channel: Channel, topic: str, batch: BatchAck, broker_name: str, offsets: tuple[int, ...]
    ) -> int:
        queue = PoppedQueue(topic, batch.consumer_group, batch.queue_id)
        receipt = Receipt(batch.start_offset, batch.pop_time, batch.invisible_time, batch.revive_queue_id, broker_name)
        if batch.revive_queue_id == ORDER_REVIVE_QUEUE:
            return max(self._ack_in_order(channel, queue, receipt, offset) for offset in offsets)
        return self._put(queue, receipt, offsets, batch=True)

    def _put(self, queue: PoppedQueue, receipt: Receipt, offsets: tuple[int, ...], batch: bool = False) -> int:
        """Stores an acknowledgement soon or now. Returns the physical offset after its record; 0 if it has none yet."""
        key, due_ms = receipt.key(*queue), receipt.pop_time_ms + receipt.invisible_ms
        if self._buffer.take(key, offsets, due_ms, receipt.revive_queue):
            return 0
        return self._log.put_ack(PopAck(key, offsets, batch), due_ms, receipt.revive_queue)

    def _ack_in_order(self, channel: Channel, queue: PoppedQueue, receipt: Receipt, queue_offset: int) -> int:
        """Acknowledges a message popped in order, and moves the group's offset forward if possible. After a crash, the
        broker repeats the move from a record in the log. Returns the physical offset after this record; 0 if no record
        was stored.
        """
        before = self._committed(queue)
        if queue_offset < before:
            return 0
        following = self._orders.acknowledge(queue, queue_offset, receipt.pop_time_ms)
        if following == ILLEGAL:
            key = f"{queue.topic}@{queue.group}@{queue.queue_id}"
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{key}, old:{before}, commit:{queue_offset}, next:{following}, "
                f"{channel.remote_address}",
            )
        if following < 0:
            return 0
        end = 0
        if following > before:
            done = PopAck(PopKey(*queue, IN_ORDER, receipt.pop_time_ms, receipt.broker_name), (following - 1,))
            end = self._log.put_ack(done, 0, queue.queue_id % self._log.queues)
        if self._services.resets.find(queue.group, queue.topic, queue.queue_id) is None:
            self._services.offsets.commit(queue.group, queue.topic, queue.queue_id, following)
        self._locks.changed(queue)
        return end

    def _change_in_order(
        self, queue: PoppedQueue, receipt: Receipt, header: ChangeInvisibleTimeRequestHeader
    ) -> ChangeInvisibleTimeResponseHeader:
        if header.offset < self._committed(queue):
            return ChangeInvisibleTimeResponseHeader()
        visible_ms = self._now_ms() + header.invisible_time
        self._orders.hide_until(queue, header.offset, receipt.pop_time_ms, visible_ms)
        self._locks.changed(queue)
        return ChangeInvisibleTimeResponseHeader(
            receipt.pop_time_ms, visible_ms - receipt.pop_time_ms, receipt.revive_queue
        )

    def _committed(self, queue: PoppedQueue) -> int:
        return self._services.offsets.query(queue.group, queue.topic, queue.queue_id) or 0

    def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._services.store.queue_range(topic.encode(), queue_id)

    def _check_topic_is_same(self, topic: str, receipt: Receipt) -> None:
        """Refuses receipts of a topic that was deleted and created again: their offsets belong to other messages now.

        Raises:
            BrokerError: NO_MESSAGE.
        """
        if self._is_of_former_topic(topic, receipt.pop_time_ms):
            raise BrokerError(ResponseCode.NO_MESSAGE, f"the topic[{topic}] was deleted after the pop")

    def _is_of_former_topic(self, topic: str, pop_time_ms: int) -> bool:
        return pop_time_ms < self._services.store.deleted_ms(topic.encode())

    def _check_queue(self, channel: Channel, topic: str, queue_id: int) -> None:
        config = self._services.topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}")
        if not 0 <= queue_id < config.read_queue_nums:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[{channel.remote_address}]",
            )
