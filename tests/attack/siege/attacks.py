"""All attacks by name."""

from __future__ import annotations

from tests.attack.siege import administration, connections, consumers, grpc, names, producers
from tests.attack.siege.peer import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack", "administration", "connections", "consumers", "grpc", "names", "producers"]
