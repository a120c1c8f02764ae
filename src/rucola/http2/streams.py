"""The streams of a connection, their states, and which frames each state takes (RFC 9113 5.1).

::

    IDLE -- HEADERS --> OPEN -- the peer's END_STREAM --> HALF_CLOSED_REMOTE -- our END_STREAM --> CLOSED
                          \\-- our END_STREAM --> HALF_CLOSED_LOCAL -- the peer's END_STREAM --> CLOSED

    any of them -- RST_STREAM received --> RESET_BY_PEER
    any of them -- RST_STREAM sent ------> RESET_BY_US

Only open and half-closed streams have an object. How the last ones were closed is in a ring of numbers; a stream that
is older, or was skipped, is FORGOTTEN.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from rucola.http2.columns import Scope
from rucola.http2.frames import ErrorCode, FrameType


class StreamState(IntEnum):
    """States of a stream; the peer may still send in the second and third."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4
    RESET_BY_PEER = 5
    RESET_BY_US = 6
    FORGOTTEN = 7


class Verdict(NamedTuple):
    """What becomes of a frame: the error that it is, or whether it is taken."""

    scope: Scope
    code: ErrorCode
    is_taken: bool = False


TAKE = Verdict(Scope.NONE, ErrorCode.NO_ERROR, True)
IGNORE = Verdict(Scope.NONE, ErrorCode.NO_ERROR)
_WRONG = Verdict(Scope.CONNECTION, ErrorCode.PROTOCOL_ERROR)
_OVER = Verdict(Scope.CONNECTION, ErrorCode.STREAM_CLOSED)
_RESET = Verdict(Scope.STREAM, ErrorCode.STREAM_CLOSED)

_FRAMES = (
    FrameType.HEADERS,
    FrameType.DATA,
    FrameType.RST_STREAM,
    FrameType.WINDOW_UPDATE,
)
_ROWS = {
    StreamState.IDLE: (TAKE, _WRONG, _WRONG, _WRONG),
    StreamState.OPEN: (TAKE, TAKE, TAKE, TAKE),
    StreamState.HALF_CLOSED_LOCAL: (TAKE, TAKE, TAKE, TAKE),
    StreamState.HALF_CLOSED_REMOTE: (_RESET, _RESET, TAKE, TAKE),
    StreamState.CLOSED: (_OVER, _RESET, IGNORE, IGNORE),
    StreamState.RESET_BY_PEER: (_RESET, _RESET, IGNORE, IGNORE),
    StreamState.RESET_BY_US: (IGNORE, IGNORE, IGNORE, IGNORE),
    StreamState.FORGOTTEN: (_WRONG, _RESET, IGNORE, IGNORE),
}
RECEIVED: dict[tuple[StreamState, FrameType], Verdict] = {
    (state, frame): verdict
    for state, verdicts in _ROWS.items()
    for frame, verdict in zip(_FRAMES, verdicts, strict=True)
}
"""What becomes of a frame that arrives in a state."""
