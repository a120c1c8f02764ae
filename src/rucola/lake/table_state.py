"""The state of a table that its format cannot hold: archived offsets of all queues, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rucola.arrow.offsets import StreamOffsets
from rucola.errors import ConfigError, FormatError
from rucola.lake.table_log import TableKind

FORMAT = 1


@dataclass(frozen=True)
class TableState:
    """The state after a commit.

    Attributes:
        kind: what a row is.
        offsets: archived offset, first archived offset and ``Mark`` of each queue.
        parent: id of the state before it; 0 for the first state.
    """

    kind: TableKind
    offsets: StreamOffsets
    parent: int = 0

    def to_json(self) -> bytes:
        """The document."""
        content = {"format": FORMAT, "kind": self.kind, "parent": self.parent, "offsets": self.offsets.to_document()}
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
                TableKind(content["kind"]), StreamOffsets.from_document(content["offsets"]), int(content["parent"])
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError("state of a table", 0, "a document of archived offsets", repr(error), where) from error
        if newer:
            raise ConfigError("table", where, f"format {FORMAT} or older; a newer version of Rucola wrote this table")
        return state
