"""Sends to lite topics. The property ``__LITE_TOPIC`` names the lite topic, the message goes to its parent, and the
broker adds the light queue and the offset there. Event loop only.

Messages of retry and dead-letter topics keep the property, but belong to no lite topic. In RocketMQ 5.5.0 with queues
in files, a dead letter takes the place of the lite topic's next message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rucola.broker.config import BrokerConfig
from rucola.broker.lite.attributes import is_parent
from rucola.common.columns import ROW_WIDTH, new_table
from rucola.common.kernel_columns import FRAME_BODY_LEN, FRAME_PROPERTIES_LEN
from rucola.common.key_builder import LITE_PREFIX, is_dlq_topic, is_retry_topic
from rucola.common.lite_topics import LITE_TOPIC_CHARACTERS_MAX, check_lite_topic, lite_queue_topic
from rucola.common.message_const import (
    DELAYING,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    LITE_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TRAN_MSG,
)
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.errors import BrokerError, ClientError
from rucola.formats._lite_send_cy import find_plain_lite, write_lite_rows
from rucola.protocol.codes import ResponseCode
from rucola.store.results import LightPlace
from rucola.store.row_run import RowRun

if TYPE_CHECKING:
    from rucola.store.lite.lite_topics import LiteTopics

_NO_LITE_TOPICS = "this broker has no lite topics; it needs enableLmq=true and enableMultiDispatch=true"
QUOTA_EXCEEDED = "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
"""RocketMQ's text."""
_BETWEEN = f"\x02{INNER_MULTI_QUEUE_OFFSET}\x01".encode()
_ROW_ADDED_BYTES = len(_BETWEEN) + LITE_TOPIC_CHARACTERS_MAX + 32
"""Most bytes that a row becomes longer, without what precedes the lite topic; the offset and two ends take up to 21."""
_ROWS_MAX = 512
"""Rows that are prepared together; each takes 2 µs."""
_PAIRS_MAX = 32
"""A row with more properties is prepared alone."""


class LiteRows(NamedTuple):
    """Messages of lite topics as they will be stored.

    Attributes:
        names: the lite topic ``<parent>$<lite>`` of each.
        queue_offsets: their offsets there.
    """

    run: RowRun
    names: list[bytes]
    queue_offsets: array[int]


