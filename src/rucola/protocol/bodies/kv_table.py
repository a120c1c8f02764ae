"""Responses to 28, 103 and 219."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class KVTable(Body):
    """Strings by name."""

    table: dict[str, str] = field(default_factory=dict)
