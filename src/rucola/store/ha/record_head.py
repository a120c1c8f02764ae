"""Judges a record by its first bytes, before the rest has arrived.

The end of a slave's log waits for whole records. A damaged size would make it wait for up to a segment, so the head is
checked as it arrives: size, magic number, physical offset, and the length of the body, which must agree with the size.
"""

from __future__ import annotations

from struct import Struct

from rucola.common.sysflag import MessageSysFlag
from rucola.formats.message import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    RECORD_HEAD,
    RECORD_MIDDLE,
)

_BORN_HOST_V6, _STORE_HOST_V6 = int(MessageSysFlag.BORN_HOST_V6), int(MessageSysFlag.STORE_HOST_V6)
_I32, _I64 = Struct(">i"), Struct(">q")
_PHYSICAL_OFFSET_AT = RECORD_HEAD.position("physical_offset")
_SYS_FLAG_AT = RECORD_HEAD.position("sys_flag")
_BODY_LENGTH_AT = RECORD_HEAD.size + 8 + RECORD_MIDDLE.position("body_length")
"""Position of the length of the body, without the two hosts."""
_BEHIND_BODY_MAX = 2 + 32_767 + 2 + 32_767
"""Largest number of bytes after the body: the topic and the properties, each with its length."""
HEAD_BYTES = _BODY_LENGTH_AT + 2 * 20 + _I32.size
"""Number of bytes that ``head_problem`` looks at."""

PROVING_BYTES = _SYS_FLAG_AT
"""Number of bytes in which a record states its size, its magic number and its physical offset."""


def head_problem(head: memoryview, physical_offset: int, space: int) -> str:
    """Returns what is wrong with the first bytes of a record; empty if nothing is, as far as they tell.

    Args:
        head: the bytes of the record that are there.
        physical_offset: where the record begins.
        space: number of bytes from there to the end of the segment.
    """
    if space < BLANK.size:
        return f"no record fits into the last {space} bytes of the segment"
    if len(head) < BLANK.size:
        return ""
    size, magic = BLANK.unpack(head)
    if magic == MAGIC_BLANK:
        end = physical_offset + size
        return "" if size == space else f"the segment ends at {end} there, and at {physical_offset + space} here"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"{magic & 0xFFFFFFFF:#010x} is the magic number of no record"
    if not RECORD_BYTES_MIN <= size <= space:
        return f"a record of {size} bytes, where {space} bytes are left in the segment"
    if len(head) >= _SYS_FLAG_AT:
        (stated,) = _I64.unpack_from(head, _PHYSICAL_OFFSET_AT)
        if stated != physical_offset:
            return f"the record states the physical offset {stated}"
    return _body_problem(head, size)


def _body_problem(head: memoryview, size: int) -> str:
    """Returns whether the length of the body contradicts the size of the record; empty if not."""
    if len(head) < _SYS_FLAG_AT + _I32.size:
        return ""
    (sys_flag,) = _I32.unpack_from(head, _SYS_FLAG_AT)
    hosts = 20 if sys_flag & _BORN_HOST_V6 else 8
    hosts += 20 if sys_flag & _STORE_HOST_V6 else 8
    at = _BODY_LENGTH_AT + hosts
    if len(head) < at + _I32.size:
        return ""
    (body,) = _I32.unpack_from(head, at)
    behind = size - (at + _I32.size) - body
    if body < 0 or not 0 < behind <= _BEHIND_BODY_MAX:
        return f"a record of {size} bytes with a body of {body} bytes"
    return ""
