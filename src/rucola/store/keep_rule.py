"""What a copy of a master's log keeps, instead of the age of files and the hour that a broker goes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.runtime.files import Files
from rucola.store.log.log_reader import HEAD_BYTES, stored_ms
from rucola.store.log.mapped_file import MappedFile


class KeepRule(NamedTuple):
    """How much of the log is kept. The newest segment always is.

    A segment is as old as its newest record, by the store time that the master gave it: a file of a copy is only as old
    as the copy. The first record of the next segment stands for the newest one of a segment.

    Attributes:
        age_ms: segments whose records are all older than this expire; 0 for no limit.
        size_bytes: the oldest segments expire while all segments together are longer than this; 0 for no limit.
    """

    age_ms: int = 0
    size_bytes: int = 0

    def is_expired(self, age_ms: int, length: int, is_clock_trusted: bool) -> bool:
        """Whether the oldest segment expires.

        Args:
            age_ms: its age; -1 if that is unknown.
            length: length of the log in bytes from its start on, with all of the newest segment.
            is_clock_trusted: whether the wall clock has not just jumped.
        """
        is_old = 0 < self.age_ms <= age_ms and is_clock_trusted
        return is_old or 0 < self.size_bytes < length


def ages_by_records(files: Files, segments: Sequence[MappedFile], wall_ms: int) -> list[int]:
    """Returns the age of each segment except the last, in ms; -1 where no later segment has a record that tells it.

    Args:
        wall_ms: the time now, in ms since the epoch.

    Raises:
        DiskError: a segment cannot be read.
    """
    ages, age_ms = [], -1
    for file in reversed(segments[1:]):
        head = files.read_at(file.path, 0, HEAD_BYTES)
        size, magic = BLANK.unpack(head[: BLANK.size])
        if size > 0 and magic != MAGIC_BLANK:
            age_ms = max(wall_ms - stored_ms(head), 0)
        ages.append(age_ms)
    return ages[::-1]
