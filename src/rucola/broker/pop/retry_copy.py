"""The copy of an unacknowledged popped message for the retry topic (RocketMQ 5.3.3, ``PopReviveService``)."""

from __future__ import annotations

from rucola.broker.stored_copy import own_properties
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import FIRST_POP_TIME, REAL_TOPIC, UNIQ_KEY
from rucola.common.sysflag import MessageSysFlag
from rucola.formats.properties import encode_properties, java_order

_V6_BYTES = 20
_BORN_HOST_V6 = int(MessageSysFlag.BORN_HOST_V6)

CopyIdentity = tuple[str, str, int, str, int]
"""Retry topic, unique key, reconsume times, first pop time, born time: all copies of the same message have these values
in common.
"""


def retry_copy(
    message: MessageExt, topic: str, pop_time_ms: int, host: bytes, names_origin: bool = False
) -> StoreMessage:
    """The copy of a message for a retry topic.

    Args:
        pop_time_ms: time of the pop; stored if this was the first pop.
        host: address of this broker, which makes the copy.
        names_origin: whether the copy names the topic from which the message was popped (``retry_owner``). RocketMQ's
            copies do not.
    """
    properties = own_properties(message)
    if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(pop_time_ms)
    if names_origin and message.topic != topic:
        properties[REAL_TOPIC] = message.topic
    sys_flag = message.sys_flag & ~_BORN_HOST_V6 | (_BORN_HOST_V6 if len(host) == _V6_BYTES else 0)
    return StoreMessage(
        topic.encode(),
        0,
        message.body,
        encode_properties(java_order(properties.items())),
        message.born_timestamp_ms,
        host,
        message.flag,
        sys_flag,
        message.reconsume_times + 1,
    )


def identity_before(message: MessageExt, topic: str, pop_time_ms: int) -> CopyIdentity:
    """Identity of the copy that ``retry_copy`` would make."""
    first = message.properties.get(FIRST_POP_TIME) if message.reconsume_times else None
    key = message.properties.get(UNIQ_KEY, "")
    return topic, key, message.reconsume_times + 1, first or str(pop_time_ms), message.born_timestamp_ms


def identity_of(copy: MessageExt) -> CopyIdentity:
    """Identity of a stored copy."""
    properties = copy.properties
    return (
        copy.topic,
        properties.get(UNIQ_KEY, ""),
        copy.reconsume_times,
        properties.get(FIRST_POP_TIME, ""),
        copy.born_timestamp_ms,
    )
