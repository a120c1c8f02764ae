"""Converts messages that wait in the timer topic to the messages that are delivered."""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY
from rucola.broker.set_aside import destination
from rucola.broker.stored_copy import StoredRecord
from rucola.common.message import StoreMessage
from rucola.common.message_const import (
    SENDER,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
)
from rucola.common.numbers import INT32_MAX, number_in
from rucola.formats.properties import encode_properties, java_order


class WaitingMessage(StoredRecord):
    """A record of the timer topic."""

    __slots__ = ()

    def delivered(self, enqueue_ms: int, dequeue_ms: int, read_queue: Callable[[str, int], int] | None) -> StoreMessage:
        """Returns the message as it will be stored: for its consumers, or once more for the timer topic.

        Args:
            enqueue_ms: time when the message was moved from the timer topic's queue into the wheel; 2^63 - 1 if the
                message was already due at that time.
            dequeue_ms: current time.
            read_queue: returns the queue of a topic for a message of a queue; see ``TopicConfigManager.read_queue``.
                None if the message goes to the timer topic again, because its delay is too long for one unit of the
                timer log.

        Raises:
            FormatError: the message does not name a destination that it may have.
        """
        properties = self.properties
        properties[TIMER_ENQUEUE_MS] = str(enqueue_ms)
        properties[TIMER_DEQUEUE_MS] = str(dequeue_ms)
        if read_queue is None:
            topic, queue_id = self.topic, self.queue_id
            times = number_in(properties.get(TIMER_ROLL_TIMES, ""), 0, INT32_MAX - 1)
            properties[TIMER_ROLL_TIMES] = str((times or 0) + 1)
        else:
            topic, queue_id = destination(properties, revives=True)
            properties.pop(SENDER, None)
            queue_id = read_queue(topic.decode(), queue_id)
        return self.copy(topic, queue_id, encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY)))
