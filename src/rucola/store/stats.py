"""Counters of a store since its start; rates are the reader's to make."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """Messages appended, messages and bytes handed to consumers, reads that met a damaged message, and segments of the
    log removed; ``forced_segments`` of the ``expired_segments`` went before their time, for want of space.
    """

    put_messages: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    damaged_messages: int = 0
    multi_dispatch_skipped: int = 0
    """Names in ``INNER_MULTI_DISPATCH`` without an entry: no light queue's, or without an offset of the store's."""
    expired_segments: int = 0
    forced_segments: int = 0
