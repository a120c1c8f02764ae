"""Times of the protocol: seconds and nanoseconds, against RocketMQ's milliseconds.

Source: ``google/protobuf/timestamp.proto``, ``google/protobuf/duration.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

SECONDS_MIN: Final = -62135596800
"""0001-01-01T00:00:00Z."""
SECONDS_MAX: Final = 253402300799
"""9999-12-31T23:59:59Z."""
NANOS_MAX: Final = 999_999_999
_NANOS_OF_MS = 1_000_000


def milliseconds(time: Timestamp) -> int | None:
    """Milliseconds since 1970, rounded down; None if ``time`` is outside the years 1 to 9999 or has too many
    nanoseconds.
    """
    if not SECONDS_MIN <= time.seconds <= SECONDS_MAX or not 0 <= time.nanos <= NANOS_MAX:
        return None
    result: int = time.seconds * 1000 + time.nanos // _NANOS_OF_MS
    return result


def whole_seconds(duration: Duration) -> int | None:
    """The whole seconds of ``duration``; None if it is negative or has too many nanoseconds."""
    seconds: int = duration.seconds
    return seconds if seconds >= 0 and 0 <= duration.nanos <= NANOS_MAX else None


def duration_ms(duration: Duration) -> int | None:
    """Milliseconds of ``duration``, rounded down; None if it is negative or has too many nanoseconds."""
    seconds: int = duration.seconds
    nanos: int = duration.nanos
    return seconds * 1000 + nanos // _NANOS_OF_MS if seconds >= 0 and 0 <= nanos <= NANOS_MAX else None


def set_duration(duration: Duration, milliseconds: float) -> None:
    """Sets ``duration``; the milliseconds must not be negative."""
    duration.seconds, rest_ms = divmod(int(milliseconds), 1000)
    duration.nanos = rest_ms * _NANOS_OF_MS


def set_milliseconds(time: Timestamp, milliseconds_since_1970: int) -> None:
    """Sets ``time``; a time outside the years 1 to 9999 becomes the nearest one inside."""
    seconds, rest_ms = divmod(milliseconds_since_1970, 1000)
    time.seconds = min(max(seconds, SECONDS_MIN), SECONDS_MAX)
    time.nanos = rest_ms * _NANOS_OF_MS
