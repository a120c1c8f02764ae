"""Checkpoints and acknowledgements on their way into the revive topic (RocketMQ 5.3.3,
``PopMessageProcessor#buildCkMsg``).

Both are timed messages of the revive topic. A checkpoint is due one second before its messages become visible again; an
acknowledgement is due at the time when its messages would become visible again. A checkpoint or an acknowledgement that
is already due is stored in the revive topic at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rucola.broker.timer.timer_rewrite import TIMER, TimerRewriter
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import REAL_TOPIC, TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from rucola.errors import BrokerError, FormatError
from rucola.formats.message import decode_message
from rucola.formats.pop import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopAck, PopCheckpoint
from rucola.formats.properties import encode_properties, java_order
from rucola.protocol.codes import ResponseCode
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

_CHECKPOINT_AHEAD_MS = 1000
_TAGS = {CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG}


class ReviveLog:
    """The revive topic of one broker.

    Args:
        topic: its name.
        queues: number of queues of the topic.
        timer: sends messages through the timer topic.
        wall_ms: returns the current time, which becomes the born time of new records.
    """

    def __init__(
        self, store: MessageStore, topic: str, queues: int, timer: TimerRewriter, wall_ms: Callable[[], int]
    ) -> None:
        self.topic = topic
        self.queues = queues
        self._name = topic.encode()
        self._store = store
        self._timer = timer
        self._wall_ms = wall_ms

    def put_checkpoint(self, checkpoint: PopCheckpoint, revive_queue: int) -> int:
        """Appends a checkpoint; returns the physical offset after it.

        Raises:
            BrokerError: the checkpoint was not stored; its messages must not be delivered.
        """
        return self._put(
            checkpoint.encode(), CHECKPOINT_TAG, checkpoint.unique_key, checkpoint_due_ms(checkpoint), revive_queue
        )

    def put_ack(self, ack: PopAck, due_ms: int, revive_queue: int) -> int:
        """Appends an acknowledgement; returns the physical offset after it.

        Raises:
            BrokerError: the acknowledgement was not stored.
        """
        return self._put(ack.encode(), ack.tag, ack.unique_key, due_ms, revive_queue)

    def max_offset(self, revive_queue: int) -> int:
        """The queue offset after the newest record of a queue."""
        return self._store.max_queue_offset(self._name, revive_queue)

    def min_offset(self, revive_queue: int) -> int:
        """Queue offset of the oldest record of a queue."""
        return self._store.min_queue_offset(self._name, revive_queue)

    def physical_offset(self, revive_queue: int, queue_offset: int) -> int:
        """Physical offset of the message at a queue offset."""
        return self._store.queue_unit(self._name, revive_queue, queue_offset)[0]

    def read(
        self, revive_queue: int, queue_offset: int, cold: ColdRecords | None = None
    ) -> tuple[PopCheckpoint | PopAck | None, int]:
        """The record in a message of the revive topic, and the store time of the message. The record is None if the
        message is gone or holds no record.

        Args:
            cold: as in ``MessageStore.message_at``.

        Raises:
            NotInMemoryError: the message must be fetched.
        """
        message = read_message(self._store, self._name, revive_queue, queue_offset, cold)
        return (None, 0) if message is None else (record_of(message), message.store_timestamp_ms)

    def newest(self, since_ms: int) -> Iterator[PopCheckpoint | PopAck]:
        """The records that were stored in the timer topic or in the revive topic since ``since_ms``. In each queue the
        newest come first.
        """
        places = [(TIMER, 0), *((self._name, queue_id) for queue_id in range(self.queues))]
        for topic, queue_id in places:
            for message in newest_messages(self._store, topic, queue_id, since_ms):
                if message.properties.get(REAL_TOPIC, message.topic) == self.topic:
                    record = record_of(message)
                    if record is not None:
                        yield record

    def _put(self, body: bytes, tag: str, unique_key: str, due_ms: int, revive_queue: int) -> int:
        if not 0 <= revive_queue < self.queues:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"there is no revive queue {revive_queue}")
        host = self._store.store_host
        try:
            properties = {TIMER_DELIVER_MS: str(due_ms), UNIQ_KEY: unique_key, TAGS: tag}
            text = encode_properties(java_order(properties.items()))
        except ValueError:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the topic, the group or the broker name has characters that are not allowed in messages",
            ) from None
        message = StoreMessage(self._name, revive_queue, body, text, self._wall_ms(), host)
        result = self._store.put_message(self._timer.rewrite(message))
        if result.status is not PutMessageStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the revive log cannot be written: {result.status.value}")
        return result.physical_offset + result.size


def checkpoint_due_ms(checkpoint: PopCheckpoint) -> int:
    """The time at which a checkpoint enters the revive topic."""
    return checkpoint.revive_ms - _CHECKPOINT_AHEAD_MS


def record_of(message: MessageExt) -> PopCheckpoint | PopAck | None:
    """The record in a message; None if it holds none."""
    if message.tags not in _TAGS:
        return None
    try:
        if message.tags == CHECKPOINT_TAG:
            return PopCheckpoint.decode(message.body)
        return PopAck.decode(message.body)
    except FormatError:
        return None


def newest_messages(store: MessageStore, topic: bytes, queue_id: int, since_ms: int) -> Iterator[MessageExt]:
    """The messages that were stored in a queue since ``since_ms``, newest first."""
    low = store.min_queue_offset(topic, queue_id)
    for queue_offset in range(store.max_queue_offset(topic, queue_id) - 1, low - 1, -1):
        message = read_message(store, topic, queue_id, queue_offset)
        if message is not None:
            if message.store_timestamp_ms < since_ms:
                return
            yield message


def read_message(
    store: MessageStore, topic: bytes, queue_id: int, queue_offset: int, cold: ColdRecords | None = None
) -> MessageExt | None:
    """The message at a queue offset, with its body as stored; None if it cannot be read or does not exist.

    Args:
        cold: see ``MessageStore.message_at``.

    Raises:
        NotInMemoryError: the message must be fetched.
    """
    physical_offset, size, _ = store.queue_unit(topic, queue_id, queue_offset)
    record = store.message_at(physical_offset, cold) if size else None
    if record is None:
        return None
    try:
        message = decode_message(record, unpack=False)
    except FormatError:
        return None
    return message if message.queue_offset == queue_offset and message.topic.encode() == topic else None
