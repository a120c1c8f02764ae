"""Typed headers: one module per group of requests. ``header.CommandHeader`` describes how headers map to ext fields."""

from rucola.protocol.headers.header import CommandHeader

__all__ = ["CommandHeader"]
