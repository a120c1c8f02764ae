"""Offsets that groups must go on from, whatever their clients ask for. Event loop only.

A reset is pending until the group's next pull, whose response reports it (``PULL_OFFSET_MOVED``). Commits of the group
for that queue are ignored until then, because they count from before the reset. There are two reasons for a reset: an
administrator set the offset, or the topic was deleted. After a deletion, clients may go on at offsets of the old topic,
and would skip as many messages of a new topic with that name; the reset to 0 prevents this.

The members of a broadcasting group each read all queues, so each of them must hear of the reset.

``rucolaOffsetResets.json``, which RocketMQ does not know, keeps pending resets over restarts. A reset that was reported
shortly before a crash may be reported again; its group then reads some messages twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rucola.common.key_builder import topic_at_group
from rucola.errors import FormatError
from rucola.formats.config_json import ENTRY_LINE, dump_entry, dump_value, dumps_table, loads_object
from rucola.runtime.logs import event
from rucola.runtime.table_writer import Keep, Pieces

logger = logging.getLogger(__name__)
FILE_NAME: Final = "rucolaOffsetResets.json"
KEYS_MAX: Final = 65_536
"""Largest number of pairs of topic and group with pending resets. Beyond it, the oldest pair is forgotten: a group that
no longer exists never pulls, so its resets would stay for ever.
"""


@dataclass(slots=True)
class Reset:
    """A pending reset of one queue.

    Attributes:
        consumer_offset: the offset from which the group goes on.
        members: ids of the clients that must still hear of it; None if the next pull of any client suffices.
    """

    consumer_offset: int
    members: set[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        members = {} if self.members is None else {"members": sorted(self.members)}
        return {"offset": self.consumer_offset, **members}

    @classmethod
    def from_dict(cls, members: dict[str, Any]) -> Reset:
        """Reads the JSON form.

        Raises:
            FormatError: a member has the wrong type.
        """
        try:
            ids = members.get("members")
            return cls(int(members["offset"]), None if ids is None else {str(member) for member in ids})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(FILE_NAME, 0, "an object that describes a reset", repr(error)[:64]) from error


class OffsetResets:
    """The pending resets.

    Args:
        keep: creates the writer of ``rucolaOffsetResets.json``.

    Attributes:
        table: the pending resets, by ``topic@group`` and queue id.
    """

    def __init__(self, keep: Keep) -> None:
        self._kept = keep(self._snapshot, self._written)
        self._changed = False
        self.table: dict[str, dict[int, Reset]] = {}

    def load(self, text: bytes | None) -> None:
        """Loads the file.

        Raises:
            FormatError: the text is not a table of resets.
        """
        if text is None:
            return
        try:
            self.table = {
                key: {int(queue_id): Reset.from_dict(members) for queue_id, members in queues.items()}
                for key, queues in (loads_object(text, FILE_NAME).get("table") or {}).items()
            }
        except (TypeError, ValueError, AttributeError) as error:
            raise FormatError(FILE_NAME, 0, "a table of resets", repr(error)[:64]) from error

    def add(self, group: str, topic: str, queue_id: int, reset: Reset) -> None:
        """Adds a reset, which replaces an earlier one of the same group and queue."""
        key = topic_at_group(topic, group)
        self.table.setdefault(key, {})[queue_id] = reset
        self._changed = True
        if len(self.table) > KEYS_MAX:
            oldest = next(iter(self.table))
            del self.table[oldest]
            event(logger, logging.WARNING, "pending resets forgotten, there are too many", key=oldest)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a pending reset; None if there is none."""
        reset = self.table.get(topic_at_group(topic, group), {}).get(queue_id)
        return None if reset is None else reset.consumer_offset

    def take(
        self, group: str, topic: str, queue_id: int, member: Callable[[], str | None] = lambda: None
    ) -> int | None:
        """The offset that the current pull must report; None if there is none. The pull then counts as told.

        Args:
            member: returns the id of the client that pulls, None if it is unknown. A client with an unknown id does not
                hear of resets for members; the reset waits until its id is known.
        """
        key = topic_at_group(topic, group)
        queues = self.table.get(key)
        reset = None if queues is None else queues.get(queue_id)
        if queues is None or reset is None:
            return None
        if reset.members is not None:
            client_id = member()
            if client_id not in reset.members:
                return None
            reset.members.discard(client_id)
        self._changed = True
        if not reset.members:
            del queues[queue_id]
            if not queues:
                del self.table[key]
        return reset.consumer_offset

    def remove_group(self, group: str) -> None:
        """Forgets a deleted group."""
        suffix = topic_at_group("", group)
        for key in [key for key in self.table if key.endswith(suffix)]:
            del self.table[key]
            self._changed = True

    def persist(self) -> asyncio.Future[None] | None:
        """Requests a write of the table if it changed since the last write. Returns a future that is done when the
        table is written, or None if nothing changed.
        """
        if not self._changed:
            return None
        self._changed = False
        return self._kept.changed()

    def _snapshot(self) -> Pieces:
        return reset_pieces(
            [
                (key, {queue_id: reset.to_dict() for queue_id, reset in queues.items()})
                for key, queues in self.table.items()
            ]
        )

    def _written(self, error: Exception | None) -> None:
        self._changed = self._changed or error is not None


def reset_pieces(resets: Iterable[tuple[str, dict[int, dict[str, Any]]]]) -> Iterator[bytes]:
    """``rucolaOffsetResets.json`` piece by piece."""
    return dumps_table({}, "table", (dump_entry(key, dump_value(queues, ENTRY_LINE)) for key, queues in resets))
