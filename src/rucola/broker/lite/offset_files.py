"""The files with the offsets of lite topics (``formats.lite_offsets``), and what waits to be written to them.

Usually a write appends a batch to the journal. When the journal has more rows than the table, a write replaces the base
instead; the next batch begins another journal. The base holds the whole table as it is during the write, so what a
failed write leaves out is never lost: it waits for the next one.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from rucola.broker.lite.offset_rows import PARTS, OffsetRows, rows_in
from rucola.common.data_version import DataVersion
from rucola.errors import DiskError, FormatError, StoreDamagedError
from rucola.formats.lite_offsets import (
    FILE_NAME,
    ROW_FIELDS,
    OffsetBatch,
    OffsetTable,
    base_pieces,
    batches_in,
    decode_base,
    encode_batch,
)
from rucola.runtime.files import Files
from rucola.runtime.table_writer import Pieces, TableWriter

_FILE_BYTES_MAX = 64 << 30
_JOURNAL_ROWS_LEAST = 65_536
_NEVER_WRITTEN = (-1, 0, 0)
_ADVICE = (
    f"restore config/{FILE_NAME}* from a copy; if all of these files are moved away, groups read the lite topics from "
    "their oldest messages on"
)


@dataclass(slots=True)
class _Write:
    """One write. ``size``: number of bytes appended."""

    is_base: bool
    generation: int
    position: int
    rows: array[int]
    groups: list[tuple[int, str]]
    size: int = 0


class OffsetFiles:
    """The files in ``directory``.

    Args:
        table: the rows that a base gets; the event loop changes them.
        groups: number and name of each group that exists.
        writer: calls for the writes.
    """

    def __init__(
        self, files: Files, directory: str, table: OffsetRows, groups: Mapping[int, str], writer: TableWriter
    ) -> None:
        self._files = files
        self._directory = directory
        self._base = f"{directory}/{FILE_NAME}"
        self._table = table
        self._groups = groups
        self._kept = writer.table(FILE_NAME, self._replace, self._snapshot, self._ended)
        self._rows = array("q")
        self._new_groups: list[tuple[int, str]] = []
        self._write: _Write | None = None
        self._generation = self._position = 0
        self._journal_rows = 0
        self._base_due = False
        self._written = _NEVER_WRITTEN

    # -- writing -------------------------------------------------------------------------------------------------------

    def note(self, key: int, name_hash: int, consumer_offset: int) -> None:
        """Notes a row for the next write."""
        self._rows.extend((key, name_hash, consumer_offset))

    def note_group(self, number: int, name: str) -> None:
        """Notes a group for the next write; without a name it is gone."""
        self._new_groups.append((number, name))

    def note_written(self, version: DataVersion) -> None:
        """Notes that a table for RocketMQ was written with this version, and has all offsets."""
        self._written = version.state_version, version.timestamp_ms, version.counter
        self._base_due = True

    def is_written(self, version: DataVersion) -> bool:
        """Whether a table of this version was noted last."""
        return self._written == (version.state_version, version.timestamp_ms, version.counter)

    def compact_soon(self) -> None:
        """Lets the next write replace the base."""
        self._base_due = True

    def finish(self) -> None:
        """Lets the next write replace the base, if there is a journal."""
        self._base_due = self._base_due or self._journal_rows > 0 or len(self._rows) > 0

    def persist(self) -> asyncio.Future[None] | None:
        """Requests a write; returns a future that is done when it ends, or None if nothing has changed."""
        if not self._rows and not self._new_groups and not self._base_due:
            return None
        return self._kept.changed()

    def _snapshot(self) -> Pieces:
        if self._write is not None:  # the writer was stopped; doing it again does no harm
            self._take_back(self._write)
        if self._journal_rows >= max(self._table.count, _JOURNAL_ROWS_LEAST):
            self._base_due = True
        is_base, self._base_due = self._base_due, False
        rows, groups = self._rows, self._new_groups
        self._rows, self._new_groups = array("q"), []
        generation = self._generation + is_base
        self._write = _Write(is_base, generation, self._position, rows, groups)
        if is_base:
            return self._base_pieces(generation, self._written)
        return (encode_batch(generation, self._position, groups, rows) for _ in range(1))

    def _base_pieces(self, generation: int, written: tuple[int, int, int]) -> Iterator[bytes]:
        """Runs in the writer's thread."""
        rows = array("q")
        for part in range(PARTS):
            for row in rows_in(self._table.part(part), self._groups.__contains__):
                rows.extend(row)
        # A group that came after its row was copied has that row in the next journal, too.
        yield from base_pieces(generation, written, list(self._groups.items()), rows)

    def _replace(self, pieces: Pieces) -> None:
        write = self._write
        assert write is not None
        self._files.make_directory(self._directory)
        if write.is_base:
            self._files.replace_file(self._base, pieces)
            former = self._journal(write.generation - 1)
            with suppress(DiskError):  # the next start removes it
                if self._files.exists(former):
                    self._files.remove(former)
            return
        content = b"".join(pieces)
        self._files.write_at(self._journal(write.generation), write.position, content)
        if write.position == 0:
            self._files.sync_directory(self._directory)
        write.size = len(content)

    def _ended(self, error: Exception | None) -> None:
        write, self._write = self._write, None
        assert write is not None
        if error is not None:
            self._take_back(write)
            return
        self._generation = write.generation
        if write.is_base:
            self._position = self._journal_rows = 0
        else:
            self._position += write.size
            self._journal_rows += len(write.rows) // ROW_FIELDS

    def _take_back(self, write: _Write) -> None:
        """Lets the next write include this one, which may have been done nevertheless: the base may be the new one,
        and then nothing may be appended to the old journal.
        """
        self._base_due = self._base_due or write.is_base
        self._rows = write.rows + self._rows
        self._new_groups = write.groups + self._new_groups

    def _journal(self, generation: int) -> str:
        return f"{self._base}.{generation}"

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self) -> tuple[dict[int, str], Iterator[tuple[int, int, int]]] | None:
        """Reads the files.

        Returns:
            The groups that exist by number, and key, hash and offset of all rows, older ones first; None if there is no
            file.

        Raises:
            StoreDamagedError: a file is damaged or missing.
        """
        journals = self._generations()
        try:
            content = self._files.read_file(self._base, _FILE_BYTES_MAX)
            if content is None and journals - {0}:
                raise FormatError(FILE_NAME, 0, "a file", "none, though a journal needs it")
            tables = [] if content is None else [decode_base(content)]
            for table in tables:
                self._generation, self._written = table.generation, table.written
            if any(generation > self._generation for generation in journals):
                raise FormatError(FILE_NAME, 0, f"generation {max(journals)}", f"generation {self._generation}")
            journal = self._files.read_file(self._journal(self._generation), _FILE_BYTES_MAX) or b""
            batches = list(batches_in(journal, self._generation))
        except FormatError as error:
            path = f"{self._directory}/{error.what}"
            raise StoreDamagedError(path, error.position, str(error), _ADVICE) from error
        for generation in journals - {self._generation}:
            self._files.remove(self._journal(generation))
        groups: dict[int, str] = {}
        sources: list[OffsetTable | OffsetBatch] = [*tables, *batches]
        for source in sources:
            groups.update(source.groups)
        self._position = batches[-1].end if batches else 0
        self._journal_rows = sum(len(batch.rows) for batch in batches) // ROW_FIELDS
        for table in tables:
            self._table.reserve(len(table.rows) // ROW_FIELDS)
        exists = {number: name for number, name in groups.items() if name}
        return (exists, _rows(sources, exists)) if sources else None

    def _generations(self) -> set[int]:
        names = self._files.list_files(self._directory) if self._files.is_directory(self._directory) else []
        ends = (name.removeprefix(f"{FILE_NAME}.") for name in names if name.startswith(f"{FILE_NAME}."))
        return {int(end) for end in ends if end.isascii() and end.isdigit()}


def _rows(sources: list[OffsetTable | OffsetBatch], groups: Mapping[int, str]) -> Iterator[tuple[int, int, int]]:
    for source in sources:
        rows = source.rows
        for row in zip(rows[::ROW_FIELDS], rows[1::ROW_FIELDS], rows[2::ROW_FIELDS], strict=True):
            if row[0] >> 32 in groups:
                yield row
