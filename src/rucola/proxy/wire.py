"""Responses to frequent requests, written without objects of protobuf.

Source: protobuf's encoding of messages; a test compares the bytes with those of protobuf.
"""

from __future__ import annotations

OK = b"\x0a\x08\x08\xa0\x9c\x01\x12\x02OK"
"""Field 1 of a response or an entry: the status OK."""


def varint(number: int) -> bytes:
    """A number from 0 on, as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def sent(message_id: bytes, offset: int) -> bytes:
    """The ``SendMessageResponse`` for one message that was stored."""
    entry = OK + b"\x12" + varint(len(message_id)) + message_id
    if offset:
        entry += b"\x20" + varint(offset)
    return OK + b"\x12" + varint(len(entry)) + entry


def acknowledged(message_id: bytes, receipt_handle: bytes) -> bytes:
    """The ``AckMessageResponse`` for one message that was acknowledged."""
    entry = b""
    if message_id:
        entry = b"\x0a" + varint(len(message_id)) + message_id
    entry += b"\x12" + varint(len(receipt_handle)) + receipt_handle + b"\x1a" + OK[1:]
    return OK + b"\x12" + varint(len(entry)) + entry
