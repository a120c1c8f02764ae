"""Version of a configuration table. A new version tells brokers and name servers that the table has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rucola.common.java import read_int64


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's ``DataVersion``.

    Args:
        state_version: epoch of the controller, 0 without one.
        timestamp_ms: time of the last change.
        counter: number of changes.
    """

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def next(self, timestamp_ms: int, state_version: int = 0) -> DataVersion:
        """Returns the version after one more change."""
        return DataVersion(state_version, timestamp_ms, self.counter + 1)

    @property
    def age(self) -> tuple[int, int, int]:
        """What versions of one table are compared by: the newer one has the larger value."""
        return self.state_version, self.counter, self.timestamp_ms

    def to_dict(self) -> dict[str, Any]:
        """Returns the members of RocketMQ's JSON, sorted by name."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DataVersion:
        """Decodes RocketMQ's JSON; absent fields (``stateVersion`` in 4.9) count as 0."""
        return cls(
            read_int64(data.get("stateVersion", 0)),
            read_int64(data.get("timestamp", 0)),
            read_int64(data.get("counter", 0)),
        )
