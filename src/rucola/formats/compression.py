"""Compressed message bodies: zlib is part of Python; LZ4 and Zstd need the extra ``compression``.

LZ4 and Zstd bodies are complete frames of these formats. The package for each is imported when first needed.
"""

from __future__ import annotations

import zlib
from enum import Enum
from importlib import import_module
from typing import Any, Final

from rucola.common.sysflag import COMPRESSION_MASK, MessageSysFlag
from rucola.errors import ConfigError, FormatError, install_advice

BODY_BYTES_MAX: Final = 64 << 20
"""Largest size in bytes of a decompressed body. Without a limit, a small compressed body could fill the memory."""
_PIECE_BYTES = 1 << 20
_LZ4_HEAD = bytes.fromhex("04224d18")
_ZSTD_HEAD = bytes.fromhex("28b52ffd")


class CompressionType(Enum):
    """Compression of a body, by RocketMQ's names. RocketMQ's Java client reads LZ4 and ZSTD since 5.0."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


_SYS_FLAGS = {
    CompressionType.ZLIB: int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB),
    CompressionType.LZ4: int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4),
    CompressionType.ZSTD: int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD),
}
_ADVICE = install_advice("compression")
_PACKAGES = {CompressionType.LZ4: "lz4.frame", CompressionType.ZSTD: "zstandard"}
_TYPES = {
    0: CompressionType.ZLIB,
    int(MessageSysFlag.COMPRESSION_ZLIB): CompressionType.ZLIB,
    int(MessageSysFlag.COMPRESSION_LZ4): CompressionType.LZ4,
    int(MessageSysFlag.COMPRESSION_ZSTD): CompressionType.ZSTD,
}


def check_compression(kind: CompressionType) -> None:
    """Raises ``ConfigError`` when the package for ``kind`` is not installed."""
    if kind in _PACKAGES and _package(kind) is None:
        raise ConfigError("compressType", kind.value, f"ZLIB, or {kind.value} after {_ADVICE}", "compress_type")


def compress(body: bytes, level: int = 5, kind: CompressionType = CompressionType.ZLIB) -> tuple[bytes, int]:
    """Returns the compressed ``body`` and the sysFlag bits for the compression type. LZ4 ignores ``level``, as in
    RocketMQ.
    """
    if kind is CompressionType.ZLIB:
        packed = zlib.compress(body, level)
    elif kind is CompressionType.LZ4:
        packed = _package(kind).compress(body, block_linked=False)  # RocketMQ's Java client cannot read linked blocks
    else:
        packed = _package(kind).ZstdCompressor(level=level).compress(body)
    return packed, _SYS_FLAGS[kind]


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Returns the decompressed body; ``sys_flag`` holds the compression type.

    Raises:
        FormatError: the bytes are not of that type, the type is unknown, its package is not installed, or the result is
            larger than ``BODY_BYTES_MAX``.
    """
    bits = sys_flag & COMPRESSION_MASK
    kind = _TYPES.get(bits)
    if kind is None:
        raise FormatError("compressed body", 0, "zlib, LZ4 or Zstd", f"type {bits >> 8}")
    if kind is CompressionType.ZLIB:
        return _inflate(body)
    package = _package(kind)
    if package is None:
        raise FormatError("compressed body", 0, f"zlib (others after {_ADVICE})", kind.value)
    return _unpack_lz4(package, body) if kind is CompressionType.LZ4 else _unpack_zstd(package, body)


def is_compressed(body: bytes | memoryview, sys_flag: int) -> bool:
    """Whether ``sys_flag`` names a compression type, and the body begins with the header of this type."""
    kind = _TYPES.get(sys_flag & COMPRESSION_MASK) if sys_flag & MessageSysFlag.COMPRESSED else None
    head = bytes(body[:4])
    if kind is CompressionType.ZLIB:
        return len(head) > 1 and head[0] & 0xF == zlib.DEFLATED and not int.from_bytes(head[:2], "big") % 31  # RFC 1950
    return kind is not None and head == (_LZ4_HEAD if kind is CompressionType.LZ4 else _ZSTD_HEAD)


def _inflate(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        result = unpacker.decompress(body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise FormatError("compressed body", 0, "zlib data", str(error)) from error
    if unpacker.unconsumed_tail:
        raise _too_large(len(body) - len(unpacker.unconsumed_tail))
    if not unpacker.eof:
        raise _torn(body)
    return result


def _unpack_lz4(package: Any, body: bytes) -> bytes:
    unpacker = package.LZ4FrameDecompressor()
    try:
        result: bytes = unpacker.decompress(body, BODY_BYTES_MAX)
        if not unpacker.eof and not unpacker.needs_input and unpacker.decompress(b"", 1):
            raise _too_large(len(body))
    except (RuntimeError, EOFError) as error:
        raise FormatError("compressed body", 0, "LZ4 data", str(error)) from error
    if not unpacker.eof:
        raise _torn(body)
    return result


def _unpack_zstd(package: Any, body: bytes) -> bytes:
    """Decompresses in pieces, so that it can stop at the limit; the frame need not state its content size."""
    pieces: list[bytes] = []
    size = 0
    try:
        frame = package.get_frame_parameters(body)
        if frame.content_size != package.CONTENTSIZE_UNKNOWN and frame.content_size > BODY_BYTES_MAX:
            raise _too_large(0)
        if not _is_whole_zstd(body, package.frame_header_size(body), 4 if frame.has_checksum else 0):
            raise _torn(body)
        reader = package.ZstdDecompressor(max_window_size=BODY_BYTES_MAX).stream_reader(body)
        while piece := reader.read(_PIECE_BYTES):
            size += len(piece)
            if size > BODY_BYTES_MAX:
                raise _too_large(len(body))
            pieces.append(piece)
    except package.ZstdError as error:
        raise FormatError("compressed body", 0, "Zstd data", str(error)) from error
    return b"".join(pieces)


def _is_whole_zstd(body: bytes, position: int, checksum_bytes: int) -> bool:
    """Whether the frame is complete, that is, contains its last block. The package's reader reports no error if the
    frame ends early.

    Args:
        body: bytes of the frame.
        position: position of the first block.
        checksum_bytes: length of the checksum after the last block.
    """
    last = False
    while not last:
        if position + 3 > len(body):
            return False
        head = int.from_bytes(body[position : position + 3], "little")
        last, is_rle = bool(head & 1), head >> 1 & 3 == 1
        position += 3 + (1 if is_rle else head >> 3)
    return position + checksum_bytes <= len(body)


def _too_large(position: int) -> FormatError:
    return FormatError("compressed body", position, "a whole body", f"more than {BODY_BYTES_MAX} bytes")


def _torn(body: bytes) -> FormatError:
    return FormatError("compressed body", len(body), "a whole body", "a truncated one")


def _package(kind: CompressionType) -> Any:
    """Returns the package for ``kind``; None if it is not installed."""
    try:
        return import_module(_PACKAGES[kind])
    except ImportError:
        return None
