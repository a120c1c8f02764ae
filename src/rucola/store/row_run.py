"""Messages on their way into the log, as rows of a frame table."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class RowRun(NamedTuple):
    """Consecutive rows of a frame table, all with one topic.

    Attributes:
        source: the bytes to which the rows refer; ``view`` is a memoryview of them.
        table: the table.
        first, last: the rows; ``last`` is excluded.
    """

    source: bytearray
    view: memoryview
    table: array[int]
    first: int
    last: int


class AppendOptions(NamedTuple):
    """How the rows of a run become records.

    Attributes:
        suffix: property text added to each message; ``MessageStore.property_suffix`` when None.
        together: whether the rows are the members of a batch, so that either all of them are stored, in the same
            segment, or none is.
        store_host: address of the broker that first stored the messages, 8 or 20 bytes; None means this broker.
    """

    suffix: bytes | None = None
    together: bool = False
    store_host: bytes | None = None


PLAIN = AppendOptions()
AS_THEY_ARE = AppendOptions(suffix=b"")
"""Nothing is added to the messages."""
