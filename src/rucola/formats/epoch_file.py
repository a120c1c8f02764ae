"""The file ``epochFileCheckpoint``: which master wrote the log from which offset on.

It is text. The first line has the number of entries. The second line has a checksum: the CRC-32 of all entries with
their line ends, without its highest bit; 0 if the file has none. Then each epoch has one line, ``EPOCH-START``, oldest
first. Each line, also the last one, has an end.

Source: RocketMQ 5.3.3, ``EpochFileCache``, ``CheckpointFile``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rucola.common.numbers import INT32_MAX, INT64_MAX
from rucola.errors import FormatError
from rucola.formats.auto_switch import EpochEntry, first_disorder
from rucola.formats.checksum import crc32

_WHAT: Final = "epoch file"
_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")


def encode_epoch_file(entries: Sequence[EpochEntry]) -> bytes:
    """Returns the content of the file.

    Args:
        entries: oldest first; at least one, because RocketMQ keeps the old file instead of writing an empty one.
    """
    assert entries
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries).encode()
    return f"{len(entries)}\n{crc32(lines) & INT32_MAX}\n".encode() + lines


def decode_epoch_file(content: bytes, source: str = "") -> tuple[EpochEntry, ...]:
    """Decodes the file; lines behind the entries are ignored.

    Args:
        source: path of the file, for errors.

    Raises:
        FormatError: the number of entries, the checksum or an entry is wrong, or there is no entry.
    """
    lines = content.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or not _NUMBER.fullmatch(lines[0]) or not _NUMBER.fullmatch(lines[1]):
        raise FormatError(_WHAT, 0, "number of entries and checksum", _shown(lines[:2]), source)
    count, checksum = int(lines[0]), int(lines[1])
    found = lines[2 : 2 + count]
    if not found or len(found) < count:
        raise FormatError(_WHAT, 0, f"{count or 'some'} entries", f"{len(found)}", source)
    entries = []
    for number, line in enumerate(found):
        match = _ENTRY.fullmatch(line)
        entry = EpochEntry(int(match[1]), int(match[2])) if match else EpochEntry(INT32_MAX + 1, 0)
        if entry.epoch > INT32_MAX or entry.start_offset > INT64_MAX:
            raise FormatError(_WHAT, 2 + number, "epoch and start, joined by a hyphen", _shown([line]), source)
        entries.append(entry)
    expected = crc32("".join(f"{line}\n" for line in found).encode()) & INT32_MAX
    if checksum not in (0, expected):
        raise FormatError(_WHAT, 1, f"checksum {expected}", str(checksum), source)
    wrong = first_disorder(entries)
    if wrong >= 0:
        raise FormatError(_WHAT, 2 + wrong, "an epoch after the one before it", found[wrong], source)
    return tuple(entries)


def _shown(lines: Sequence[str]) -> str:
    return repr(" ".join(lines)[:40])
