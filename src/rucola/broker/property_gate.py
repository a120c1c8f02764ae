"""The gate before every append of a client's message: what happens to each property that the broker itself sets.

The rules are the column ``sent`` of ``common.system_properties``. Sends, members of batches, replies and half messages
all pass this gate. A kernel (``formats._send_cy``) finds the few messages with such a property; the others are stored
without a look at their properties in Python.
"""

from __future__ import annotations

from rucola.common.message_const import (
    KEY_SEPARATOR,
    KEYS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from rucola.common.system_properties import DROPPED, SYSTEM_PROPERTIES, Sent
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import ResponseCode

KEYS_MAX = 1024
"""Largest number of keys of a message; each becomes an entry of the index, which takes up to 0.3 µs. The kernel finds
the messages that may have more.
"""
_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
_JUDGED = {name: own for name, own in SYSTEM_PROPERTIES.items() if own.sent in (Sent.REFUSED, Sent.OWN_TOPIC)}
_JUDGED_BYTES = frozenset(name.encode() for name in _JUDGED)
_DROPPED_BYTES = frozenset(name.encode() for name in DROPPED)
_DROPPED_AFTER_DELAY = _DROPPED_BYTES | {name.encode() for name in _TIMES}
_TIMER_OUT_MS = TIMER_OUT_MS.encode()
_KEYS_BYTES = KEYS.encode()
_SHOWN_CHARS = 32


def admit(properties: dict[str, str], topic: str) -> None:
    """Removes from ``properties`` what only brokers set.

    A message with ``TIMER_OUT_MS`` was received after its delay. It is not delayed again, as in RocketMQ.

    Args:
        topic: the topic to which the client sends the message.

    Raises:
        BrokerError: MESSAGE_ILLEGAL: a property is refused, or there are too many keys.
    """
    if number_of_keys(properties.get(KEYS, "")) > KEYS_MAX:
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"a message with more than {KEYS_MAX} keys")
    if TIMER_OUT_MS in properties:
        for name in _TIMES:
            properties.pop(name, None)
    for name in DROPPED & properties.keys():
        del properties[name]
    for name in _JUDGED.keys() & properties.keys():
        _judge(name, properties[name], topic)


def admitted_text(text: bytes, topic: str) -> bytes:
    """Returns the encoded properties ``text`` without what only brokers set; all other bytes are unchanged.

    Raises:
        BrokerError: as in ``admit``.
    """
    pairs = text.split(b"\x02")
    names = [name if value else b"" for name, _, value in [pair.partition(b"\x01") for pair in pairs]]
    if not _JUDGED_BYTES.isdisjoint(names) or (len(text) > KEYS_MAX and _KEYS_BYTES in names):
        admit(decode_properties(text), topic)
    leaves = _DROPPED_BYTES if _TIMER_OUT_MS not in names else _DROPPED_AFTER_DELAY
    if leaves.isdisjoint(names):
        return text
    return b"\x02".join([pair for pair, name in zip(pairs, names, strict=True) if name not in leaves])


def number_of_keys(keys: str) -> int:
    """The number of keys in the value of KEYS."""
    return sum(map(bool, keys.split(KEY_SEPARATOR)))


def _judge(name: str, value: str, topic: str) -> None:
    own = _JUDGED[name]
    if own.sent is Sent.OWN_TOPIC and value.startswith(f"{topic}+"):
        return
    allowed = f"only {topic}+KEY is allowed here" if own.sent is Sent.OWN_TOPIC else "only brokers set it"
    shown = ascii(value[:_SHOWN_CHARS]) + ("..." if len(value) > _SHOWN_CHARS else "")
    raise BrokerError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"this broker does not serve messages with the property {name} = {shown}: it {own.meaning}; {allowed}",
    )
