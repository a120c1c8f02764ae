"""What a test may look at: messages, failed messages and consumers in the broker of a ``RocketMQ`` for tests.

Used on the broker's event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from rucola.broker.subscription.subscription_group_manager import is_system_group
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.common.key_builder import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, is_system_topic, retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_const import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from rucola.testing.faulty_broker import FaultyBroker

T = TypeVar("T")
_READ_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Failed:
    """The messages that a group failed to consume, each in the newest of its copies.

    Attributes:
        waiting: they wait for the time of their next delivery.
        on_the_way: their time has come, but the group has not consumed them again.
        dead: the dead letters.
        delay_ms: longest delay of a message in ``waiting``, from its failure on.
    """

    waiting: list[MessageExt]
    on_the_way: list[MessageExt]
    dead: list[MessageExt]
    delay_ms: int


@dataclass(frozen=True)
class View(Generic[T]):
    """Something that a test may look at or wait for.

    Attributes:
        what: what it is, for failed tests.
        look: returns what is there now.
        absent: says that the topic or group does not exist, as the end of a sentence; empty if it does.
    """

    what: str
    look: Callable[[], list[T]]
    absent: Callable[[], str]


class Content:
    """What is in the broker now. Each method raises ``RuntimeError`` while the broker is not running.

    Args:
        running: returns the broker, or raises this error.
    """

    def __init__(self, running: Callable[[], FaultyBroker]) -> None:
        self._running = running

    def messages(self, topic: str) -> list[MessageExt]:
        """Dispatches, then returns all messages in the topic's queues, in log order."""
        store = self._running().store
        store.dispatch()
        name = topic.encode()
        found: list[MessageExt] = []
        for queue_id in store.queue_ids(name):
            found += self._read(topic, queue_id, store.min_queue_offset(name, queue_id))
        return sorted(found, key=lambda message: message.physical_offset)

    def _read(self, topic: str, queue_id: int, queue_offset: int) -> list[MessageExt]:
        """The messages of a queue from ``queue_offset`` on."""
        store, name = self._running().store, topic.encode()
        found: list[MessageExt] = []
        while queue_offset < store.max_queue_offset(name, queue_id):
            result = store.get_message(name, queue_id, queue_offset, 32, _READ_BYTES_MAX)
            found += ReceivedMessage.of_records(b"".join(result.views), PullOrigin(""))
            queue_offset = max(result.next_offset, queue_offset + 1)
        return found

    def delayed(self, topic: str) -> list[MessageExt]:
        """Delayed messages that are not in ``topic`` yet, in log order."""
        store, schedule = self._running().store, self._running().services.schedule
        store.dispatch()
        waiting = []
        for level in range(1, schedule.level_count + 1):
            waiting += self._read(SCHEDULE_TOPIC, level - 1, schedule.progress(level))
        waiting += self._timed()
        found = [_as_delivered(message) for message in waiting if message.properties.get(REAL_TOPIC) == topic]
        return sorted(found, key=lambda message: message.physical_offset)

    def _timed(self) -> list[MessageExt]:
        """Messages that wait for a delivery time, without cancelled ones."""
        broker = self._running()
        until_ms = broker.services.timers.service.delivered_until_ms()
        read = self._read(TIMER_TOPIC, 0, broker.store.min_queue_offset(TIMER_TOPIC.encode(), 0))
        waiting: dict[str, MessageExt] = {}
        for message in read:
            properties = message.properties
            if int(properties.get(TIMER_OUT_MS, "0")) < until_ms:
                continue
            if TIMER_DEL_UNIQKEY in properties:
                waiting.pop(properties[TIMER_DEL_UNIQKEY], None)
            else:  # a message with a long delay is stored again later
                waiting[f"{properties.get(REAL_TOPIC)}+{properties.get(UNIQ_KEY, message.physical_offset)}"] = message
        return list(waiting.values())

    def failed(self, group: str) -> Failed:
        """The messages that a group failed to consume, without those that it has consumed meanwhile."""
        broker, topic = self._running(), retry_topic(group)
        waiting, dead = self.delayed(topic), self.messages(dlq_topic(group))
        on_the_way: list[MessageExt] = []
        for queue_id in broker.store.queue_ids(topic.encode()):
            on_the_way += self._read(topic, queue_id, broker.offsets.query(group, topic, queue_id) or 0)
        copies = sorted(waiting + on_the_way + dead, key=lambda message: message.physical_offset)
        newest = {_failure(message): message.physical_offset for message in copies}
        return Failed(
            waiting,
            [message for message in on_the_way if newest[_failure(message)] == message.physical_offset],
            dead,
            max((self._delay_ms(message) for message in waiting), default=0),
        )

    def _delay_ms(self, message: MessageExt) -> int:
        """How long a delayed message waits in all."""
        properties = message.properties
        if TIMER_OUT_MS in properties:
            return int(properties[TIMER_OUT_MS]) - message.store_timestamp_ms
        return self._running().services.delay_levels_ms[int(properties[DELAY]) - 1]

    def lags(self, group: str, topic: str) -> dict[int, int]:
        """Number of messages that a group has not consumed, for each queue of a topic that has some."""
        broker, name = self._running(), topic.encode()
        broker.store.dispatch()
        ends = {queue_id: broker.store.max_queue_offset(name, queue_id) for queue_id in broker.store.queue_ids(name)}
        lags = {queue_id: end - (broker.offsets.query(group, topic, queue_id) or 0) for queue_id, end in ends.items()}
        return {queue_id: lag for queue_id, lag in sorted(lags.items()) if lag > 0}

    def consumers(self, group: str) -> list[str]:
        """Client ids of the connected consumers of a group."""
        info = self._running().services.consumers.group(group)
        return [] if info is None else sorted(info.client_ids())

    def starting(self, group: str) -> bool:
        """True if a consumer of the group has not yet begun to read one of its queues."""
        broker = self._running()
        info = broker.services.consumers.group(group)
        return info is not None and not broker.starts.all_known(info, broker.topics.table)

    def stored(self, topic: str) -> int:
        """Number of stored messages of a topic."""
        store, name = self._running().store, topic.encode()
        store.dispatch()
        return sum(
            store.max_queue_offset(name, queue_id) - store.min_queue_offset(name, queue_id)
            for queue_id in store.queue_ids(name)
        )

    def without_topic(self, topic: str) -> str:
        """Empty if the topic exists; otherwise says so and names the topics with messages, as the end of a sentence.

        The topics for retries and dead letters of a group count as existing as soon as the group exists. The broker
        makes them later.
        """
        broker = self._running()
        if topic in broker.topics.table or any(map(partial(_belongs, topic), broker.groups.table)):
            return ""
        stored = {name.decode("utf-8", "replace") for name, _ in broker.store.queue_names()}
        names = sorted(name for name in stored if not is_system_topic(name))
        return f"; there is no topic {topic}; topics with messages: {', '.join(names) or 'none'}"

    def without_group(self, group: str) -> str:
        """Empty if the group exists; otherwise says so and names the groups, as the end of a sentence."""
        broker = self._running()
        if group in broker.groups.table:
            return ""
        names = sorted(name for name in broker.groups.table if not is_system_group(name))
        return f"; there is no group {group}; groups: {', '.join(names) or 'none'}"

    def messages_of(self, topic: str) -> View[MessageExt]:
        """``messages``."""
        return self._view_of_topic(f"messages of topic {topic}", self.messages, topic)

    def delayed_of(self, topic: str) -> View[MessageExt]:
        """``delayed``."""
        return self._view_of_topic(f"delayed messages for topic {topic}", self.delayed, topic)

    def retries_of(self, group: str) -> View[MessageExt]:
        """The waiting ones of ``failed``."""
        return self._view_of_group("messages that wait for a retry", lambda name: self.failed(name).waiting, group)

    def dead_letters_of(self, group: str) -> View[MessageExt]:
        """The dead letters of a group."""
        return self._view_of_group("dead letters", lambda name: self.messages(dlq_topic(name)), group)

    def consumers_of(self, group: str) -> View[str]:
        """``consumers``."""
        return self._view_of_group("consumers", self.consumers, group)

    def _view_of_topic(self, what: str, look: Callable[[str], list[T]], topic: str) -> View[T]:
        return View(what, lambda: look(topic), lambda: self.without_topic(topic))

    def _view_of_group(self, what: str, look: Callable[[str], list[T]], group: str) -> View[T]:
        return View(f"{what} of group {group}", lambda: look(group), lambda: self.without_group(group))


def _belongs(topic: str, group: str) -> bool:
    """Whether a topic is one of a group's topics for retries and dead letters. Those of pops end with the topic."""
    own = retry_topic(group)
    return topic in (own, dlq_topic(group)) or topic.startswith((f"{own}_", f"{own}+"))


def _failure(message: MessageExt) -> str:
    """What the copies of a message that a group failed to consume have in common."""
    properties = message.properties
    return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id


def _as_delivered(message: MessageExt) -> MessageExt:
    """A delayed message with its destination topic and queue."""
    message.topic = message.properties[REAL_TOPIC]
    message.queue_id = int(message.properties[REAL_QID])
    return message
