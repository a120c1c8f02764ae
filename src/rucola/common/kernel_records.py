"""Code shared by the kernels for messages and records. Interpreted kernels use this file, compiled kernels use the
``.pxd`` file.
"""

from __future__ import annotations

from array import array

from rucola.common import columns
from rucola.common.columns import FrameColumn
from rucola.common.sysflag import TRANSACTION_MASK as _TRANSACTION_MASK
from rucola.common.sysflag import MessageSysFlag

RECORD_FIXED_BYTES = 74
"""Size of a record in bytes, not counting hosts, topic length, topic, body and properties."""
BLANK_BYTES = 8
"""Number of bytes written for a blank record. Its size field also counts the unwritten rest of the segment."""
TOPIC_BYTES_V1_MAX = 127
"""Greatest length in bytes of a topic whose length field is one byte."""
PROPERTIES_BYTES_MAX = 32767
SUFFIX_BYTES_MAX = 1000
"""``inspect_rows`` requires this much room, in bytes, for the properties that ``encode_rows`` appends."""
CRC_PROPERTY_BYTES = 20
"""Size in bytes of the record CRC property: ``__CRC32#``, 0x01, ten digits and 0x02."""
BATCH_MEMBER_FIXED_BYTES = 22
"""Size in bytes of a message in a batch, not counting body and properties."""
TRANSACTION_MASK = int(_TRANSACTION_MASK)
TRANSACTION_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED)
TRANSACTION_ROLLBACK = int(MessageSysFlag.TRANSACTION_ROLLBACK)

_BODY_POS, _BODY_LEN = int(FrameColumn.BODY_POS), int(FrameColumn.BODY_LEN)
_PROPERTIES_POS, _PROPERTIES_LEN = int(FrameColumn.PROPERTIES_POS), int(FrameColumn.PROPERTIES_LEN)


def check_spans(source: bytes | bytearray, table: array[int], row: int) -> int:
    """Checks that the body and the properties of a frame lie inside ``source``. In ``table``, the frame's columns begin
    at index ``row``.

    Raises:
        ValueError: the body or the properties lie outside ``source``.
    """
    size = len(source)
    body_len, properties_len = table[row + _BODY_LEN], table[row + _PROPERTIES_LEN]
    if body_len > 0 and not (body_len <= size and 0 <= table[row + _BODY_POS] <= size - body_len):
        raise ValueError(f"row {row // columns.ROW_WIDTH}: its body lies outside the buffer")
    if properties_len > 0 and not (
        properties_len <= size and 0 <= table[row + _PROPERTIES_POS] <= size - properties_len
    ):
        raise ValueError(f"row {row // columns.ROW_WIDTH}: its properties lie outside the buffer")
    return 0
