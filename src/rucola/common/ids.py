"""Integer types for two kinds of position, both of which would be called "offset". A type checker keeps them apart."""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log, counted from the first byte ever written."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a unit in one consume queue."""
