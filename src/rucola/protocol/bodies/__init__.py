"""Typed JSON bodies: one module per family. See ``body.Body`` for how they map to JSON."""

from rucola.protocol.bodies.body import Body

__all__ = ["Body"]
