"""Stored messages as consumers receive them.

Source: RocketMQ 5.3.3, ``GrpcConverter``. Unlike RocketMQ, a body that was compressed with LZ4 or Zstd is
sent inflated, because clients of this protocol read gzip and zlib only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from rucola.common import message_const as const
from rucola.common.hosts import host_parts, host_text
from rucola.common.java import is_blank
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.numbers import INT32_MAX, number_in
from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import FormatError, UnreadableBodyError
from rucola.formats.compression import decompress
from rucola.proxy import messages
from rucola.proxy.message_kind import kind_of
from rucola.proxy.names import resource_of
from rucola.proxy.property_keys import LITE_TOPIC, PRIORITY, RESERVED_KEYS, TRACE_CONTEXT
from rucola.proxy.sending import BODY_BYTES_MAX
from rucola.proxy.timestamps import SECONDS_MAX, set_milliseconds

_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_READ_BY_CLIENTS = (0, int(MessageSysFlag.COMPRESSION_ZLIB))
"""Compression types of bodies that are sent as stored; 0 is zlib, or gzip from clients of this protocol."""
_NOT_FOR_USERS = RESERVED_KEYS | {const.SENDER}
_DELIVER_MS_MAX = SECONDS_MAX * 1000 + 999


class DeliveredBody(NamedTuple):
    """A body as a consumer receives it.

    Attributes:
        content: the bytes.
        encoding: ``IDENTITY`` or ``GZIP``.
        checksum: MD5 of ``content`` in upper-case hexadecimal digits; clients compare it as text.
    """

    content: bytes
    encoding: int
    checksum: str


def delivered_body(message: MessageExt, body_bytes_max: int = BODY_BYTES_MAX) -> DeliveredBody:
    """Returns the body of a message. For a large one this takes long, about 3 ms per MiB: it may run in a thread.

    Args:
        message: the message, with its body as stored.
        body_bytes_max: largest inflated body.

    Raises:
        UnreadableBodyError: the body must be inflated, and cannot.
    """
    content, encoding = message.body, messages.IDENTITY
    if message.sys_flag & _COMPRESSED:
        if message.sys_flag & COMPRESSION_MASK in _READ_BY_CLIENTS:
            encoding = messages.GZIP
        else:
            content = _inflated(message, body_bytes_max)
    return DeliveredBody(content, encoding, hashlib.md5(content, usedforsecurity=False).hexdigest().upper())


def delivered_message(message: MessageExt, body: DeliveredBody, subscribed: str | None = None) -> messages.Message:
    """Returns the message that a consumer receives.

    Args:
        message: the stored message. If it was popped, its property ``POP_CK`` is its receipt handle, to which its place
            in the commit log is added.
        body: what ``delivered_body`` has returned for it.
        subscribed: the topic that the consumer has asked for; messages of retry topics get its name. Without it, they
            get the name in ``RETRY_TOPIC``.
    """
    topic = message.topic
    if is_retry_topic(topic):
        topic = subscribed or message.properties.get(const.RETRY_TOPIC, topic)
    result = messages.Message(topic=resource_of(topic), body=body.content)
    for name, value in message.properties.items():
        if name not in _NOT_FOR_USERS:
            result.user_properties[name] = value
    system = result.system_properties
    system.body_digest.type = messages.MD5
    system.body_digest.checksum = body.checksum
    system.body_encoding = body.encoding
    _set_record_fields(system, message)
    _set_properties(system, message.properties)
    return result


def _inflated(message: MessageExt, body_bytes_max: int) -> bytes:
    try:
        content = decompress(message.body, message.sys_flag)
    except FormatError as error:
        raise UnreadableBodyError(message.topic, message.queue_id, message.queue_offset, str(error)) from error
    if len(content) > body_bytes_max:
        reason = f"{len(content)} bytes when inflated, more than {body_bytes_max}"
        raise UnreadableBodyError(message.topic, message.queue_id, message.queue_offset, reason)
    return content


def _set_record_fields(system: messages.SystemProperties, message: MessageExt) -> None:
    properties = message.properties
    system.message_id = message.msg_id
    handle = properties.get(const.POP_CK)
    if handle is not None:
        system.receipt_handle = f"{handle} {message.physical_offset}"
    system.delivery_attempt = min(message.reconsume_times + 1, INT32_MAX)
    set_milliseconds(system.born_timestamp, message.born_timestamp_ms)
    born_host = properties.get(const.BORN_HOST, "")
    system.born_host = host_parts(message.born_host)[0] if is_blank(born_host) else born_host
    set_milliseconds(system.store_timestamp, message.store_timestamp_ms)
    system.store_host = host_text(message.store_host)
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset


def _set_properties(system: messages.SystemProperties, properties: Mapping[str, str]) -> None:
    system.message_type = kind_of(properties).number
    if const.TAGS in properties:
        system.tag = properties[const.TAGS]
    system.keys.extend(filter(None, properties.get(const.KEYS, "").split(const.KEY_SEPARATOR)))
    if const.SHARDING_KEY in properties:
        system.message_group = properties[const.SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    if LITE_TOPIC in properties:
        system.lite_topic = properties[LITE_TOPIC]
    deliver_ms = number_in(properties.get(const.TIMER_DELIVER_MS, ""), 0, _DELIVER_MS_MAX)
    if deliver_ms is not None:
        set_milliseconds(system.delivery_timestamp, deliver_ms)
    priority = number_in(properties.get(PRIORITY, ""), 0, INT32_MAX)
    if priority is not None:
        system.priority = priority
    origin_topic, origin_id = (properties.get(key) for key in (const.DLQ_ORIGIN_TOPIC, const.DLQ_ORIGIN_MESSAGE_ID))
    if origin_topic is not None and origin_id is not None:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = origin_topic, origin_id
