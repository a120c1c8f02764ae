"""Encodes messages for sending: checks them, adds a unique key, compresses large bodies."""

from __future__ import annotations

from rucola.client.config import ProducerConfig
from rucola.client.instance import check_topic
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.message import Message
from rucola.errors import ClientError
from rucola.formats.compression import check_compression, compress
from rucola.protocol.send_request import (
    EncodedMessage,
    batch_member,
    encode_properties,
    properties_json,
    properties_text,
    unusual_properties,
)

_UNIQ_KEY = message_const.UNIQ_KEY


class MessageEncoder:
    """Encodes the messages of one producer.

    Args:
        config: limits and compression.
        unique_ids: creates UNIQ_KEY for messages.

    Raises:
        ConfigError: the package for the configured compression is not installed.
    """

    def __init__(self, config: ProducerConfig, unique_ids: UniqueIds) -> None:
        check_compression(config.compress_type)
        self._config = config
        self._unique_ids = unique_ids
        self._topics: set[str] = set()
        self._plain_body_bytes_max = min(config.compress_msg_body_over_howmuch, config.max_message_size)

    def encode(self, message: Message, now_ms: int) -> EncodedMessage:
        """Checks and encodes the message; sets its UNIQ_KEY if it has none.

        Raises:
            ClientError: the message cannot be sent as it is.
        """
        body, properties, flag, sys_flag = message.body, message.properties, message.flag, 0
        if message.topic not in self._topics:
            self.check_topic(message.topic)
        if type(body) is not bytes or not 0 < len(body) <= self._plain_body_bytes_max or flag:
            body, sys_flag = self._transferred_body(message)
        if _UNIQ_KEY not in properties:
            properties[_UNIQ_KEY] = self._unique_ids.next_at(now_ms)
        return body, sys_flag, flag, encode_properties(properties) or unusual_properties(properties)

    def batch_member(self, message: Message) -> bytes:
        """Encodes the message for a batch, without compression.

        Raises:
            ClientError: the message cannot be sent as it is.
        """
        if message.topic not in self._topics:
            self.check_topic(message.topic)
        body, properties = message.body, message.properties
        if type(body) is not bytes or not 0 < len(body) <= self._config.max_message_size or message.flag:
            body = self._checked_body(message)
        if _UNIQ_KEY not in properties:
            properties[_UNIQ_KEY] = self._unique_ids.next()
        return batch_member(body, message.flag, properties)

    def batch(self, members: list[bytes], wait_store_ok: bool) -> EncodedMessage:
        """Encodes a batch request; ``members`` are messages encoded by ``batch_member``.

        RocketMQ's brokers append the batch's properties to those of each message. RocketMQ's Java client gives the
        batch a UNIQ_KEY, which hides those of the messages: no message can be found by its own UNIQ_KEY. Rucola's
        client gives the batch a UNIQ_KEY only with ``batch_unique_key``.
        """
        properties = {message_const.WAIT: "true" if wait_store_ok else "false"}
        if self._config.batch_unique_key:
            properties[_UNIQ_KEY] = self._unique_ids.next()
        return b"".join(members), 0, 0, properties_json(properties_text(properties))

    def check_topic(self, topic: str) -> None:
        """Raises ``ClientError`` unless ``topic`` is a valid topic name."""
        check_topic(topic)
        self._topics.add(topic)

    def _transferred_body(self, message: Message) -> tuple[bytes, int]:
        """Returns the checked body, compressed if it is large, and the sysFlag bits for the compression."""
        body = self._checked_body(message)
        if len(body) > self._config.compress_msg_body_over_howmuch:
            packed, bits = compress(body, self._config.compress_level, self._config.compress_type)
            if len(packed) < len(body):  # RocketMQ's client sends the compressed body even if the original is smaller
                return packed, bits
        return body, 0

    def _checked_body(self, message: Message) -> bytes:
        body = message.body if type(message.body) is bytes else _copied_body(message.body)
        if not body:
            raise ClientError("a message body must not be empty")
        if len(body) > self._config.max_message_size:
            raise ClientError(f"the body takes {len(body)} bytes; the limit is {self._config.max_message_size}")
        if message.flag and not -(1 << 31) <= message.flag < 1 << 31:
            raise ClientError(f"message flag {message.flag} does not fit 32 bits")
        return body


def _copied_body(body: object) -> bytes:
    """Copies ``body`` if it is a buffer, because the caller may change the buffer before the send."""
    if not isinstance(body, bytearray | memoryview):
        raise ClientError(f"a message body must be bytes, not {type(body).__name__}")
    return bytes(body)
