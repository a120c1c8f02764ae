"""The message types: ``Message`` is sent by the application, ``SystemMessage`` by the client itself, ``MessageExt`` was
read from a store, and ``StoreMessage`` is passed to ``MessageStore.put_message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.common.ids import PhysicalOffset, QueueOffset
from rucola.common.lite_topics import check_lite_topic, lite_queue_offset, lite_queue_topic
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT32_MAX, number_in
from rucola.common.system_properties import application_properties, forwarded, were_read_from_broker
from rucola.errors import ClientError

DELAY_LEVEL_MAX = 18
_TAGS, _KEYS = message_const.TAGS, message_const.KEYS
_MIN_OFFSET, _MSG_REGION, _CRC32 = message_const.MIN_OFFSET, message_const.MSG_REGION, message_const.CRC32
_TAG_SEPARATOR = "||"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_SHOWN_BYTES = 32


class Message:
    """A message to send. ``properties`` holds everything except topic, body and flag, for example tags, keys and delay.

    A received message is forwarded with ``Message(topic, received.body, properties=received.properties)``. The new
    message takes over the application's properties, the tag, the keys and the sharding key. It does not take over what
    describes the life of the received message, such as its id, its delay and its transaction.

    Args:
        topic: destination topic.
        body: the content in bytes; the caller encodes text.
        tags: the tag by which consumers select messages, a single one; an empty text means none.
        keys: keys by which the message can be found: one text, in which spaces separate the keys, or several texts
            without spaces. An empty text means none.
        flag: a 32-bit integer for the application.
        delay_level: 1 to 18: the broker delays delivery by this level; 0: no delay. A broker that was given more levels
            takes them as the property ``DELAY``.
        delay: how long the broker delays delivery; see ``delay`` below.
        deliver_at: when the broker delivers the message; see ``deliver_at`` below.
        sharding_key: messages with the same key go to the same queue and keep their order.
        lite_topic: the lite topic of ``topic``, which must be a parent of type LITE: 1 to 64 letters, digits, ``_`` and
            ``-``. The first message to a lite topic makes it.
        properties: further properties. Names and values must not be empty, and must not contain the characters U+0001
            and U+0002. The names of ``rucola.common.system_properties.RESERVED`` are refused when the message is sent.

    Raises:
        ClientError: an argument has a value that cannot be sent.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes = b"",
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        *,
        flag: int = 0,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        sharding_key: str | None = None,
        lite_topic: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag if type(flag) is int else _whole_number("flag", flag)
        own: dict[str, str] = {}
        if properties:
            own = properties.copy() if type(properties) is dict else _copied(properties)
            # per message: most properties have none of these names, so the rule itself is rarely called
            if (_MIN_OFFSET in own or _MSG_REGION in own or _CRC32 in own) and were_read_from_broker(own):
                own = forwarded(own)
        self.properties = own
        if tags is not None:
            if type(tags) is str and tags and _TAG_SEPARATOR not in tags:  # per message, so without the setter
                own[_TAGS] = tags
            else:
                self.tags = tags
        if keys is not None:
            if type(keys) is str and keys:
                own[_KEYS] = keys
            else:
                self.keys = keys
        if delay_level:
            self.delay_level = delay_level
        if delay is not None:
            if delay_level or deliver_at is not None:
                raise ClientError("a message can have only one of delay_level, delay and deliver_at")
            self.delay = delay
        elif deliver_at is not None:
            if delay_level:
                raise ClientError("a message can have only one of delay_level, delay and deliver_at")
            self.deliver_at = deliver_at
        if sharding_key is not None:
            self.sharding_key = sharding_key
        if lite_topic is not None:
            self.lite_topic = lite_topic

    @property
    def tags(self) -> str | None:
        """The tag by which consumers select messages."""
        return self.properties.get(message_const.TAGS)

    @tags.setter
    def tags(self, value: str | None) -> None:
        self._set(message_const.TAGS, None if value is None else _single_tag(value) or None)

    @property
    def keys(self) -> str | None:
        """The keys by which the message can be found, separated by spaces."""
        return self.properties.get(message_const.KEYS)

    @keys.setter
    def keys(self, value: str | Iterable[str] | None) -> None:
        self._set(message_const.KEYS, None if value is None else _joined_keys(value) or None)

    @property
    def delay_level(self) -> int:
        """The level by which the broker delays delivery; 0 for no delay."""
        text = self.properties.get(message_const.DELAY, "0")
        return number_in(text, -INT32_MAX, INT32_MAX) or 0

    @delay_level.setter
    def delay_level(self, value: int) -> None:
        level = _whole_number("delay_level", value)
        if not 0 <= level <= DELAY_LEVEL_MAX:
            raise ClientError(f"delay_level must be 0 (no delay) to {DELAY_LEVEL_MAX}, not {level}")
        self._set(message_const.DELAY, str(level) if level else None)

    @property
    def delay(self) -> timedelta | None:
        """How long the broker delays delivery after it receives the message, in whole milliseconds; None for no delay.

        Setting ``delay`` removes ``deliver_at`` and ``delay_level``. Brokers of RocketMQ 5.0 and later support
        ``delay``; those of 4.9 deliver the message immediately.
        """
        text = self.properties.get(message_const.TIMER_DELAY_MS, "")
        milliseconds = number_in(text, 0, _TIME_MS_MAX)
        return None if milliseconds is None else timedelta(milliseconds=milliseconds)

    @delay.setter
    def delay(self, value: timedelta | None) -> None:
        if value is not None and not isinstance(value, timedelta):
            raise ClientError(f"delay must be a datetime.timedelta, not {value!r}")
        if value is not None and value < timedelta(0):
            raise ClientError(f"delay must not be negative: {value}")
        self._set_timer(
            message_const.TIMER_DELAY_MS, None if value is None else str(value // timedelta(milliseconds=1))
        )

    @property
    def deliver_at(self) -> datetime | None:
        """When the broker delivers the message, by the broker's clock; None for immediate delivery.

        Setting ``deliver_at`` removes ``delay`` and ``delay_level``. Brokers of RocketMQ 5.0 and later support
        ``deliver_at``; those of 4.9 deliver the message immediately.
        """
        text = self.properties.get(message_const.TIMER_DELIVER_MS, "")
        milliseconds = number_in(text, 0, _TIME_MS_MAX)
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)

    @deliver_at.setter
    def deliver_at(self, value: datetime | None) -> None:
        if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
            raise ClientError(f"deliver_at must be a datetime.datetime with a time zone, not {value!r}")
        milliseconds = None if value is None else (value - _EPOCH) // timedelta(milliseconds=1)
        if milliseconds is not None and milliseconds < 0:
            raise ClientError(f"deliver_at must not be before 1970: {value}")
        self._set_timer(message_const.TIMER_DELIVER_MS, None if milliseconds is None else str(milliseconds))

    @property
    def sharding_key(self) -> str | None:
        """Messages with the same key go to the same queue, as long as the topic's queues do not change."""
        return self.properties.get(message_const.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value: str | None) -> None:
        if value is not None and (not isinstance(value, str) or not value):
            raise ClientError(f"sharding_key must be a str that is not empty, or None, not {value!r}")
        self._set(message_const.SHARDING_KEY, value)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic; None if the message belongs to an ordinary topic."""
        return self.properties.get(message_const.LITE_TOPIC)

    @lite_topic.setter
    def lite_topic(self, value: str | None) -> None:
        self._set(message_const.LITE_TOPIC, None if value is None else check_lite_topic(value))

    @property
    def wait_store_ok(self) -> bool:
        """Whether a broker with SYNC_FLUSH responds to the send only after the sync to disk, and a broker with
        SYNC_MASTER only after a slave has the message.
        """
        return self.properties.get(message_const.WAIT, "true").lower() == "true"

    @wait_store_ok.setter
    def wait_store_ok(self, value: bool) -> None:
        self._set(message_const.WAIT, "true" if value else "false")

    @property
    def uniq_key(self) -> str | None:
        """The id given by the sending client."""
        return self.properties.get(message_const.UNIQ_KEY)

    @uniq_key.setter
    def uniq_key(self, value: str | None) -> None:
        self._set(message_const.UNIQ_KEY, value)

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties without those of the system: what the application itself has set in ``properties``."""
        return application_properties(self.properties)

    def _set_timer(self, name: str, value: str | None) -> None:
        for other in message_const.DELAYING:
            self.properties.pop(other, None)
        self._set(name, value)

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, body={_shown(self.body)}, properties={self.properties!r})"


