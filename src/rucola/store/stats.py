"""Counters of a store since its start. Readers of the counters compute the rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """Number of messages appended, of messages and bytes delivered to consumers, of reads that met a damaged message,
    and of segments of the log removed. ``forced_segments`` counts those of ``expired_segments`` that were removed early
    for lack of space.
    """

    put_messages: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    damaged_messages: int = 0
    multi_dispatch_skipped: int = 0
    """Number of names in ``INNER_MULTI_DISPATCH`` that got no entry: such a name is no light queue, or has no offset
    assigned by the store.
    """
    expired_segments: int = 0
    forced_segments: int = 0