class LiteSends:
    """The rules of a broker.

    Args:
        topics: the lite topics of the store; None if it has none.
        new_name: called before a message makes a lite topic; raises ``BrokerError`` if its account may not.
    """

    def __init__(self, config: BrokerConfig, topics: LiteTopics | None, new_name: Callable[[], None]) -> None:
        self._config = config
        self._topics = topics
        self._new_name = new_name
        self._places, self._pairs = array("q", bytes(16 * _ROWS_MAX)), array("q", bytes(16 * _PAIRS_MAX))

    def address_rows(self, run: RowRun, parent: TopicConfig, no_wait: bool) -> LiteRows | None:
        """Does what ``address`` does for the first rows of ``run`` that name a lite topic and need nothing else.

        Args:
            no_wait: whether rows that do not wait for a sync may be among them.

        Returns:
            The rows in a table of their own; None if the first row must be looked at alone, which then tells why it is
            refused.
        """
        topics, topic = self._topics, parent.topic_name
        if topics is None or self._config.enable_lmq_quota or not is_parent(parent):
            return None
        if is_retry_topic(topic) or is_dlq_topic(topic):
            return None
        source, _, table, first, last = run
        places, (head, prefix) = self._places, _heads_of(topic)
        count = find_plain_lite(source, table, first, last, no_wait, len(head) + len(_BETWEEN), places, self._pairs)
        names = [prefix + source[places[i] : places[i] + places[i + 1]] for i in range(0, 2 * count, 2)]
        queue_offsets = topics.next_offsets(names)
        count = self._allowed(queue_offsets)
        if count == 0:
            return None
        lengths = (FRAME_BODY_LEN, FRAME_PROPERTIES_LEN)
        begin, end = first * ROW_WIDTH, (first + count) * ROW_WIDTH
        size = sum(sum(table[begin + column : end : ROW_WIDTH]) for column in lengths)
        target, rows = bytearray(size + count * (len(head) + _ROW_ADDED_BYTES)), new_table(count)
        write_lite_rows(source, table, first, count, head, _BETWEEN, places, queue_offsets, target, rows)
        return LiteRows(RowRun(target, memoryview(target), rows, 0, count), names[:count], queue_offsets[:count])

    def _allowed(self, queue_offsets: array[int]) -> int:
        """Returns how many of the rows may be stored: those before one that would make a lite topic too many."""
        if 0 in queue_offsets:
            for number, queue_offset in enumerate(queue_offsets):
                if queue_offset == 0:
                    try:
                        self._new_name()
                    except BrokerError:
                        return number
        return len(queue_offsets)

    def address(self, parent: TopicConfig, properties: MutableMapping[str, str]) -> LightPlace | None:
        """Adds light queue and offset to the properties of a message with ``LITE_TOPIC``.

        Returns:
            Its place in the light queue, of which the store must be told; None if the message belongs to no lite topic.

        Raises:
            BrokerError: MESSAGE_ILLEGAL, the message cannot go to a lite topic; LMQ_QUOTA_EXCEEDED, there are too many.
        """
        topic = parent.topic_name
        if is_retry_topic(topic) or is_dlq_topic(topic):
            return None
        check_parent(parent)
        if self._topics is None:
            raise _illegal(_NO_LITE_TOPICS)
        try:
            name = lite_queue_topic(topic, check_lite_topic(properties[LITE_TOPIC]))
        except ClientError as error:
            raise _illegal(str(error)) from None
        _refuse_mixed(properties)
        queue = name.encode()
        queue_offset = self._topics.next_offset(queue)
        if queue_offset == 0 or (self._config.enable_lmq_quota and not self._topics.is_live(queue)):
            self._check_quota(queue_offset == 0)
        properties[INNER_MULTI_DISPATCH] = name
        properties[INNER_MULTI_QUEUE_OFFSET] = str(queue_offset)
        return LightPlace(queue, queue_offset)

    def _check_quota(self, is_new: bool) -> None:
        assert self._topics is not None
        config = self._config
        if config.enable_lmq_quota and self._topics.are_there(config.max_lmq_consume_queue_num):
            raise BrokerError(ResponseCode.LMQ_QUOTA_EXCEEDED, QUOTA_EXCEEDED)
        if is_new:
            self._new_name()


@lru_cache(maxsize=256)
def _heads_of(parent: str) -> tuple[bytes, bytes]:
    """Returns what precedes the lite topic in the property of the light queue, and in the lite topic's own name."""
    return f"{INNER_MULTI_DISPATCH}\x01{LITE_PREFIX}{parent}$".encode(), f"{parent}$".encode()


def check_parent(topic: TopicConfig) -> None:
    """Refuses a message with ``LITE_TOPIC`` to a topic that has no lite topics.

    Raises:
        BrokerError: MESSAGE_ILLEGAL.
    """
    if not is_parent(topic):
        kind = topic.attributes.get(MESSAGE_TYPE, "NORMAL")
        raise _illegal(f"{topic.topic_name} has {MESSAGE_TYPE}={kind}; a message with {LITE_TOPIC} needs LITE")


def refuse_in_batch(properties: Mapping[str, str]) -> None:
    """Refuses a message of a batch if it names a lite topic.

    Raises:
        BrokerError: MESSAGE_ILLEGAL.
    """
    if LITE_TOPIC in properties:
        raise _illegal(f"a batch cannot have messages with {LITE_TOPIC}; send each of them alone")


def _refuse_mixed(properties: Mapping[str, str]) -> None:
    """Refuses what no message to a lite topic can be."""
    if properties.get(TRAN_MSG, "").lower() == "true":
        raise _illegal("a message to a lite topic cannot be part of a transaction")
    found = [name for name in (*sorted(DELAYING), SHARDING_KEY, PRIORITY) if name in properties]
    if found:
        raise _illegal(f"a message to a lite topic cannot have the property {found[0]}: no delay, group or priority")


def _illegal(text: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
