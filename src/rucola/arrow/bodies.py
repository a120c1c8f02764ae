"""Decompresses the bodies that a client compressed; sysFlag marks them.

Zlib comes with Python, LZ4 and Zstd with PyArrow, so tasks need no further package. Readers import this module only
inside ``read()``, like ``rucola.arrow.rows``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from rucola.arrow.buffers import Mask
from rucola.arrow.rows import Rows
from rucola.common.columns import RecordColumn
from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.compression import BODY_BYTES_MAX, decompress

PIECE_BYTES = 256 << 10
_ARROW_CODECS = {int(MessageSysFlag.COMPRESSION_LZ4): "lz4", int(MessageSysFlag.COMPRESSION_ZSTD): "zstd"}

ADVICE = (
    "failOnDataLoss=false, in Python fail_on_data_loss=False, makes such bodies null; a query with body=stored returns "
    "bodies as they are stored"
)

logger = logging.getLogger(__name__)


def compressed_rows(rows: Rows) -> Mask | None:
    """Marks the rows whose body is compressed; None if there are none."""
    if not rows.facts.sys_flags & int(MessageSysFlag.COMPRESSED):  # most batches have no compressed body
        return None
    flags = rows.numbers(RecordColumn.SYS_FLAG)
    mask: Mask = (flags & int(MessageSysFlag.COMPRESSED)) != 0
    return mask


def decompressed(rows: Rows, mask: Mask, skips_damaged: bool) -> Iterator[tuple[int, bytes | None]]:
    """Decompresses the marked rows; yields the row index and the body of each.

    Args:
        rows: the rows.
        mask: marks the rows whose body is compressed.
        skips_damaged: a body that cannot be decompressed becomes None with a warning in the log, instead of an error.

    Raises:
        FormatError: a body cannot be decompressed; the error names topic, queue and queue offset.
    """
    with memoryview(rows.source) as source:
        for number in np.flatnonzero(mask).tolist():
            row = rows.numbers_of_row(number)
            start = row[RecordColumn.BODY_POS]
            try:
                body = decompress_body(
                    bytes(source[start : start + row[RecordColumn.BODY_LEN]]), row[RecordColumn.SYS_FLAG]
                )
            except FormatError as error:
                topic = bytes(source[row[RecordColumn.TOPIC_POS] :][: row[RecordColumn.TOPIC_LEN]]).decode()
                named = FormatError(
                    f"compressed body of topic {topic}, queue {row[RecordColumn.QUEUE_ID]}, "
                    f"queue offset {row[RecordColumn.QUEUE_OFFSET]}",
                    error.position,
                    f"{error.expected} ({ADVICE})",
                    error.got,
                )
                if not skips_damaged:
                    raise named from error
                logger.warning("%s; the body is null", named)
                body = None
            yield number, body


def decompress_body(body: bytes, sys_flag: int) -> bytes:
    """Decompresses ``body``; ``sys_flag`` names the compression type.

    Raises:
        FormatError: the bytes do not have that type, or the result is larger than ``BODY_BYTES_MAX``.
    """
    codec = _ARROW_CODECS.get(sys_flag & COMPRESSION_MASK)
    if codec is None:
        return decompress(body, sys_flag)
    pieces = []
    size = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(body), codec)
        while piece := stream.read(PIECE_BYTES):
            size += len(piece)
            if size > BODY_BYTES_MAX:
                raise FormatError(codec, len(body), f"at most {BODY_BYTES_MAX} bytes", "more")
            pieces.append(piece)
    except OSError as error:
        raise FormatError(codec, 0, f"{codec} data", str(error)) from error
    if not body:
        raise FormatError(codec, 0, f"{codec} data", "nothing")
    return b"".join(pieces)
