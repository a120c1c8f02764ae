"""The topic whose permission a request for a stored message needs."""

from __future__ import annotations

from typing import Final

from rucola.broker.retry_owner import popped_from
from rucola.common.key_builder import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_const import REAL_TOPIC

_STAND_INS: Final = (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TIMER_TOPIC)
"""Topics that hold messages of other topics until their delivery time or the end of their transaction. Each message
names its own topic in a property that only the broker writes.
"""


def topic_of(message: MessageExt) -> str | None:
    """The topic of a stored message; None if that is not known."""
    if message.topic in _STAND_INS:
        return message.properties.get(REAL_TOPIC)
    if is_retry_topic(message.topic):
        return popped_from(message) or message.topic
    return message.topic
