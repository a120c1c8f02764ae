"""The four kinds of "offset", each with a type of its own."""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log, counted from the first byte ever written."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a unit in one consume queue."""

FilePosition = NewType("FilePosition", int)
"""Byte position in one file."""

ConsumerOffset = NewType("ConsumerOffset", int)
"""Progress of a consumer group on one queue: the queue offset of the next message to consume."""
