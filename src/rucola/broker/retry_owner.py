"""Tells whose messages lie in a retry topic.

Names of POP retry topics (version 1) are ambiguous: ``%RETRY%g_a_t`` belongs to group ``g`` and topic ``a_t``, to group
``g_a`` and topic ``t``, and to the push consumers of group ``g_a_t``. RocketMQ mixes their messages. So does a broker
without accounts, whose copies are RocketMQ's byte for byte. With accounts, the copy of a popped message names the topic
from which it came, in the property REAL_TOPIC, which no client can send. Together with the name of the retry topic,
this also names the group.
"""

from __future__ import annotations

from dataclasses import replace

from rucola.common.key_builder import is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_const import FIRST_POP_TIME, REAL_TOPIC
from rucola.formats.message import decode_message
from rucola.store.results import GetMessageResult, GetMessageStatus


def popped_from(message: MessageExt) -> str | None:
    """The topic from which a message of a retry topic was popped. Empty if it was popped but names no topic, as copies
    by RocketMQ and by earlier versions do; None if a client sent it, or sent it back.
    """
    properties = message.properties
    if FIRST_POP_TIME not in properties:
        return None
    topic = properties.get(REAL_TOPIC, "")
    if topic == message.topic:  # sent back: the message waited in the schedule topic for the retry topic
        return None
    return topic if message.topic.endswith((f"_{topic}", f"+{topic}")) else ""


def is_for(record: memoryview, asked: str) -> bool:
    """Whether a record of a retry topic may be given to a client that reads topic ``asked``: the retry topic itself, or
    the topic of a pop. A message of unknown origin is for both.
    """
    message = decode_message(record, unpack=False)
    origin = popped_from(message)
    if asked == message.topic:
        return not origin
    return origin in ("", asked)


def without_popped(topic: bytes, result: GetMessageResult) -> GetMessageResult:
    """``result`` of a read from ``topic`` that is no pop, without copies of popped messages if it is a retry topic."""
    name = topic.decode("utf-8", "replace")
    if not is_retry_topic(name) or not result.views:
        return result
    views = [record for view in result.views for record in records_of(view) if is_for(record, name)]
    status = result.status if views else GetMessageStatus.NO_MATCHED_MESSAGE
    size = sum(map(len, views))
    return replace(result, status=status, views=views, message_count=len(views), message_bytes=size)


def records_of(view: memoryview) -> list[memoryview]:
    """The records that lie in ``view`` one after the other."""
    records, position = [], 0
    while position < len(view):
        size = int.from_bytes(view[position : position + 4], "big")
        records.append(view[position : position + size])
        position += size
    return records
