"""Numbers of HTTP/2 (RFC 9113), and the frames that a server sends.

::

    0          3      4       5               9
    | length   | type | flags | R, stream     | payload (length bytes) |
    | u24      | u8   | u8    | u1, u31       |                        |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""
HEAD_BYTES = 9
WINDOW_MAX = 2**31 - 1
FRAME_BYTES_DEFAULT = 16384
"""Largest payload of a frame, unless the receiver allows more."""
FRAME_BYTES_MAX = 2**24 - 1
WINDOW_DEFAULT = 65535
TABLE_BYTES_DEFAULT = 4096

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_WORD = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")


class FrameType(IntEnum):
    """Types of frames (RFC 9113 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


FLAG_ACK = 0x1
FLAG_END_STREAM = 0x1
FLAG_END_HEADERS = 0x4
FLAG_PADDED = 0x8
FLAG_PRIORITY = 0x20


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Names of settings (RFC 9113 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Returns the 9 bytes before the ``length`` bytes of a payload."""
    return _HEAD.pack(length >> 8, length & 255, kind, flags, stream)


def settings_frame(settings: Iterable[tuple[int, int]]) -> bytes:
    """Returns SETTINGS with pairs of name and value."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in settings)
    return frame_head(len(payload), FrameType.SETTINGS, 0, 0) + payload


def settings_of(payload: bytes | bytearray) -> Iterable[tuple[int, int]]:
    """Returns the pairs of name and value in the payload of SETTINGS."""
    return _SETTING.iter_unpack(payload)


def error_of_setting(name: int, value: int) -> ErrorCode:
    """Returns the error that a value is; NO_ERROR if it is allowed, or the name unknown."""
    if name == Setting.ENABLE_PUSH and value > 1:
        return ErrorCode.PROTOCOL_ERROR
    if name == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
        return ErrorCode.FLOW_CONTROL_ERROR
    if name == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_MAX:
        return ErrorCode.PROTOCOL_ERROR
    return ErrorCode.NO_ERROR


SETTINGS_ACK = frame_head(0, FrameType.SETTINGS, FLAG_ACK, 0)


def ping_ack(payload: bytes) -> bytes:
    """Returns the answer to a PING with these 8 bytes."""
    return frame_head(8, FrameType.PING, FLAG_ACK, 0) + payload


def window_update(stream: int, increment: int) -> bytes:
    """Returns WINDOW_UPDATE, for a stream or, with 0, for the connection."""
    return frame_head(4, FrameType.WINDOW_UPDATE, 0, stream) + _WORD.pack(increment)


def rst_stream(stream: int, code: int) -> bytes:
    """Returns RST_STREAM."""
    return frame_head(4, FrameType.RST_STREAM, 0, stream) + _WORD.pack(code)


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    """Returns GOAWAY: streams after ``last_stream`` were not handled. ``debug`` is a text for the peer's log."""
    return frame_head(8 + len(debug), FrameType.GOAWAY, 0, 0) + _GOAWAY.pack(last_stream, code) + debug


def goaway_of(payload: bytes | bytearray) -> tuple[int, int]:
    """Returns last stream and error code in the first 8 bytes of GOAWAY."""
    last_stream, code = _GOAWAY.unpack(payload)
    return last_stream & WINDOW_MAX, code


def headers_frames(stream: int, block: bytes, end_stream: bool, frame_bytes_max: int) -> bytes:
    """Returns a header block as HEADERS and, if it is longer than ``frame_bytes_max``, frames CONTINUATION."""
    flags = FLAG_END_STREAM if end_stream else 0
    if len(block) <= frame_bytes_max:
        return _HEAD.pack(len(block) >> 8, len(block) & 255, 1, flags | FLAG_END_HEADERS, stream) + block
    parts = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    frames = [frame_head(len(parts[0]), FrameType.HEADERS, flags, stream) + parts[0]]
    for part in parts[1:]:
        last = FLAG_END_HEADERS if part is parts[-1] else 0
        frames.append(frame_head(len(part), FrameType.CONTINUATION, last, stream) + part)
    return b"".join(frames)
