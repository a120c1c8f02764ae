"""Reads and writes numbers and spans in buffers, for interpreted kernels; ``kernel_bytes.pxd`` is the compiled form.

No function here checks positions, because a kernel checks every span against its buffer before it reads or writes.
Numbers are big-endian, as in RocketMQ's files.
"""

from __future__ import annotations

from typing import Any

INT32_MAX = 2**31 - 1


def low32(value: int) -> int:
    """Returns the low 32 bits of ``value`` as an unsigned number."""
    return value & 0xFFFFFFFF


def signed32(value: int) -> int:
    """Returns the low 32 bits of ``value`` as a signed number."""
    return ((value + 2**31) & 0xFFFFFFFF) - 2**31


def int16(data: Any, at: int) -> int:
    """Returns the signed number in the two bytes from ``at`` on."""
    value: int = (data[at] << 8) | data[at + 1]
    return value - ((value & 0x8000) << 1)


def uint32(data: Any, at: int) -> int:
    """Returns the unsigned number in the four bytes from ``at`` on."""
    value: int = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
    return value


def int32(data: Any, at: int) -> int:
    """Returns the signed number in the four bytes from ``at`` on."""
    value = uint32(data, at)
    return value - ((value & 0x80000000) << 1)


def int64(data: Any, at: int) -> int:
    """Returns the signed number in the eight bytes from ``at`` on."""
    return (int32(data, at) << 32) | uint32(data, at + 4)


def put32(data: Any, at: int, value: int) -> None:
    """Writes the low 32 bits of ``value``."""
    data[at] = (value >> 24) & 255
    data[at + 1] = (value >> 16) & 255
    data[at + 2] = (value >> 8) & 255
    data[at + 3] = value & 255


def put64(data: Any, at: int, value: int) -> None:
    """Writes the low 64 bits of ``value``."""
    put32(data, at, value >> 32)
    put32(data, at + 4, value)


def copy(target: Any, at: int, data: Any, start: int, size: int) -> None:
    """Copies ``data[start : start + size]`` to ``target``, position ``at``; copies nothing if ``size`` is negative."""
    if size > 0:
        target[at : at + size] = data[start : start + size]


def find(data: Any, byte: int, start: int, end: int) -> int:
    """Returns the position of the first ``byte`` in ``data[start:end]``, or ``end``."""
    place = bytes(data[start:end]).find(byte) if start < end else -1
    return end if place < 0 else start + place


def same(one: Any, at: int, two: Any, there: int, size: int) -> bool:
    """Whether ``one[at : at + size]`` equals ``two[there : there + size]``; true if ``size`` is negative."""
    return size <= 0 or bytes(one[at : at + size]) == bytes(two[there : there + size])


def starts(data: Any, at: int, name: bytes) -> bool:
    """Whether ``name`` is at position ``at``."""
    return bytes(data[at : at + len(name)]) == name


def marks_agree(data: Any, at: int, there: int, size: int, mark: int) -> bool:
    """Whether the byte ``mark`` has the same places in ``data[at : at + size]`` and ``data[there : there + size]``."""
    one, two = (bytes(data[start : start + size]).split(bytes((mark,))) for start in (at, there))
    return [len(part) for part in one] == [len(part) for part in two]
