"""Appends messages: assigns queue offsets, refuses what cannot be stored, and notifies the components that wait for
appends. ``CommitLog`` does none of this.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.common.kernel_columns import FRAME_PHYSICAL_OFFSET, FRAME_QUEUE_ID
from rucola.common.message import StoreMessage
from rucola.common.sysflag import MessageSysFlag
from rucola.formats.message import CRC_PROPERTY_BYTES, CRC_PROPERTY_NAME, encode_message, fill_row
from rucola.store.condition import StoreCondition
from rucola.store.config import MessageStoreConfig
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.flush import FlushService
from rucola.store.queue.assign_offset import OffsetAssigner
from rucola.store.queue.consume_queue_store import QUEUE_ID_MAX, ConsumeQueueStore
from rucola.store.queue.queue_factory import is_topic_directory
from rucola.store.results import PutMessageResult, PutMessageStatus, StoreState
from rucola.store.row_run import PLAIN, AppendOptions, RowRun
from rucola.store.stats import StoreStats

_OK = PutMessageStatus.PUT_OK
_ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL
_TOPIC_BYTES_MAX = 127
_RETRY_TOPIC_BYTES_MAX = 255
_PROPERTIES_BYTES_MAX = 32767
_PAIR_END = b"\x02"


class MessageAppender:
    """Appends rows and single messages to ``log``. Runs on the thread that owns the store.

    Args:
        flush: is woken after each append.
        condition: tells whether the store accepts messages, and is notified when a write fails.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        queues: ConsumeQueueStore,
        flush: FlushService,
        condition: StoreCondition,
        stats: StoreStats,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._flush = flush
        self._condition = condition
        self._stats = stats
        self._on_append: Callable[[], None] = lambda: None
        self._closed = False
        self._tables = queues.next_offset_tables
        self._assigner = OffsetAssigner(queues, config.enable_lmq)

    def listen(self, on_append: Callable[[], None]) -> None:
        """Calls ``on_append`` after each append."""
        self._on_append = on_append

    def close(self) -> None:
        """Refuses all messages from now on, because the log is a copy: its records are the master's."""
        self._closed = True

    def append_rows(
        self, run: RowRun, topic: bytes, born_host: bytes, options: AppendOptions = PLAIN
    ) -> PutMessageStatus:
        """Appends rows of a frame table, all of ``topic``.

        Args:
            born_host: address of the sender, 8 or 20 bytes.

        Returns:
            PUT_OK when all rows are stored. Otherwise, rows with PHYSICAL_OFFSET -1 were not stored; the others were.
        """
        _, _, table, first, last = run
        if self._closed or self._condition.state is not StoreState.RUNNING:
            refuse_rows(table, first, last)
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        status = _OK
        offsets = self._tables.get(topic)
        if offsets is None:
            offsets = self._queues.next_offsets(topic)
        done = self._log.append_rows(run, topic, born_host, offsets, options)
        if done < last:
            status = self._append_rest(run._replace(first=done), topic, born_host, offsets, options)
        self._stats.put_messages += last - first
        self._queues.appended(topic, table[first * ROW_WIDTH + FRAME_QUEUE_ID])
        self._flush.wake()
        self._on_append()
        return status

    def _append_rest(
        self, run: RowRun, topic: bytes, born_host: bytes, offsets: array[int], options: AppendOptions
    ) -> PutMessageStatus:
        """Continues after the log has refused the first row of ``run``."""
        log, status = self._log, _OK
        _, _, table, done, last = run
        while done < last:
            # ``offsets`` has no element yet for a queue that is seen for the first time. If no element is missing, the
            # row is refused because it is illegal, or because the log cannot be written.
            highest = max(table[done * ROW_WIDTH + FRAME_QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH])
            if log.refusal is _ILLEGAL and len(offsets) <= highest < QUEUE_ID_MAX:
                offsets = self._queues.next_offsets(topic, highest + 1)
            else:
                status = log.refusal
                if status is not _ILLEGAL or options.together:
                    refuse_rows(table, done, last)
                    if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
                        self._note_refusal()
                    break
                refuse_rows(table, done, done + 1)
                done += 1
                if done == last:
                    break
            done = log.append_rows(run._replace(first=done), topic, born_host, offsets, options)
        return status

    def _note_refusal(self) -> None:
        """Notes why the log cannot be written."""
        log, condition = self._log, self._condition
        if log.failed:
            self._flush.fail()
            condition.fail()
            condition.tell()
        elif log.unwritten:
            condition.space_is_gone("write")
        elif log.lacks_segment():
            condition.space_is_gone("segment")
            if not log.lacks_segment():
                # The allocating thread may have made the segment before the line above noted the cause. Then that
                # thread had nothing to clear.
                condition.space_is_back("segment")

    def put_messages(self, messages: Sequence[StoreMessage], copies: bool = False) -> list[PutMessageResult]:
        """See ``MessageStore.put_messages`` and ``MessageStore.put_copies``."""
        if self._closed or self._condition.state is not StoreState.RUNNING:
            return [PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)] * len(messages)
        head = messages[0]
        if any((m.topic, m.born_host, m.store_host) != (head.topic, head.born_host, head.store_host) for m in messages):
            raise ValueError("messages stored in one call must have the same topic, sender and store host")
        status = next((s for s in (self._check(m, copies) for m in messages) if s is not _OK), _OK)
        if status is not _OK:
            return [PutMessageResult(status)] * len(messages)
        if len(messages) == 1 and self._assigner.concerns(head):
            return [self._put_assigned(head, copies)]
        return self._put(messages)

    def _put_assigned(self, message: StoreMessage, is_copy: bool) -> PutMessageResult:
        """Writes queue offsets into the properties of one message, then appends it."""
        text = self._assigner.properties(message, self._without_crc(message.properties))
        assigned = replace(message, properties=text)
        if self._check_limits(assigned, is_copy) is not _OK or (not is_copy and self._is_too_long(assigned)):
            return PutMessageResult(_ILLEGAL)
        result = self._put([assigned])[0]
        if result.status is _OK:
            self._stats.put_messages += self._assigner.stored(assigned)
        return result

    def _is_too_long(self, message: StoreMessage) -> bool:
        """Whether the whole record of a light-queue message exceeds ``maxMessageSize``. For other messages, this option
        limits only the body.
        """
        if message.sys_flag & MessageSysFlag.INNER_BATCH:
            return False
        config = self._config
        record = encode_message(message, 0, 0, 0, self._log.store_host, config.enabled_append_prop_crc)
        return len(record) > config.max_message_size

    def _put(self, messages: Sequence[StoreMessage]) -> list[PutMessageResult]:
        """Appends messages that were already checked."""
        head = messages[0]
        source = bytearray()
        table = new_table(len(messages))
        for row, message in enumerate(messages):
            fill_row(table, row, message, len(source))
            properties = self._without_crc(message.properties)
            table[row * ROW_WIDTH + FrameColumn.PROPERTIES_LEN] = len(properties)
            source += message.body + properties
        run = RowRun(source, memoryview(source), table, 0, len(messages))
        options = AppendOptions(b"", together=len(messages) > 1, store_host=head.store_host)
        status = self.append_rows(run, head.topic, head.born_host, options)
        return [self._result(table, row, status) for row in range(len(messages))]

    def _check(self, message: StoreMessage, is_copy: bool) -> PutMessageStatus:
        return self._check_limits(message, is_copy) if self._assigner.legal(message) else _ILLEGAL

    def _check_limits(self, message: StoreMessage, is_copy: bool) -> PutMessageStatus:
        """Checks the limits of RocketMQ 5.3.3 (``HookUtils#checkBeforePutMessage``, ``MessageExtEncoder``); for a copy,
        unlike RocketMQ, not the size of the body.
        """
        topic_max = _RETRY_TOPIC_BYTES_MAX if message.topic.startswith(b"%RETRY%") else _TOPIC_BYTES_MAX
        if not 0 < len(message.topic) <= topic_max:
            return _ILLEGAL
        if not is_copy and len(message.body) > self._config.max_message_size:
            return _ILLEGAL
        if not is_topic_directory(message.topic) or not 0 <= message.queue_id < QUEUE_ID_MAX:
            return _ILLEGAL
        reserve = CRC_PROPERTY_BYTES + 1 if self._config.enabled_append_prop_crc else 0
        if len(message.properties) + reserve > _PROPERTIES_BYTES_MAX + bool(reserve):
            return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        return _OK

    def _without_crc(self, properties: bytes) -> bytes:
        """Returns the property text; leaves out a checksum that belonged to a different record."""
        if not self._config.enabled_append_prop_crc or CRC_PROPERTY_NAME not in properties:
            return properties
        pairs = [pair for pair in properties.split(_PAIR_END) if pair and not pair.startswith(CRC_PROPERTY_NAME)]
        return b"".join(pair + _PAIR_END for pair in pairs)

    def _result(self, table: array[int], row: int, status: PutMessageStatus) -> PutMessageResult:
        if status is not _OK:
            return PutMessageResult(status)
        base = row * ROW_WIDTH
        return PutMessageResult(
            status,
            table[base + FrameColumn.PHYSICAL_OFFSET],
            table[base + FrameColumn.RECORD_SIZE],
            table[base + FrameColumn.QUEUE_OFFSET],
            self._log.store_timestamp_ms,
        )


def refuse_rows(table: array[int], first: int, last: int) -> None:
    """Marks the rows as not stored."""
    for index in range(first, last):
        table[index * ROW_WIDTH + FRAME_PHYSICAL_OFFSET] = -1
