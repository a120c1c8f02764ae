"""The answer to a pop of lite topics, and the responses that a consumer gets for its messages. Pure: it may run in a
thread.

The records are those of the parent; a message is known by its lite topic and its offset there. A record that does not
say them is left out, because nobody could acknowledge it: it comes again, and its lite topic waits for it.

Source: RocketMQ 5.5.0, ``ConsumerProcessor#popLiteMessage``; ``docs/reference/lite.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rucola.common import message_const as const
from rucola.common.columns import WalkStop, new_table
from rucola.common.ids import QueueOffset
from rucola.common.message import MessageExt
from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.errors import FormatError, UnreadableBodyError
from rucola.formats.checksum import crc32
from rucola.formats.light_queue import lite_topic
from rucola.formats.message import message_from_row, walk_records
from rucola.protocol.headers.lite import PopLiteMessageResponseHeader
from rucola.proxy import messages
from rucola.proxy.delivery import delivered_body, delivered_message
from rucola.proxy.names import is_lite_topic
from rucola.proxy.popped import ROWS_MAX, Fate, PoppedMessage, ReceiveTerms, fate_of
from rucola.proxy.property_keys import LITE_TOPIC
from rucola.proxy.receipt import ReceiptHandle


def popped_lite_messages(
    header: PopLiteMessageResponseHeader, records: bytes, terms: ReceiveTerms
) -> list[PoppedMessage]:
    """Returns the messages of an answer, in their order.

    Raises:
        FormatError: the answer is not readable.
    """
    found = _messages(records, terms.topic)
    counts = _counts(header.order_count_info or "", [message.queue_offset for message in found])
    return [
        _popped(message, header, reconsume_times, terms)
        for message, reconsume_times in zip(found, counts, strict=True)
        if message.queue_offset >= 0
    ]


def _messages(records: bytes, parent: str) -> list[MessageExt]:
    """The messages, with their offsets in their lite topics; -1 for one that does not say it."""
    view = memoryview(records)
    table = new_table(ROWS_MAX)
    found: list[MessageExt] = []
    position = 0
    while True:
        rows, position, stop = walk_records(view, view, position, len(view), 0, table, ROWS_MAX, crc32, 3)
        for row in range(rows):
            message = message_from_row(view, table, row, unpack=False)
            message.queue_offset = QueueOffset(_lite_offset(message, parent))
            found.append(message)
        if stop == WalkStop.LIMIT:
            return found
        if stop != WalkStop.TABLE_FULL:
            raise FormatError("answer to a lite pop", position, "a whole, undamaged record", "another one")


def _lite_offset(message: MessageExt, parent: str) -> int:
    """The offset of a message in its lite topic; -1 if it is not known."""
    properties = message.properties
    name = properties.get(LITE_TOPIC, "")
    queues = properties.get(const.INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(const.INNER_MULTI_QUEUE_OFFSET, "").split(",")
    queue = lite_topic(f"{parent}${name}".encode()).decode()
    if not is_lite_topic(name) or len(queues) != len(offsets) or queues.count(queue) != 1:
        return -1
    offset = number_in(offsets[queues.index(queue)], 0, INT64_MAX)
    return -1 if offset is None else offset


def _counts(text: str, offsets: list[int]) -> list[int]:
    """Deliveries of each message before this one.

    A broker gives an element for each message. RocketMQ's brokers leave new messages out if the batch has others; the
    elements then name offsets, which count if only one message of the batch has them.
    """
    elements = text.split(";") if text else []
    if len(elements) == len(offsets):
        return [_count(element) for element in elements]
    named = {element.rpartition(" ")[0].rpartition("%")[2]: _count(element) for element in elements}
    frequencies = Counter(offsets)
    return [named.get(str(offset), 0) if frequencies[offset] == 1 else 0 for offset in offsets]


def _count(element: str) -> int:
    return number_in(element.rpartition(" ")[2], 0, INT32_MAX) or 0


def _popped(
    message: MessageExt, header: PopLiteMessageResponseHeader, reconsume_times: int, terms: ReceiveTerms
) -> PoppedMessage:
    message.reconsume_times = reconsume_times
    name = message.properties[LITE_TOPIC]
    place = message.queue_offset, message.physical_offset
    handle = ReceiptHandle(
        0, header.pop_time, header.invisible_time, header.revive_qid, "0", terms.broker_name, 0, *place, name
    ).encode()
    popped = PoppedMessage(
        fate_of(message.properties.get(const.TAGS, ""), reconsume_times, terms),
        handle,
        message.msg_id,
        reconsume_times,
        lite_topic=name,
    )
    if popped.fate is not Fate.DELIVER:
        return popped
    try:
        delivered = delivered_message(message, delivered_body(message), terms.topic)
    except UnreadableBodyError:
        return popped._replace(fate=Fate.GIVE_UP)
    delivered.system_properties.receipt_handle = handle
    return popped._replace(response=messages.ReceiveMessageResponse(message=delivered).SerializeToString())


def shown_at_once(
    unread: Collection[PoppedMessage], found: Collection[PoppedMessage]
) -> tuple[list[PoppedMessage], list[PoppedMessage]]:
    """Which messages are made visible again, if a client has not got them: one of each lite topic of which it has got
    none, whose whole batch is suspended so that no attempt is lost; and each of the others.

    Args:
        unread: what the client has not got.
        found: all messages of the pop.
    """
    batches = Counter(one.lite_topic for one in found)
    missing = Counter(one.lite_topic for one in unread)
    whole = {name for name, count in missing.items() if name and count == batches[name]}
    first = {one.lite_topic: one for one in unread if one.lite_topic in whole}
    return list(first.values()), [one for one in unread if one.lite_topic not in whole]
