"""Messages that clients send: the checks of the protocol in their order, and the message as a broker stores it.

One message passes the checks from first to last, and the first that fails words the refusal. A request with several
messages is checked for its topics first; RocketMQ looks at the topic of a message just before it checks that message.

What clients cannot see is stored in a fixed order: system properties first, then user properties by key. RocketMQ
writes them in the order of a Java ``HashMap``. A property without a value is left out, because no reader of RocketMQ
would see it.

Source: RocketMQ 5.3.3, ``SendMessageActivity``, ``ProducerProcessor#sendMessage``; priorities: RocketMQ 5.4; lite
topics: RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola.common import message_const as const
from rucola.common.java import has_iso_control, is_blank
from rucola.common.kernel_records import SUFFIX_BYTES_MAX
from rucola.common.key_builder import is_retry_topic
from rucola.common.sysflag import MessageSysFlag
from rucola.formats.properties import PROPERTIES_BYTES_MAX, encode_properties
from rucola.proxy import messages
from rucola.proxy.message_kind import MessageKind, kind_of
from rucola.proxy.names import check_lite_topic, check_topic
from rucola.proxy.property_keys import LITE_TOPIC, PRIORITY, RESERVED_KEYS, TRACE_CONTEXT
from rucola.proxy.refusal import RefusedError
from rucola.proxy.timestamps import milliseconds, whole_seconds

BODY_BYTES_MAX: Final = 4 << 20
USER_PROPERTIES_MAX: Final = 128
USER_PROPERTIES_BYTES_MAX: Final = 16 << 10
"""Largest size of user properties, tag and keys together."""
RECOVERY_SECONDS_MAX: Final = 3600
"""Longest time until the first check of a transaction."""
DELAY_MS_MAX: Final = 24 * 3600 * 1000
MESSAGE_GROUP_BYTES_MAX: Final = 63
LITE_TOPIC_BYTES_MAX: Final = 64
_COMPRESSED = int(MessageSysFlag.COMPRESSED)
_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED)
PROPERTIES_BYTES_STORED_MAX: Final = PROPERTIES_BYTES_MAX - SUFFIX_BYTES_MAX
"""Largest size of all properties as stored; a broker appends some of its own."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that has passed the checks.

    Attributes:
        topic: name of the topic.
        body: the body, as sent.
        properties: the properties as stored.
        sys_flag: bits of ``MessageSysFlag``.
        born_timestamp_ms: when the message was made.
        unique_key: the id that the client gave it.
        message_group: messages of the same group go to the same queue; None without.
        lite_topic: messages of the same lite topic go to the same queue; None without.
        kind: what the properties make of it.
        deliver_ms: when it is delivered; None if at once.
        priority: 0 or more; None without.
        reconsume_times: deliveries before this one, of a message sent to a retry topic; else 0.
    """

    topic: str
    body: bytes
    properties: bytes
    sys_flag: int
    born_timestamp_ms: int
    unique_key: str
    message_group: str | None
    lite_topic: str | None
    kind: MessageKind
    deliver_ms: int | None
    priority: int | None
    reconsume_times: int


class Arrival(NamedTuple):
    """What the door knows of a request besides its bytes.

    Attributes:
        now_ms: the time.
        host: address of the client, stored if a message does not name its host; may be empty.
        body_bytes_max: largest body.
        lite_topic_bytes_max: largest name of a lite topic.
    """

    now_ms: int
    host: str = ""
    body_bytes_max: int = BODY_BYTES_MAX
    lite_topic_bytes_max: int = LITE_TOPIC_BYTES_MAX


def read_request(request: messages.SendMessageRequest, arrival: Arrival) -> list[SentMessage]:
    """Checks all messages of a request.

    Raises:
        RefusedError: the first check that fails, in the order of the messages.
    """
    if not request.messages:
        raise RefusedError(messages.MESSAGE_CORRUPTED, "the request has no message")
    topic = request.messages[0].topic
    check_topic(topic.name)
    if any(message.topic != topic for message in request.messages):
        raise RefusedError(messages.MESSAGE_CORRUPTED, "the messages of a request must have the same topic")
    return [_read_message(message, arrival) for message in request.messages]


def _read_message(message: messages.Message, arrival: Arrival) -> SentMessage:
    system = message.system_properties
    topic = message.topic.name
    _check_body(message.body, arrival.body_bytes_max)
    user_bytes = _check_user_properties(message.user_properties)
    _check_tag_and_keys(system, user_bytes)
    if is_blank(system.message_id) or has_iso_control(system.message_id):
        raise RefusedError(messages.ILLEGAL_MESSAGE_ID, "the message id is empty or has control characters")
    recovery_seconds = _recovery_seconds(system)
    deliver_ms = _deliver_ms(system, arrival.now_ms)
    _check_message_group(system.message_group)
    if system.lite_topic:
        check_lite_topic(system.lite_topic, arrival.lite_topic_bytes_max)
    _check_others(system)

    born_ms = milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else None
    priority = system.priority if system.HasField("priority") and system.priority >= 0 else None
    own = {
        const.TAGS: system.tag,
        const.KEYS: const.KEY_SEPARATOR.join(filter(None, system.keys)),
        const.UNIQ_KEY: system.message_id,
        const.RECONSUME_TIME: str(system.delivery_attempt),
        const.PGROUP: topic,  # there are no producer groups; transactions are checked with producers of the topic
        const.TRAN_MSG: "true" if system.message_type == messages.TRANSACTION else "",
        const.CHECK_IMMUNITY_TIME_IN_SECONDS: _decimal(recovery_seconds),
        const.TIMER_DELIVER_MS: _decimal(deliver_ms),
        const.SHARDING_KEY: system.message_group,
        TRACE_CONTEXT: system.trace_context,
        PRIORITY: _decimal(priority),
        LITE_TOPIC: system.lite_topic,
        const.BORN_HOST: arrival.host if is_blank(system.born_host) else system.born_host,
        const.BORN_TIMESTAMP: _decimal(born_ms),
    }
    properties = _with_user_properties(own, message.user_properties)
    kind = kind_of(properties)
    compressed = _COMPRESSED if system.body_encoding == messages.GZIP else 0
    return SentMessage(
        topic=topic,
        body=message.body,
        properties=_stored(properties),
        sys_flag=compressed | (_PREPARED if kind is MessageKind.TRANSACTION else 0),
        born_timestamp_ms=arrival.now_ms if born_ms is None else born_ms,
        unique_key=system.message_id,
        message_group=system.message_group or None,
        lite_topic=system.lite_topic or None,
        kind=kind,
        deliver_ms=deliver_ms,
        priority=priority,
        reconsume_times=system.delivery_attempt if is_retry_topic(topic) else 0,
    )


def _decimal(number: int | None) -> str:
    return "" if number is None else str(number)


def _with_user_properties(own: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """The properties that have a value. What the system sets wins over a user property of the same name."""
    properties = {name: value for name, value in own.items() if value}
    for name, value in sorted(user.items()):
        if name and value:
            properties.setdefault(name, value)
    return properties


def _stored(properties: Mapping[str, str]) -> bytes:
    text = encode_properties(properties)
    if len(text) > PROPERTIES_BYTES_STORED_MAX:
        raise RefusedError(
            messages.MESSAGE_PROPERTIES_TOO_LARGE,
            f"all properties of the message have {len(text)} bytes; allowed are {PROPERTIES_BYTES_STORED_MAX}",
        )
    return text


def _check_body(body: bytes, body_bytes_max: int) -> None:
    if not body:
        raise RefusedError(messages.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > body_bytes_max:
        raise RefusedError(
            messages.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes; allowed are {body_bytes_max}"
        )


def _check_user_properties(properties: Mapping[str, str]) -> int:
    """Returns the size of the properties in bytes."""
    if len(properties) > USER_PROPERTIES_MAX:
        raise RefusedError(
            messages.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} user properties; allowed are {USER_PROPERTIES_MAX}",
        )
    size = 0
    for key, value in properties.items():
        if key in RESERVED_KEYS:
            raise RefusedError(
                messages.ILLEGAL_MESSAGE_PROPERTY_KEY, f"user property {key} has a name that only the system uses"
            )
        for part, text in (("key", key), ("value", value)):
            if has_iso_control(text):
                raise RefusedError(
                    messages.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the {part} of a user property has control characters"
                )
            size += len(text.encode())
    return size


def _check_tag_and_keys(system: messages.SystemProperties, user_bytes: int) -> None:
    tag = system.tag
    if tag:
        if is_blank(tag):
            raise RefusedError(messages.ILLEGAL_MESSAGE_TAG, "the tag is blank")
        if "|" in tag:
            raise RefusedError(messages.ILLEGAL_MESSAGE_TAG, "the tag contains |, which separates tags")
        if has_iso_control(tag):
            raise RefusedError(messages.ILLEGAL_MESSAGE_TAG, "the tag has control characters")
    size = user_bytes + len(tag.encode())
    for key in system.keys:
        if key and is_blank(key):
            raise RefusedError(messages.ILLEGAL_MESSAGE_KEY, "a key is blank")
        if has_iso_control(key):
            raise RefusedError(messages.ILLEGAL_MESSAGE_KEY, "a key has control characters")
        size += len(key.encode())
    if size > USER_PROPERTIES_BYTES_MAX:
        raise RefusedError(
            messages.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys have {size} bytes; allowed are {USER_PROPERTIES_BYTES_MAX}",
        )


def _recovery_seconds(system: messages.SystemProperties) -> int | None:
    if system.message_type != messages.TRANSACTION or not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    seconds = whole_seconds(system.orphaned_transaction_recovery_duration)
    if seconds is None or seconds > RECOVERY_SECONDS_MAX:
        raise RefusedError(
            messages.BAD_REQUEST,
            f"the recovery time of the transaction is not allowed; allowed are 0 to {RECOVERY_SECONDS_MAX} s",
        )
    return seconds


def _deliver_ms(system: messages.SystemProperties, now_ms: int) -> int | None:
    """The delivery time; one before 1970 becomes 1970, because both are past."""
    if not system.HasField("delivery_timestamp"):
        return None
    deliver_ms = milliseconds(system.delivery_timestamp)
    if deliver_ms is None:
        raise RefusedError(messages.ILLEGAL_DELIVERY_TIME, "the delivery time is no valid timestamp")
    if deliver_ms - now_ms > DELAY_MS_MAX:
        raise RefusedError(
            messages.ILLEGAL_DELIVERY_TIME,
            f"the delivery time is {deliver_ms - now_ms} ms ahead; allowed are {DELAY_MS_MAX}",
        )
    return max(deliver_ms, 0)


def _check_message_group(group: str) -> None:
    if not group:
        return
    if is_blank(group):
        raise RefusedError(messages.ILLEGAL_MESSAGE_GROUP, "the message group is blank")
    if len(group.encode()) > MESSAGE_GROUP_BYTES_MAX:
        raise RefusedError(
            messages.ILLEGAL_MESSAGE_GROUP,
            f"the message group has {len(group.encode())} bytes; allowed are {MESSAGE_GROUP_BYTES_MAX}",
        )
    if has_iso_control(group):
        raise RefusedError(messages.ILLEGAL_MESSAGE_GROUP, "the message group has control characters")


def _check_others(system: messages.SystemProperties) -> None:
    """The checks that RocketMQ 5.3.3 does not make. A control character in these fields could begin a property that
    only brokers set.
    """
    for name, text in (("trace context", system.trace_context), ("born host", system.born_host)):
        if has_iso_control(text):
            raise RefusedError(messages.BAD_REQUEST, f"the {name} has control characters")
