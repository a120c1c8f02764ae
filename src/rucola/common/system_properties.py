"""The properties that belong to brokers and clients rather than to the application: one table, with a reason for each.

An application that sets one of them by accident would change how the system treats the message: TRAN_MSG makes it a
half message that nobody commits, TIMER_OUT_MS puts it behind the timer. Such names are refused when the message is
sent, as by ``Message#putUserProperty`` of RocketMQ's client. The client itself sets them in a ``SystemMessage``.

Properties that were read from a broker may be given to a new message. The new message then keeps the application's
properties, tags, keys and sharding key, and nothing that describes the life of the old one.

Source: RocketMQ 5.3.3, ``MessageConst``; protocol.md 1.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from rucola.common import message_const
from rucola.errors import ClientError


class PropertyRole(Enum):
    """Who sets a property of the system, and whether a forwarded message keeps it."""

    CONTENT = "CONTENT"
    """Set by the application through a field of ``Message``; a forwarded message keeps it."""
    SENDING = "SENDING"
    """Set by the application for one send; a forwarded message does not keep it."""
    RESERVED = "RESERVED"
    """Set only by brokers and clients; a forwarded message does not keep it."""


class SystemProperty(NamedTuple):
    """One property of the system.

    Attributes:
        role: who sets it.
        meaning: what it means; completes the sentence "NAME ...".
    """

    role: PropertyRole
    meaning: str


_CONTENT, _SENDING, _RESERVED = PropertyRole.CONTENT, PropertyRole.SENDING, PropertyRole.RESERVED

SYSTEM_PROPERTIES: Final[Mapping[str, SystemProperty]] = {
    name: SystemProperty(role, meaning)
    for name, role, meaning in (
        (message_const.TAGS, _CONTENT, "holds the tag"),
        (message_const.KEYS, _CONTENT, "holds the keys"),
        (message_const.SHARDING_KEY, _CONTENT, "holds the sharding key"),
        (message_const.WAIT, _SENDING, "says whether the broker waits for disk and slave"),
        (message_const.UNIQ_KEY, _SENDING, "holds the id that the producer gives each message"),
        (message_const.DELAY, _SENDING, "holds the delay level"),
        (message_const.TIMER_DELAY_SEC, _SENDING, "holds a delay in seconds"),
        (message_const.TIMER_DELAY_MS, _SENDING, "holds a delay in milliseconds"),
        (message_const.TIMER_DELIVER_MS, _SENDING, "holds the delivery time"),
        ("__STARTDELIVERTIME", _SENDING, "holds the delivery time for other servers"),
        (message_const.CHECK_IMMUNITY_TIME_IN_SECONDS, _SENDING, "delays the first check of a half message"),
        (message_const.DLQ_ORIGIN_TOPIC, _SENDING, "names the topic of a dead letter"),
        (message_const.DLQ_ORIGIN_MESSAGE_ID, _SENDING, "names the message that became a dead letter"),
        (message_const.TRAN_MSG, _RESERVED, "makes a half message, which no consumer sees before its commit"),
        (message_const.PGROUP, _RESERVED, "names the producer group that decides a transaction"),
        (message_const.TRANSACTION_ID, _RESERVED, "holds the id of a transaction"),
        (message_const.TRAN_PREPARED_QUEUE_OFFSET, _RESERVED, "holds the place of a half message"),
        (message_const.TRANSACTION_CHECK_TIMES, _RESERVED, "counts the checks of a half message"),
        (message_const.REAL_TOPIC, _RESERVED, "names the topic for which a message waits elsewhere"),
        (message_const.REAL_QID, _RESERVED, "names the queue for which a message waits elsewhere"),
        (message_const.TIMER_OUT_MS, _RESERVED, "holds the time step in which the timer delivers"),
        (message_const.TIMER_ENQUEUE_MS, _RESERVED, "holds when the timer took the message"),
        (message_const.TIMER_DEQUEUE_MS, _RESERVED, "holds when the timer released the message"),
        (message_const.TIMER_ROLL_TIMES, _RESERVED, "counts the rounds of the timer"),
        (message_const.TIMER_DEL_UNIQKEY, _RESERVED, "makes a message that recalls another one"),
        ("TIMER_DELAY_LEVEL", _RESERVED, "holds the level of a timed message"),
        (message_const.RETRY_TOPIC, _RESERVED, "names the topic of a retried message"),
        (message_const.ORIGIN_MESSAGE_ID, _RESERVED, "names the first delivery of a retried message"),
        (message_const.RECONSUME_TIME, _RESERVED, "counts the deliveries of a retried message"),
        (message_const.MAX_RECONSUME_TIMES, _RESERVED, "limits the deliveries of a retried message"),
        (message_const.CONSUME_START_TIME, _RESERVED, "holds when a listener received the message"),
        (message_const.POP_CK, _RESERVED, "holds the receipt of a popped message"),
        ("POP_CK_OFFSET", _RESERVED, "holds the place of a popped message's checkpoint"),
        (message_const.FIRST_POP_TIME, _RESERVED, "holds when the message was first popped"),
        (message_const.CORRELATION_ID, _RESERVED, "connects a request with its reply"),
        (message_const.REPLY_TO_CLIENT, _RESERVED, "names the client that waits for a reply"),
        (message_const.TTL, _RESERVED, "holds how long a client waits for a reply"),
        (message_const.MSG_TYPE, _RESERVED, "marks a reply"),
        (message_const.ARRIVE_TIME, _RESERVED, "holds when a reply reached the broker"),
        (message_const.PUSH_REPLY_TIME, _RESERVED, "holds when a reply left the broker"),
        (message_const.INNER_NUM, _RESERVED, "counts the messages in one record"),
        (message_const.INNER_BASE, _RESERVED, "holds the offset of the first message in a record"),
        (message_const.INNER_MULTI_DISPATCH, _RESERVED, "names further queues of a message"),
        (message_const.INNER_MULTI_QUEUE_OFFSET, _RESERVED, "holds the offsets in further queues"),
        (message_const.DUP_INFO, _RESERVED, "marks a message that another broker copied"),
        (message_const.MSG_REGION, _RESERVED, "names the broker's region"),
        (message_const.TRACE_ON, _RESERVED, "says whether the broker allows traces"),
        (message_const.CLUSTER, _RESERVED, "names the broker's cluster"),
        (message_const.CRC32, _RESERVED, "holds the checksum of the stored record"),
        (message_const.BORN_HOST, _RESERVED, "holds the address of the sender"),
        (message_const.BORN_TIMESTAMP, _RESERVED, "holds when the message was sent"),
        (message_const.MIN_OFFSET, _RESERVED, "holds the first offset of the queue that was read"),
        (message_const.MAX_OFFSET, _RESERVED, "holds the end of the queue that was read"),
        ("BUYER_ID", _RESERVED, "is reserved by RocketMQ"),
        ("INSTANCE_ID", _RESERVED, "is reserved by RocketMQ"),
        ("EXTEND_UNIQ_INFO", _RESERVED, "is reserved by RocketMQ"),
        ("TRANSFER_FLAG", _RESERVED, "is reserved by RocketMQ"),
        ("CORRECTION_FLAG", _RESERVED, "is reserved by RocketMQ"),
        ("MQ2_FLAG", _RESERVED, "is reserved by RocketMQ"),
    )
}

RESERVED: Final = frozenset(name for name, own in SYSTEM_PROPERTIES.items() if own.role is _RESERVED)
"""The names that an application must not set."""
NOT_FORWARDED: Final = frozenset(name for name, own in SYSTEM_PROPERTIES.items() if own.role is not _CONTENT)
"""The names that a new message does not take over from the message that it forwards."""


def were_read_from_broker(properties: Mapping[str, str]) -> bool:
    """Whether ``properties`` hold what consumers or brokers add to each message, or a record's checksum."""
    return (
        (message_const.MIN_OFFSET in properties and message_const.MAX_OFFSET in properties)
        or (message_const.MSG_REGION in properties and message_const.TRACE_ON in properties)
        or message_const.CRC32 in properties
    )


def forwarded(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns what a new message takes over from ``properties``, which were read from a broker."""
    return {name: value for name, value in properties.items() if name not in NOT_FORWARDED}


def application_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties without those of the system."""
    return {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}


def refuse_reserved(properties: Mapping[str, str]) -> None:
    """Raises ``ClientError`` if ``properties`` hold a name that is reserved."""
    names = [name for name in properties if name in RESERVED]
    if names:
        raise ClientError(
            f"property {names[0]!r} is used by the system: it {SYSTEM_PROPERTIES[names[0]].meaning}; an application "
            "must use another name. To forward a received message, make a new one: Message(topic, received.body, "
            "properties=received.properties) leaves out the system's properties"
        )
