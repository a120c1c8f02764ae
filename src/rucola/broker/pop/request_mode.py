"""Whether a group pulls or pops a topic (RocketMQ 5.3.3, ``MessageRequestModeManager``). Event loop only."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from rucola.errors import FormatError
from rucola.formats.config_json import dumps_pretty, loads_object
from rucola.runtime.table_writer import Keep, Pieces

PULL = "PULL"
POP = "POP"
_FILE = "messageRequestMode.json"


class RequestMode(NamedTuple):
    """``share``: a POP consumer gets its own queues and those of the next ``share`` clients. If ``share`` is below 1,
    it gets all queues.
    """

    mode: str
    share: int = 0


class RequestModeManager:
    """Maps topic and group to :class:`RequestMode`, if a mode was set.

    Args:
        keep: creates the writer of ``messageRequestMode.json``.
    """

    def __init__(self, keep: Keep) -> None:
        self._kept = keep(self._snapshot, lambda _error: None)
        self.table: dict[str, dict[str, RequestMode]] = {}

    def load(self, text: bytes | None) -> None:
        """Loads the file.

        Raises:
            FormatError: the text is not a table of modes.
        """
        if text is None:
            return
        try:
            for topic, groups in (loads_object(text, _FILE).get("messageRequestModeMap") or {}).items():
                self.table[topic] = {
                    group: RequestMode(str(entry["mode"]), int(entry.get("popShareQueueNum", 0)))
                    for group, entry in groups.items()
                }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(_FILE, 0, "a mode for each group", repr(error)[:64]) from error

    def follow(self, text: bytes) -> None:
        """Replaces the whole table by a master's.

        Raises:
            FormatError: the text is not a table of modes; nothing was changed.
        """
        ours, self.table = self.table, {}
        try:
            self.load(text)
        except FormatError:
            self.table = ours
            raise
        if self.table != ours:
            self._kept.changed()

    def get(self, topic: str, group: str) -> RequestMode | None:
        """The mode; None if none was set."""
        return self.table.get(topic, {}).get(group)

    def set(self, topic: str, group: str, mode: RequestMode) -> asyncio.Future[None]:
        """Sets the mode, which applies at once. The future completes when the mode is synced; it fails with
        ``DiskError`` if the file cannot be written.
        """
        self.table.setdefault(topic, {})[group] = mode
        return self._kept.changed()

    def _snapshot(self) -> Pieces:
        return map(dumps_pretty, [self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """The table in the form that the file and the response to request 402 have."""
        modes = {
            of_topic: {
                of_group: {
                    "consumerGroup": of_group,
                    "mode": entry.mode,
                    "popShareQueueNum": entry.share,
                    "topic": of_topic,
                }
                for of_group, entry in groups.items()
            }
            for of_topic, groups in self.table.items()
        }
        return {"messageRequestModeMap": modes}
