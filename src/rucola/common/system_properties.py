"""The properties that belong to brokers and clients rather than to the application: one table, with a reason for each.

An application that sets one of them by accident would change how the system treats the message: TRAN_MSG makes it a
half message that nobody commits, TIMER_OUT_MS puts it behind the timer. Such names are refused when the message is
sent, as by ``Message#putUserProperty`` of RocketMQ's client. The client itself sets them in a ``SystemMessage``.

Properties that were read from a broker may be given to a new message. The new message then keeps the application's
properties, tags, keys and sharding key, and nothing that describes the life of the old one.

A broker cannot rely on that, because other clients copy all properties of a received message. The column ``sent`` says
what the broker does with a property that a client sends, in every kind of send.

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


class Sent(Enum):
    """What a broker does with a property that a client sends."""

    KEPT = "KEPT"
    """Clients set it: it is stored as it came."""
    DROPPED = "DROPPED"
    """Brokers set it, and received messages carry it: it is removed, so that received messages can be forwarded."""
    REFUSED = "REFUSED"
    """Brokers set it, and no client has a reason to send it: the message is refused."""
    OWN_TOPIC = "OWN_TOPIC"
    """Kept if its value names the topic of its message, else the message is refused."""


class SystemProperty(NamedTuple):
    """One property of the system.

    Attributes:
        role: who sets it.
        meaning: what it means; completes the sentence "NAME ...".
        sent: what a broker does if a client sends it.
    """

    role: PropertyRole
    meaning: str
    sent: Sent


_CONTENT, _SENDING, _RESERVED = PropertyRole.CONTENT, PropertyRole.SENDING, PropertyRole.RESERVED
_KEPT, _DROPPED, _REFUSED, _OWN_TOPIC = Sent.KEPT, Sent.DROPPED, Sent.REFUSED, Sent.OWN_TOPIC

SYSTEM_PROPERTIES: Final[Mapping[str, SystemProperty]] = {
    name: SystemProperty(role, meaning, sent)
    for name, role, meaning, sent in (
        (message_const.TAGS, _CONTENT, "holds the tag", _KEPT),
        (message_const.KEYS, _CONTENT, "holds the keys", _KEPT),
        (message_const.SHARDING_KEY, _CONTENT, "holds the sharding key", _KEPT),
        (message_const.LITE_TOPIC, _SENDING, "names the lite topic", _KEPT),
        (message_const.WAIT, _SENDING, "says whether the broker waits for disk and slave", _KEPT),
        (message_const.UNIQ_KEY, _SENDING, "holds the id that the producer gives each message", _KEPT),
        (message_const.DELAY, _SENDING, "holds the delay level", _KEPT),
        (message_const.TIMER_DELAY_SEC, _SENDING, "holds a delay in seconds", _KEPT),
        (message_const.TIMER_DELAY_MS, _SENDING, "holds a delay in milliseconds", _KEPT),
        (message_const.TIMER_DELIVER_MS, _SENDING, "holds the delivery time", _KEPT),
        ("__STARTDELIVERTIME", _SENDING, "holds the delivery time for other servers", _KEPT),
        (message_const.PRIORITY, _SENDING, "holds the priority", _KEPT),
        (message_const.CHECK_IMMUNITY_TIME_IN_SECONDS, _SENDING, "delays the first check of a half message", _KEPT),
        (message_const.DLQ_ORIGIN_TOPIC, _SENDING, "names the topic of a dead letter", _KEPT),
        (message_const.DLQ_ORIGIN_MESSAGE_ID, _SENDING, "names the message that became a dead letter", _KEPT),
        (message_const.TRAN_MSG, _RESERVED, "makes a half message, which no consumer sees before its commit", _KEPT),
        (message_const.PGROUP, _RESERVED, "names the producer group that decides a transaction", _KEPT),
        (message_const.TRANSACTION_ID, _RESERVED, "holds the id of a transaction", _KEPT),
        (message_const.TRAN_PREPARED_QUEUE_OFFSET, _RESERVED, "holds the place of a half message", _DROPPED),
        (message_const.TRANSACTION_CHECK_TIMES, _RESERVED, "counts the checks of a half message", _DROPPED),
        (message_const.REAL_TOPIC, _RESERVED, "names the topic for which a message waits elsewhere", _DROPPED),
        (message_const.REAL_QID, _RESERVED, "names the queue for which a message waits elsewhere", _DROPPED),
        (message_const.TIMER_OUT_MS, _RESERVED, "holds the time step in which the timer delivers", _DROPPED),
        (message_const.TIMER_ENQUEUE_MS, _RESERVED, "holds when the timer took the message", _DROPPED),
        (message_const.TIMER_DEQUEUE_MS, _RESERVED, "holds when the timer released the message", _DROPPED),
        (message_const.TIMER_ROLL_TIMES, _RESERVED, "counts the rounds of the timer", _DROPPED),
        (message_const.TIMER_DEL_UNIQKEY, _RESERVED, "makes a message that recalls another one", _OWN_TOPIC),
        ("TIMER_DELAY_LEVEL", _RESERVED, "holds the level of a timed message", _KEPT),
        (message_const.RETRY_TOPIC, _RESERVED, "names the topic of a retried message", _KEPT),
        (message_const.ORIGIN_MESSAGE_ID, _RESERVED, "names the first delivery of a retried message", _KEPT),
        (message_const.RECONSUME_TIME, _RESERVED, "counts the deliveries of a retried message", _KEPT),
        (message_const.MAX_RECONSUME_TIMES, _RESERVED, "limits the deliveries of a retried message", _KEPT),
        (message_const.CONSUME_START_TIME, _RESERVED, "holds when a listener received the message", _KEPT),
        (message_const.POP_CK, _RESERVED, "holds the receipt of a popped message", _DROPPED),
        ("POP_CK_OFFSET", _RESERVED, "holds the place of a popped message's checkpoint", _DROPPED),
        (message_const.FIRST_POP_TIME, _RESERVED, "holds when the message was first popped", _DROPPED),
        (message_const.CORRELATION_ID, _RESERVED, "connects a request with its reply", _KEPT),
        (message_const.REPLY_TO_CLIENT, _RESERVED, "names the client that waits for a reply", _KEPT),
        (message_const.TTL, _RESERVED, "holds how long a client waits for a reply", _KEPT),
        (message_const.MSG_TYPE, _RESERVED, "marks a reply", _KEPT),
        (message_const.ARRIVE_TIME, _RESERVED, "holds when a reply reached the broker", _KEPT),
        (message_const.PUSH_REPLY_TIME, _RESERVED, "holds when a reply left the broker", _DROPPED),
        (message_const.INNER_NUM, _RESERVED, "counts the messages in one record", _REFUSED),
        (message_const.INNER_BASE, _RESERVED, "holds the offset of the first message in a record", _REFUSED),
        (message_const.INNER_MULTI_DISPATCH, _RESERVED, "names further queues of a message", _REFUSED),
        (message_const.INNER_MULTI_QUEUE_OFFSET, _RESERVED, "holds the offsets in further queues", _REFUSED),
        (message_const.DUP_INFO, _RESERVED, "marks a message that another broker copied", _REFUSED),
        (message_const.MSG_REGION, _RESERVED, "names the broker's region", _DROPPED),
        (message_const.TRACE_ON, _RESERVED, "says whether the broker allows traces", _DROPPED),
        (message_const.SENDER, _RESERVED, "names the account that sent a half message or a timed one", _DROPPED),
        (message_const.CLUSTER, _RESERVED, "names the broker's cluster", _DROPPED),
        (message_const.CRC32, _RESERVED, "holds the checksum of the stored record", _DROPPED),
        (message_const.BORN_HOST, _RESERVED, "holds the address of the sender", _KEPT),
        (message_const.BORN_TIMESTAMP, _RESERVED, "holds when the message was sent", _KEPT),
        (message_const.MIN_OFFSET, _RESERVED, "holds the first offset of the queue that was read", _KEPT),
        (message_const.MAX_OFFSET, _RESERVED, "holds the end of the queue that was read", _KEPT),
        ("BUYER_ID", _RESERVED, "is reserved by RocketMQ", _KEPT),
        ("INSTANCE_ID", _RESERVED, "is reserved by RocketMQ", _KEPT),
        ("EXTEND_UNIQ_INFO", _RESERVED, "is reserved by RocketMQ", _KEPT),
        ("TRANSFER_FLAG", _RESERVED, "is reserved by RocketMQ", _KEPT),
        ("CORRECTION_FLAG", _RESERVED, "is reserved by RocketMQ", _KEPT),
        ("MQ2_FLAG", _RESERVED, "is reserved by RocketMQ", _KEPT),
    )
}

RESERVED: Final = frozenset(name for name, own in SYSTEM_PROPERTIES.items() if own.role is _RESERVED)
"""The names that an application must not set."""
DROPPED: Final = frozenset(name for name, own in SYSTEM_PROPERTIES.items() if own.sent is _DROPPED)
"""The names that a broker removes from the messages of clients."""
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
