"""HTTP/2 for servers: frames, header compression, streams and windows (RFC 9113, RFC 7541). No I/O, no clock.

For example::

    from rucola.http2 import EventKind, EventSpace, Http2Connection, Http2Limits, encode_block

    limits = Http2Limits()
    space = EventSpace([b":path"], limits)
    connection = Http2Connection(space, limits)
    block = encode_block([(b":status", b"200")])
"""

from rucola.http2.columns import EventKind
from rucola.http2.connection import Http2Connection
from rucola.http2.event_space import EventSpace
from rucola.http2.frames import ErrorCode
from rucola.http2.hpack import encode_block
from rucola.http2.limits import BurstRate, Http2Limits

__all__ = ["BurstRate", "ErrorCode", "EventKind", "EventSpace", "Http2Connection", "Http2Limits", "encode_block"]
