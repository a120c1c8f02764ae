"""What a reader asks of a queue, whatever its kind."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Protocol

from rucola.formats.consume_queue import PullLimits
from rucola.store.log.segment_list import SegmentList
from rucola.store.results import Boundary


class ReadableQueue(Protocol):
    """A queue with entries; ``ConsumeQueue`` describes the members."""

    @property
    def topic(self) -> bytes: ...  # noqa: D102 - see the class

    @property
    def queue_id(self) -> int: ...  # noqa: D102

    @property
    def min_offset(self) -> int: ...  # noqa: D102

    @property
    def max_offset(self) -> int: ...  # noqa: D102

    @property
    def found_offset(self) -> int: ...  # noqa: D102

    @property
    def unit_bytes(self) -> int: ...  # noqa: D102

    @property
    def segments(self) -> SegmentList: ...  # noqa: D102

    def unit(self, queue_offset: int, /) -> tuple[int, int, int]: ...  # noqa: D102

    def entry(self, queue_offset: int, /) -> tuple[int, int, int]: ...  # noqa: D102

    def place_at(self, queue_offset: int, /) -> tuple[int, int]: ...  # noqa: D102

    def leads_to(self, physical_offset: int, size: int, /) -> bool: ...  # noqa: D102

    def messages_in(self, chosen: array[int], count: int, /) -> int: ...  # noqa: D102

    def offset_after(self, path: str, position: int, /) -> int: ...  # noqa: D102

    def select(  # noqa: D102
        self,
        queue_offset: int,
        chosen: array[int],
        tag_codes: array[int],
        max_messages: int,
        max_bytes: int,
        scan_bytes_max: int,
        limits: PullLimits,
        /,
    ) -> tuple[int, int, int] | None: ...

    def offset_by_time(  # noqa: D102
        self, timestamp_ms: int, boundary: Boundary, store_time: Callable[[int], int] | None = None, /
    ) -> int: ...