class SystemMessage(Message):
    """A message that the client itself makes, for example a half message or a retry: its properties may have names that
    are reserved, and are taken as they are.

    Args:
        topic: destination topic.
        body: the content.
        flag: the application's flag.
        properties: all properties of the message.
    """

    __slots__ = ()

    def __init__(self, topic: str, body: bytes, *, flag: int = 0, properties: Mapping[str, str]) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties = dict(properties)


class MessageExt(Message):
    """A stored message with all fields of its record. Hosts are in record form (``common.hosts``).

    ``body`` may have been decompressed; ``store_size`` and ``body_crc`` refer to the bytes as stored. Do not
    change ``queue_offset`` and ``store_size`` of a received message: its consumer settles the message by them.
    """

    __slots__ = (
        "body_crc",
        "born_host",
        "born_timestamp_ms",
        "broker_name",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_size",
        "store_timestamp_ms",
        "sys_flag",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        flag: int,
        properties: Mapping[str, str],
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        store_size: int,
        body_crc: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        store_timestamp_ms: int,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        broker_name: str = "",
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties = dict(properties)
        self.queue_id = queue_id
        self.queue_offset = QueueOffset(queue_offset)
        self.physical_offset = PhysicalOffset(physical_offset)
        self.store_size = store_size
        self.body_crc = body_crc
        self.sys_flag = sys_flag
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host = born_host
        self.store_timestamp_ms = store_timestamp_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.broker_name = broker_name

    @property
    def offset_msg_id(self) -> str:
        """The id that holds the record's location: store host and physical offset as upper-case hexadecimal digits."""
        return (self.store_host + self.physical_offset.to_bytes(8, "big", signed=True)).hex().upper()

    @property
    def msg_id(self) -> str:
        """The id given by the sending client; without one, the offset id."""
        return self.uniq_key or self.offset_msg_id

    @property
    def lite_offset(self) -> int | None:
        """The offset of the message in its lite topic; None if it is in none. It stays the same whenever the message is
        delivered again. ``queue_offset`` is the offset in a queue of the parent topic.
        """
        lite_topic = self.lite_topic
        if lite_topic is None:
            return None
        return lite_queue_offset(self.properties, lite_queue_topic(self.topic, lite_topic))

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that holds the message, for example to commit or to seek. A message that is delivered again lies in
        a queue of a retry topic, but ``topic``, and so the queue's topic here, is the original one.
        """
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, msg_id={self.msg_id!r}, born_host={host_text(self.born_host)}, "
            f"body={_shown(self.body)}, properties={self.properties!r})"
        )


@dataclass(slots=True)
class StoreMessage:
    """A message to append with ``MessageStore.put_message``.

    Args:
        properties: the property text to store.
        born_host: 8 or 20 bytes.
        store_host: 8 or 20 bytes; None for the store's own host.
        properties_capacity: capacity of the ``HashMap`` in which RocketMQ would hold the properties; the capacity
            determines where the store inserts a property.
    """

    topic: bytes
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    store_host: bytes | None = field(default=None)
    properties_capacity: int = 128


def _copied(properties: Mapping[str, str]) -> dict[str, str]:
    try:
        return dict(properties)
    except (TypeError, ValueError):
        raise ClientError(f"properties must map names to texts, not {properties!r}") from None


def _whole_number(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClientError(f"{name} must be a whole number, not {value!r}")
    return value


def _single_tag(tags: object) -> str:
    if not isinstance(tags, str) or _TAG_SEPARATOR in tags:
        raise ClientError(
            f"tags must be one tag, a str without {_TAG_SEPARATOR!r}, which separates the tags of a subscription, "
            f"not {tags!r}"
        )
    return tags


def _joined_keys(keys: Any) -> str:
    """Returns the text of KEYS.

    Raises:
        ClientError: the keys are neither a text nor texts without spaces.
    """
    if isinstance(keys, str):
        return keys
    several = isinstance(keys, Iterable) and not isinstance(keys, bytes | bytearray | memoryview)
    each: list[Any] = list(keys) if several else [keys]
    for key in each:
        if not isinstance(key, str) or not key or message_const.KEY_SEPARATOR in key:
            raise ClientError(
                f"keys must be a str, or several that are neither empty nor contain a space, not {keys!r}: {key!r}"
            )
    return message_const.KEY_SEPARATOR.join(each)


def _shown(body: bytes) -> str:
    """The beginning of ``body`` for a ``repr``; says how long the body is if it is longer."""
    if len(body) <= _SHOWN_BYTES:
        return repr(body)
    return f"{body[:_SHOWN_BYTES]!r}... ({len(body)} bytes)"
