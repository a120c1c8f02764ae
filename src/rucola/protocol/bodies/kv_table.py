"""Responses to 28 (GET_BROKER_RUNTIME_INFO), 103 (REGISTER_BROKER) and 219 (GET_KVLIST_BY_NAMESPACE)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body


@late_dataclass
class KVTable(Body):
    """Strings by name."""

    table: dict[str, str] = field(default_factory=dict)
