"""The four kinds of position that would all be called "offset", told apart by type."""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the whole commit log, from the first byte ever written."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a unit in one consume queue."""

FilePosition = NewType("FilePosition", int)
"""Byte position in one file."""

ConsumerOffset = NewType("ConsumerOffset", int)
"""Progress of a consumer group on one queue: the next queue offset it wants."""
