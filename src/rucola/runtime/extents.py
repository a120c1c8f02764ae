"""Which parts of a file have blocks on the disk (Linux, ``FS_IOC_FIEMAP``)."""

from __future__ import annotations

import array
import struct
import sys

_FIEMAP = 0xC020660B
_REQUEST = struct.Struct("=QQIIII")
"""Start, length, flags, extents found, room for extents, reserved; the extents follow."""
_EXTENT = struct.Struct("=QQQQQIIII")
"""Position in the file, position on the disk, length, two reserved fields, flags, three reserved fields."""
_ROOM = 64
_UNKNOWN, _DELAYED = 0x2, 0x4
"""The place on the disk is unknown; it is chosen when the data is written, and the space is reserved."""
_ENCODED, _SHARED = 0x8, 0x2000
"""The data is compressed; other files have the same blocks. Either is written to another place."""


def has_blocks(descriptor: int, position: int, length: int) -> bool:
    """Whether each of ``length`` bytes from ``position`` has a block, so that writing there needs no space.

    Returns False also where the system or the file system does not tell. A file system that writes everything to a new
    place, such as btrfs, needs space all the same.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    end = position + length
    while position < end:
        answer = array.array("B", _REQUEST.pack(position, end - position, 0, 0, _ROOM, 0) + bytes(_ROOM * _EXTENT.size))
        try:
            fcntl.ioctl(descriptor, _FIEMAP, answer)
        except OSError:
            return False
        found = _REQUEST.unpack_from(answer)[3]
        before = position
        for number in range(found):
            start, _, size, _, _, flags, *_ = _EXTENT.unpack_from(answer, _REQUEST.size + number * _EXTENT.size)
            if start > position or flags & (_UNKNOWN | _DELAYED) == _UNKNOWN or flags & (_ENCODED | _SHARED):
                return False
            position = max(position, start + size)
        if position == before:
            return False
    return True
