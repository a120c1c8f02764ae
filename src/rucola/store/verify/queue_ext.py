"""Reads units of consume queue extensions, which ``verify`` compares with records."""

from __future__ import annotations

from rucola.formats.consume_queue_ext import ExtUnit, decode_ext_unit, position_of
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import Findings
from rucola.store.verify.log import load_segments


class ExtUnits:
    """Reads the units of all extensions.

    Args:
        path: the directory ``consumequeue_ext``.
        found: collects faults of the files.
    """

    def __init__(self, files: Files, path: str, found: Findings) -> None:
        self._files = files
        self._path = path
        self._found = found
        self._segments: dict[tuple[bytes, int], list[MappedFile]] = {}
        self._mapped: MappedFile | None = None

    def read(self, topic: bytes, queue_id: int, address: int) -> ExtUnit | None:
        """Returns the unit at ``address`` in the extension of a queue; None if no unit can be read there."""
        segments = self._segments.get((topic, queue_id))
        if segments is None:
            directory = f"{self._path}/{topic.decode('utf-8', 'surrogateescape')}/{queue_id}"
            segments = self._segments[topic, queue_id] = load_segments(self._files, directory, self._found)
        position = position_of(address)
        file = next((file for file in segments if file.start <= position < file.end), None)
        if file is not self._mapped:
            self.close()
            self._mapped = file
        return None if file is None else decode_ext_unit(file.map.view, position - file.start)

    def close(self) -> None:
        """Unmaps the file; only one file is mapped at a time."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
