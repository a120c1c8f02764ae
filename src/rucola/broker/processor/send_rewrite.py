"""Creates frame-table rows from requests with unusual headers, and for messages whose properties the broker changes.

Such a row lies in a one-row table with its own buffer and is then processed like any row of the frame scanner.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from rucola.broker.lite.sending import LiteSends
from rucola.broker.property_gate import admit
from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY, delay_level, schedule
from rucola.broker.timer.timer_rewrite import TIMER, TimerRewriter
from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.common.key_builder import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rucola.common.message_const import (
    DELAYING,
    LITE_TOPIC,
    PRIORITY,
    REAL_QID,
    REAL_TOPIC,
    SENDER,
    SHARDING_KEY,
    TRAN_MSG,
    TRANSACTION_ID,
    UNIQ_KEY,
)
from rucola.common.numbers import INT32_MAX, number_in
from rucola.common.sysflag import TRANSACTION_MASK
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.store.results import LightPlace
from rucola.store.row_run import RowRun


class Rewritten(NamedTuple):
    """A message as it will be stored, in a row of its own.

    Attributes:
        detour: where it waits first; None if it does not wait.
        light: its place in the light queue of its lite topic; None if it belongs to none.
    """

    run: RowRun
    detour: Detour | None
    light: LightPlace | None


class Detour(NamedTuple):
    """The topic in which a message waits before it goes to the topic it was sent to."""

    topic: bytes
    asked_queue_id: int
    """The queue to which the message was sent; the response to its producer names this queue."""
    recall_handle: str = ""
    """The handle with which the producer may recall the message."""


def row_of_command(command: RemotingCommand) -> RowRun:
    """The row of a send request (10, 310, 320) with an unusual header.

    Raises:
        FormatError: a required field is missing or not a number.
    """
    v1 = command.code == RequestCode.SEND_MESSAGE
    header = (SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2).from_ext_fields(command.ext_fields)
    table = new_table(1)
    for column, value in (
        (FrameColumn.KIND, FrameKind.BATCH if header.batch else FrameKind.SEND),
        (FrameColumn.CODE, command.code),
        (FrameColumn.OPAQUE, command.opaque),
        (FrameColumn.FLAG, command.flag),
        (FrameColumn.VERSION, command.version),
        (FrameColumn.SERIALIZE, command.serialize),
        (FrameColumn.DEFAULT_TOPIC_QUEUES, header.default_topic_queue_nums),
        (FrameColumn.QUEUE_ID, header.queue_id),
        (FrameColumn.SYS_FLAG, header.sys_flag),
        (FrameColumn.BORN_TIMESTAMP, header.born_timestamp),
        (FrameColumn.MESSAGE_FLAG, header.flag),
        (FrameColumn.RECONSUME_TIMES, header.reconsume_times or 0),
    ):
        table[column] = value
    return _place(
        table,
        {
            FrameColumn.GROUP_POS: header.producer_group.encode(),
            FrameColumn.TOPIC_POS: header.topic.encode(),
            FrameColumn.DEFAULT_TOPIC_POS: header.default_topic.encode(),
            FrameColumn.PROPERTIES_POS: (header.properties or "").encode(),
            FrameColumn.BODY_POS: bytes(command.body),
        },
    )


class Rewriter:
    """Rewrites messages that are not stored as they came.

    Attributes:
        lite: handles messages that name a lite topic.

    Args:
        broker_properties: properties that the broker stores with every message.
        unique_id: creates a UNIQ_KEY.
        level_max: the highest delay level.
        transactions: whether transactional messages are accepted.
        host: the broker's IP address, for the error that refuses transactional messages.
        timer: handles messages that name a delivery time.
        sender: returns the mark of the account whose requests are being served; empty without accounts.
    """

    def __init__(
        self,
        broker_properties: bytes,
        unique_id: Callable[[], str],
        level_max: int,
        transactions: bool,
        host: str,
        timer: TimerRewriter,
        sender: Callable[[], str],
        lite: LiteSends,
    ) -> None:
        self._sender = sender
        self.lite = lite
        self._broker_properties = decode_properties(broker_properties)
        self._unique_id = unique_id
        self._level_max = level_max
        self._transactions = transactions
        self._host = host
        self._timer = timer

    def rewrite(self, source: bytearray, table: array[int], row: int, config: TopicConfig) -> Rewritten:
        """Row ``row`` as it will be stored: with a UNIQ_KEY, and without properties that only the broker sets.

        The row's queue id names the queue in which the row will be stored. If the message first waits in another topic
        (``Detour``), the queue id names a queue of that topic. ``broker_properties`` are then already in the row,
        because the store does not add them to a waiting message.

        Args:
            config: the topic to which the row was sent.

        Raises:
            BrokerError: MESSAGE_ILLEGAL for a property that clients may not send; see also ``LiteSends.address``.
        """
        base = row * ROW_WIDTH

        def text(position: FrameColumn, length: FrameColumn) -> bytes:
            start = table[base + position]
            return bytes(source[start : start + max(table[base + length], 0)])

        topic = text(FrameColumn.TOPIC_POS, FrameColumn.TOPIC_LEN)
        properties = decode_properties(text(FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN))
        admit(properties, str(topic, "utf-8", "replace"))
        if UNIQ_KEY not in properties:
            properties[UNIQ_KEY] = self._unique_id()
        made = table[base : base + ROW_WIDTH]
        light = self.lite.address(config, properties) if LITE_TOPIC in properties else None
        if PRIORITY in properties:
            _apply_priority(made, properties, config.write_queue_nums)
        detour = self._send_on_detour(str(topic, "utf-8", "replace"), made, properties)
        if detour is not None:
            properties = java_order([*properties.items(), *self._broker_properties.items()], PARSED_MAP_CAPACITY)
        texts = {
            FrameColumn.TOPIC_POS: topic,
            FrameColumn.PROPERTIES_POS: encode_properties(properties),
            FrameColumn.BODY_POS: text(FrameColumn.BODY_POS, FrameColumn.BODY_LEN),
        }
        return Rewritten(_place(made, texts), detour, light)

    def _send_on_detour(self, topic: str, made: array[int], properties: dict[str, str]) -> Detour | None:
        """If the message must first wait in another topic, changes ``made`` and ``properties`` accordingly. Returns
        that topic; None if the message need not wait.
        """
        asked_queue_id = made[FrameColumn.QUEUE_ID]
        if properties.get(TRAN_MSG, "").lower() == "true" and not (
            made[FrameColumn.RECONSUME_TIMES] > 0 and delay_level(properties) > 0
        ):
            if not self._transactions:
                raise BrokerError(
                    ResponseCode.NO_PERMISSION, f"the broker[{self._host}] sending transaction message is forbidden"
                )
            # If the message has a delay, the delay begins with the commit. An impossible time is refused now, not at
            # the commit.
            self._timer.due_ms(topic, properties)
            places = {REAL_TOPIC: topic, REAL_QID: str(asked_queue_id)}
            properties.update({TRANSACTION_ID: properties[UNIQ_KEY], **places})
            if mark := self._sender():
                properties[SENDER] = mark
            made[FrameColumn.QUEUE_ID] = 0
            made[FrameColumn.SYS_FLAG] &= ~TRANSACTION_MASK
            return Detour(TRANS_HALF_TOPIC.encode(), asked_queue_id)
        queue_id = schedule(topic, asked_queue_id, properties, self._level_max)
        if queue_id is not None:
            made[FrameColumn.QUEUE_ID] = queue_id
            return Detour(SCHEDULE_TOPIC.encode(), asked_queue_id)
        if self._timer.schedule(topic, asked_queue_id, properties):
            if mark := self._sender():
                properties[SENDER] = mark  # only its account may recall the message
            made[FrameColumn.QUEUE_ID] = 0
            return Detour(TIMER, asked_queue_id, self._timer.recall_handle(properties))
        return None


def _apply_priority(made: array[int], properties: dict[str, str], write_queues: int) -> None:
    """Chooses the queue of a message by its priority. A priority that is no number from 0 on has no effect. A message
    of a transaction, with a delay or with a sharding key loses its priority (RocketMQ 5.5.0, ``SendMessageProcessor``).
    """
    priority = number_in(properties[PRIORITY], 0, INT32_MAX)
    if priority is None:
        return
    is_of_transaction = properties.get(TRAN_MSG, "").lower() == "true"
    if is_of_transaction or SHARDING_KEY in properties or not DELAYING.isdisjoint(properties):
        del properties[PRIORITY]
    else:
        made[FrameColumn.QUEUE_ID] = max(min(priority, write_queues - 1), 0)


def _place(table: array[int], texts: dict[FrameColumn, bytes]) -> RowRun:
    """Stores ``texts`` one after another and writes their positions into the columns; each length column follows its
    position column.
    """
    source = bytearray()
    for column, text in texts.items():
        table[column], table[column + 1] = len(source), len(text)
        source += text
    return RowRun(source, memoryview(source), table, 0, 1)
