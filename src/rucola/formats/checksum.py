"""CRC-32 for files and frames; uses the fastest implementation that is installed."""

from __future__ import annotations

from collections.abc import Callable

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # isal has no wheel for this platform
    from zlib import crc32 as _crc32

crc32: Callable[[bytes | bytearray | memoryview], int] = _crc32
"""CRC-32 (zlib's polynomial) of bytes, 0 to 2**32 - 1."""

CHECKSUM_MASK = 0x7FFFFFFF
"""RocketMQ stores checksums without their top bit, so that they fit a Java ``int``."""
