"""The state of a table that its format cannot hold: archived offsets of all queues, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rucola.arrow.offsets import StreamOffsets
from rucola.errors import ConfigError, FormatError
from rucola.lake.lives import EndedLife, Lives, lives_document, lives_of
from rucola.lake.table_log import Change, Snapshot, TableKind

FORMAT = 1


@dataclass(frozen=True)
class TableState:
    """The state after a commit.

    Attributes:
        kind: what a row is.
        offsets: archived offset, first archived offset and ``Mark`` of each queue.
        parent: id of the state before it; 0 for the first state.
        lives: the ended lives of queues.
    """

    kind: TableKind
    offsets: StreamOffsets
    parent: int = 0
    lives: Lives = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The document."""
        content = {"format": FORMAT, "kind": self.kind, "parent": self.parent, "offsets": self.offsets.to_document()}
        if self.lives:
            content["lives"] = lives_document(self.lives)
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()

    @staticmethod
    def from_json(text: bytes | str, where: str) -> TableState:
        """Reads a document; it is JSON, but may say anything.

        Args:
            text: the document.
            where: the name of its file, for errors.

        Raises:
            ConfigError: a newer version of this package wrote it.
            FormatError: it is no such document.
        """
        try:
            content: Mapping[str, Any] = json.loads(text)
            newer = content["format"] > FORMAT
            state = TableState(
                TableKind(content["kind"]),
                StreamOffsets.from_document(content["offsets"]),
                int(content["parent"]),
                lives_of(content.get("lives", {})),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError("state of a table", 0, "a document of archived offsets", repr(error), where) from error
        if newer:
            raise ConfigError("table", where, f"format {FORMAT} or older; a newer version of Rucola wrote this table")
        return state


def state_after(base: Snapshot, change: Change, parent: int = 0) -> TableState:
    """The state of a table after a commit. The first archived offset of a life never changes."""
    old, new = base.offsets, change.offsets
    lives = dict(base.lives)
    for queue in change.begun:
        ended = EndedLife(old.starts.get(queue, 0), old.offsets[queue], old.marks.get(queue))
        lives[queue] = (*lives.get(queue, ()), ended)
    starts = {queue: at for queue, at in old.starts.items() if queue not in change.begun}
    marks = {queue: mark for queue, mark in old.marks.items() if queue not in new.offsets}
    offsets = StreamOffsets({**old.offsets, **new.offsets}, {**new.starts, **starts}, {**marks, **new.marks})
    return TableState(base.kind, offsets, parent, lives)
