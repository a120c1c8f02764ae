"""Three message types: ``Message`` is sent, ``MessageExt`` was read from a store, and ``StoreMessage`` is passed to
``MessageStore.put_message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from rucola.common import message_const
from rucola.common.hosts import host_text
from rucola.common.ids import PhysicalOffset, QueueOffset
from rucola.errors import ClientError

_TAGS, _KEYS = message_const.TAGS, message_const.KEYS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """A message to send. ``properties`` holds everything except topic, body and flag, for example tags, keys and delay.

    Args:
        topic: destination topic.
        body: the content in bytes; the caller encodes text.
        tags: the tag by which consumers select messages.
        keys: keys by which the message can be found; several are joined by spaces.
        flag: a 32-bit integer for the application.
        delay_level: 1 to 18: the broker delays delivery by this level; 0: no delay.
        delay: how long the broker delays delivery; see ``delay`` below.
        deliver_at: when the broker delivers the message; see ``deliver_at`` below.
        sharding_key: messages with the same key go to the same queue and keep their order.
        properties: further properties; names and values must not contain the characters U+0001 and U+0002.
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
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        own: dict[str, str] = dict(properties) if properties else {}
        self.properties = own
        if tags is not None:
            own[_TAGS] = tags
        if keys is not None:
            own[_KEYS] = keys if isinstance(keys, str) else message_const.KEY_SEPARATOR.join(keys)
        if delay_level:
            own[message_const.DELAY] = str(delay_level)
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

    @property
    def tags(self) -> str | None:
        """The tag by which consumers select messages."""
        return self.properties.get(message_const.TAGS)

    @tags.setter
    def tags(self, value: str | None) -> None:
        self._set(message_const.TAGS, value)

    @property
    def keys(self) -> str | None:
        """The keys by which the message can be found, separated by spaces."""
        return self.properties.get(message_const.KEYS)

    @keys.setter
    def keys(self, value: str | None) -> None:
        self._set(message_const.KEYS, value)

    @property
    def delay_level(self) -> int:
        """The level by which the broker delays delivery; 0 for no delay."""
        text = self.properties.get(message_const.DELAY, "0")
        return int(text) if text.lstrip("-").isdecimal() else 0

    @delay_level.setter
    def delay_level(self, value: int) -> None:
        self._set(message_const.DELAY, str(value))

    @property
    def delay(self) -> timedelta | None:
        """How long the broker delays delivery after it receives the message, in whole milliseconds; None for no delay.

        Setting ``delay`` removes ``deliver_at`` and ``delay_level``. Brokers of RocketMQ 5.0 and later support
        ``delay``; those of 4.9 deliver the message immediately.
        """
        text = self.properties.get(message_const.TIMER_DELAY_MS, "")
        return timedelta(milliseconds=int(text)) if text.isdecimal() else None

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
        return _EPOCH + timedelta(milliseconds=int(text)) if text.isdecimal() else None

    @deliver_at.setter
    def deliver_at(self, value: datetime | None) -> None:
        if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
            raise ClientError(f"deliver_at must be a datetime.datetime with a time zone, not {value!r}")
        milliseconds = None if value is None else (value - _EPOCH) // timedelta(milliseconds=1)
        self._set_timer(message_const.TIMER_DELIVER_MS, None if milliseconds is None else str(milliseconds))

    @property
    def sharding_key(self) -> str | None:
        """Messages with the same key go to the same queue, as long as the topic's queues do not change."""
        return self.properties.get(message_const.SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, value: str | None) -> None:
        self._set(message_const.SHARDING_KEY, value)

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
        return f"{type(self).__name__}(topic={self.topic!r}, body={self.body[:32]!r}, properties={self.properties!r})"


class MessageExt(Message):
    """A stored message with all fields of its record. Hosts are in record form (``common.hosts``).

    ``body`` may have been decompressed; ``store_size`` and ``body_crc`` refer to the bytes as stored.
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
        super().__init__(topic, body, flag=flag, properties=properties)
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

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, msg_id={self.msg_id!r}, born_host={host_text(self.born_host)}, "
            f"body={self.body[:32]!r}, properties={self.properties!r})"
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
