"""Which master wrote which part of a log. Pure; ``epoch_store`` keeps it on the disk.

Each epoch begins where the log of its master ended when it was elected, and ends where the next one begins. Two logs
are equal up to the end of the newest epoch that both have with the same start; the shorter one decides where that is.

Source: RocketMQ 5.3.3, ``EpochFileCache``. It refuses an epoch that begins where the newest one does, so that two
elections without a message in between keep the older epoch, and a master of that time cannot come back. Here the newer
epoch takes its place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from rucola.common.numbers import INT64_MAX
from rucola.formats.auto_switch import EpochEntry, first_disorder

NO_EPOCH = -1
NO_COMMON_POINT = -1


class EpochList:
    """The epochs of a log. A list never changes; each change returns another one.

    Attributes:
        entries: the epochs, oldest first.

    Args:
        entries: in ascending order; of several that begin at the same offset, the newest counts.

    Raises:
        ValueError: the entries are not in order.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        given = tuple(entries)
        wrong = first_disorder(given)
        if wrong >= 0:
            raise ValueError(f"epoch {given[wrong]} cannot follow {given[:wrong]}")
        self.entries = tuple(
            entry
            for index, entry in enumerate(given)
            if index + 1 == len(given) or given[index + 1].start_offset > entry.start_offset
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochList) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"EpochList({list(self.entries)})"

    @property
    def last(self) -> EpochEntry | None:
        """The newest epoch; None if there is none."""
        return self.entries[-1] if self.entries else None

    @property
    def last_epoch(self) -> int:
        """Number of the newest epoch; ``NO_EPOCH`` if there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def append(self, epoch: int, start_offset: int) -> EpochList:
        """Returns the list with a new epoch. One that begins at the same offset had no bytes, and goes.

        Raises:
            ValueError: the number is not larger than that of the newest epoch, or the epoch would begin before it.
        """
        return EpochList((*self.entries, EpochEntry(epoch, start_offset)))

    def elected(self, epoch: int, max_offset: int) -> EpochList:
        """Returns the list of a master that is elected in ``epoch`` while its log ends at ``max_offset``. What the list
        says of this epoch, of later ones, and of bytes that the log does not have, goes.
        """
        kept = [entry for entry in self.entries if entry.epoch < epoch and entry.start_offset <= max_offset]
        return EpochList(kept).append(epoch, max_offset)

    def end_of(self, epoch: int) -> int:
        """Returns the physical offset at which ``epoch`` ends; ``INT64_MAX`` for the newest one.

        Raises:
            KeyError: the list does not have this epoch.
        """
        index = bisect_left(self.entries, epoch, key=lambda entry: entry.epoch)
        if index == len(self.entries) or self.entries[index].epoch != epoch:
            raise KeyError(epoch)
        return self._end(index, INT64_MAX)

    def at(self, physical_offset: int) -> EpochEntry | None:
        """Returns the epoch of the byte at ``physical_offset``; None if the list begins behind it."""
        index = bisect_right(self.entries, physical_offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index] if index >= 0 else None

    def common_point(self, other: EpochList, own_end: int, other_end: int) -> int:
        """Returns the physical offset up to which two logs are equal; ``NO_COMMON_POINT`` if no epoch is common.

        Args:
            other: the epochs of the other log.
            own_end, other_end: physical offsets of the ends of the two logs.
        """
        theirs = {entry: other._end(index, other_end) for index, entry in enumerate(other.entries)}
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            if entry in theirs and entry.start_offset <= min(own_end, other_end):
                return min(self._end(index, own_end), theirs[entry])
        return NO_COMMON_POINT

    def cut(self, physical_offset: int) -> EpochList:
        """Returns the list without the epochs that begin at ``physical_offset`` or behind it."""
        return EpochList(entry for entry in self.entries if entry.start_offset < physical_offset)

    def learned(self, other: EpochList, common_point: int) -> EpochList:
        """Returns the list of a log that has the same bytes as another one up to ``common_point``, whose epochs the
        other one knows better. Epochs that have expired there stay.
        """
        theirs = other.cut(common_point).entries
        if not theirs:
            return self.cut(common_point)
        ours = (entry for entry in self.entries if entry < theirs[0] and entry.start_offset < theirs[0].start_offset)
        return EpochList((*ours, *theirs))

    def expire(self, min_offset: int) -> EpochList:
        """Returns the list without the epochs that end before ``min_offset``, where the log begins."""
        return EpochList(
            entry for index, entry in enumerate(self.entries) if self._end(index, INT64_MAX) > min_offset - 1
        )

    def _end(self, index: int, log_end: int) -> int:
        following = self.entries[index + 1].start_offset if index + 1 < len(self.entries) else log_end
        return min(following, log_end)
