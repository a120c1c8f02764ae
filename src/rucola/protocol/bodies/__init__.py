"""Typed JSON bodies: one module per group of requests. ``body.Body`` describes how bodies map to JSON."""

from rucola.protocol.bodies.body import Body

__all__ = ["Body"]
