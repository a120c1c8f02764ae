"""Compressed message bodies. Only zlib is in every Python; the others are refused with a clear error."""

from __future__ import annotations

import zlib
from typing import Final

from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import FormatError

BODY_BYTES_MAX: Final = 64 << 20
"""Largest body after decompression: a small body must not be able to fill the memory."""


def compress(body: bytes, level: int = 5) -> bytes:
    """``body`` as zlib makes it; goes with the bits COMPRESSED and COMPRESSION_ZLIB of sysFlag."""
    return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body before compression by the type in ``sys_flag``.

    Raises:
        FormatError: the bytes are not of that type, the type is not supported, or the result is larger than
            ``BODY_BYTES_MAX``.
    """
    kind = sys_flag & COMPRESSION_MASK
    if kind not in (0, MessageSysFlag.COMPRESSION_ZLIB):
        name = {0x100: "LZ4", 0x200: "Zstd"}.get(kind, f"type {kind >> 8}")
        raise FormatError("compressed body", 0, "zlib", name)
    unpacker = zlib.decompressobj()
    try:
        result = unpacker.decompress(body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise FormatError("compressed body", 0, "zlib data", str(error)) from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        got = f"more than {BODY_BYTES_MAX} bytes" if unpacker.unconsumed_tail else "an end in mid stream"
        raise FormatError("compressed body", len(body) - len(unpacker.unconsumed_tail), "a whole body", got)
    return result
