"""Columns of the rows of integers that a read of an HTTP/2 connection gives, and what their numbers mean.

A kernel writes one row for each frame of a read. The connection then notes in ``ROW_KIND`` what the frame means for the
owner of the connection. Some rows mean nothing for it; rows without a frame follow the others. Positions are in the
receive buffer of the connection; those of header fields are in the text of its ``EventSpace``.
"""

from __future__ import annotations

from enum import IntEnum

ROW_KIND = 0
"""An ``EventKind``."""
ROW_STREAM = 1
"""The stream; 0 for the connection."""
ROW_END = 2
"""1 if this is the last that the peer, or for WINDOW the owner, has sent on the stream."""
ROW_POSITION = 3
"""Position of the bytes of DATA, without padding."""
ROW_LENGTH = 4
"""Number of these bytes. For GOAWAY the last stream that the peer handles, for NOT_HTTP2 the number of bytes read."""
ROW_CODE = 5
"""The error code of RESET, GOAWAY and CLOSED."""
ROW_FIELDS = 6
"""For REQUEST and TRAILERS: position of the row of fields in ``EventSpace.fields``."""
ROW_TYPE = 7
"""The type of the frame; from here on the columns are for the connection itself."""
ROW_FLAGS = 8
ROW_FLOW = 9
"""Length of the whole payload: what DATA takes from the windows."""
ROW_START = 10
"""Position of the head of the frame."""
ROW_SCOPE = 11
"""Whether the frame is malformed: a ``Scope``. Its error is then in ``ROW_CODE``."""
ROW_COLUMNS = 12

FIELDS_CONTENT_LENGTH = 0
"""Value of content-length; -1 without one."""
FIELDS_UPDATES = 1
"""Number of changes of the table's size in the header block."""
FIELDS_TEXT_END = 2
"""Position after the text that the header block took."""
FIELDS_LIST_BYTES = 3
"""Size of all fields, as RFC 9113 6.5.2 counts it."""
FIELDS_WANTED = 4
"""From here on three columns for each wanted name, in the order of the names: ``FIELD_POSITION`` and so on."""
FIELD_POSITION = 0
"""Position of the value in ``EventSpace.text``."""
FIELD_LENGTH = 1
"""Length of the value; -1 without the field. The last field counts if there are several of a name."""
FIELD_ENTRY = 2
"""Number of the entry that has name and value; -1 if the value is in no table. A connection never reuses a number, so
what was learnt from an entry holds for the life of the connection.
"""
FIELD_COLUMNS = 3


class EventKind(IntEnum):
    """What a row means for the owner of a connection."""

    NONE = 0
    REQUEST = 1
    """A new stream. Its fields are ready."""
    DATA = 2
    """Bytes of the body. The owner acknowledges them, whatever becomes of the stream."""
    TRAILERS = 3
    """Fields after the body; the last of the stream."""
    RESET = 4
    """The stream is gone, by the peer or for an error of the peer. Nothing more can be sent on it."""
    WINDOW = 5
    """All that waited for the peer's windows on this stream has gone out."""
    GOAWAY = 6
    """The peer opens no more streams."""
    CLOSED = 7
    """The connection is over, for an error of the peer. The owner sends what ``data_to_send`` returns, and closes."""
    NOT_HTTP2 = 8
    """The peer does not speak HTTP/2. Nothing was sent yet; the first bytes of the buffer are what it said."""


class Scope(IntEnum):
    """What an error in a frame ends."""

    NONE = 0
    STREAM = 1
    CONNECTION = 2
