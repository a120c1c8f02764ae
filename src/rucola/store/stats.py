"""Counters of a store since its start-up. Readers of the counters compute the rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """Counts appended messages, messages and bytes delivered to consumers, reads that met a damaged message, and
    removed segments of the log.

    ``forced_segments`` counts those of ``expired_segments`` that were removed early for lack of space.
    """

    put_messages: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    damaged_messages: int = 0
    multi_dispatch_skipped: int = 0
    """Number of names in ``INNER_MULTI_DISPATCH`` that got no entry, because the name or its offset is invalid, or an
    older record already has the entry at this offset.
    """
    set_aside_messages: int = 0
    """Number of messages that the broker passed over because they can never be processed (``broker.set_aside``)."""
    expired_segments: int = 0
    forced_segments: int = 0
