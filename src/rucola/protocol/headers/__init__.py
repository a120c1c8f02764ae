"""Typed headers: one module per family of requests. See ``header.CommandHeader`` for how they map to ext fields."""

from rucola.protocol.headers.header import CommandHeader

__all__ = ["CommandHeader"]
