"""The binary header (serialize type 1, ``RocketMQSerializable`` of RocketMQ 5.3.3).

======  =======  ==========================================================
bytes   field    meaning
======  =======  ==========================================================
2       code     signed
1       language ``LanguageCode``
2       version  signed
4       opaque   signed
4       flag     bit 0 response, bit 1 oneway
4 + n   remark   length and UTF-8 text; length 0: no remark
4 + n   ext      length of the block, then per field int16 key length, key,
                 int32 value length, value; length 0: no value
======  =======  ==========================================================

All numbers are big-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from rucola.errors import FormatError

FIXED = Struct(">hBhii")
assert FIXED.size == 13

EXT_FIELDS_MAX = 128

_LENGTH = Struct(">i")
_KEY_LENGTH = Struct(">h")


class BinaryHeader(NamedTuple):
    """A decoded binary header."""

    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext_fields: dict[str, str]


def encode(header: BinaryHeader) -> bytes:
    """Encodes ``header``. Ext fields keep their order; fields with an empty value are left out, because an empty value
    means null.

    Raises:
        FormatError: ``code`` or ``version`` does not fit into 16 bits, or a key is too long.
    """
    for name, number in (("code", header.code), ("version", header.version)):
        if not -32768 <= number <= 32767:
            raise FormatError(f"binary header, {name}", 0, "a 16-bit number", str(number))
    remark = (header.remark or "").encode()
    ext = bytearray()
    for key_text, value_text in header.ext_fields.items():
        if not value_text:
            continue
        key, value = key_text.encode(), value_text.encode()
        if len(key) > 32767:
            raise FormatError("binary header, ext key", 0, "at most 32767 bytes", str(len(key)))
        ext += _KEY_LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value
    fixed = FIXED.pack(header.code, header.language, header.version, header.opaque, header.flag)
    return b"".join((fixed, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(ext)), bytes(ext)))


def decode(source: bytes) -> BinaryHeader:
    """Decodes all of ``source``.

    Raises:
        FormatError: a length is negative or exceeds the rest of its block, a key is empty or occurs twice, text is not
            UTF-8, there are more than 128 fields, or bytes follow the header.
    """
    if len(source) < FIXED.size:
        raise FormatError("binary header", 0, f"at least {FIXED.size} bytes", str(len(source)))
    code, language, version, opaque, flag = FIXED.unpack_from(source)
    remark, position = _text(source, FIXED.size, len(source), "remark")
    ext_length, position = _length(source, position, len(source), "ext fields")
    end = position + ext_length
    ext_fields: dict[str, str] = {}
    keys: set[str] = set()
    while position < end:
        key, position = _key(source, position, end)
        value, position = _text(source, position, end, f"ext field {key}")
        if key in keys or len(keys) == EXT_FIELDS_MAX:
            raise FormatError("binary header", position, f"at most {EXT_FIELDS_MAX} ext fields, each once", repr(key))
        keys.add(key)
        if value:
            ext_fields[key] = value
    if end != len(source):
        raise FormatError("binary header", end, "the end of the header", f"{len(source) - end} more bytes")
    return BinaryHeader(code, language, version, opaque, flag, remark or None, ext_fields)


def _key(source: bytes, position: int, end: int) -> tuple[str, int]:
    if end - position < 2:
        raise FormatError("binary header, ext key", position, "a length field of 2 bytes", f"{end - position} bytes")
    length = _KEY_LENGTH.unpack_from(source, position)[0]
    position += 2
    if not 1 <= length <= end - position:
        raise FormatError("binary header, ext key", position - 2, f"a length of 1 to {end - position}", str(length))
    return _decode(source, position, length, "ext key"), position + length


def _text(source: bytes, position: int, end: int, what: str) -> tuple[str, int]:
    length, position = _length(source, position, end, what)
    return _decode(source, position, length, what), position + length


def _length(source: bytes, position: int, end: int, what: str) -> tuple[int, int]:
    if end - position < 4:
        raise FormatError(f"binary header, {what}", position, "a length field of 4 bytes", f"{end - position} bytes")
    length: int = _LENGTH.unpack_from(source, position)[0]
    position += 4
    if not 0 <= length <= end - position:
        raise FormatError(f"binary header, {what}", position - 4, f"a length of 0 to {end - position}", str(length))
    return length, position


def _decode(source: bytes, position: int, length: int, what: str) -> str:
    try:
        return str(source[position : position + length], "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"binary header, {what}", position + error.start, "UTF-8", error.reason) from error
