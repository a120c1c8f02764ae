"""Responses to frequent requests, written without objects of protobuf.

Source: protobuf's encoding of messages; a test compares the bytes with those of protobuf.
"""

from __future__ import annotations

OK = b"\x0a\x08\x08\xa0\x9c\x01\x12\x02OK"
"""Field 1 of a response or an entry: the status OK."""
_SMALL = 0x80
_SMALL_NUMBERS = [bytes((number,)) for number in range(_SMALL)]


def varint(number: int) -> bytes:
    """A number from 0 on, as protobuf writes it."""
    if number < _SMALL:
        return _SMALL_NUMBERS[number]
    parts = bytearray()
    while number >= _SMALL:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def sent(message_id: bytes, offset: int) -> bytes:
    """The ``SendMessageResponse`` for one message that was stored."""
    place = b"\x20" + varint(offset) if offset else b""
    entry = b"%b\x12%b%b%b" % (OK, varint(len(message_id)), message_id, place)
    return b"%b\x12%b%b" % (OK, varint(len(entry)), entry)


def message_queues(queue: bytes, ids: range, assigned: bool = False) -> bytes:
    """Field 2 of a ``QueryRouteResponse``, or of a ``QueryAssignmentResponse``: queues that differ in their ids.

    Args:
        queue: one of them, as a ``MessageQueue`` without an id.
        ids: their ids.
        assigned: whether the response is of the second kind, where each queue is within an ``Assignment``.
    """
    parts: list[bytes] = []
    for queue_id in ids:
        number = b"\x10" + varint(queue_id) if queue_id else b""
        length = varint(len(queue) + len(number))
        if assigned:
            parts += (b"\x12", varint(1 + len(length) + len(queue) + len(number)), b"\x0a")
        else:
            parts.append(b"\x12")
        parts += (length, queue, number)
    return b"".join(parts)


def acknowledged(message_id: bytes, receipt_handle: bytes) -> bytes:
    """The ``AckMessageResponse`` for one message that was acknowledged."""
    named = b"\x0a%b%b" % (varint(len(message_id)), message_id) if message_id else b""
    entry = b"%b\x12%b%b\x1a%b" % (named, varint(len(receipt_handle)), receipt_handle, OK[1:])
    return b"%b\x12%b%b" % (OK, varint(len(entry)), entry)
