"""The marks of a store: files in its directory that tell the next run how the last run ended.

================== ==================================================================================
file               content
================== ==================================================================================
abort              exists while the store is in use; if it exists at start-up, the stop was unclean
rucola-watermark   the offsets up to which data is known to be synced (``watermark``)
checkpoint         store times up to which data is synced, for RocketMQ (``formats.checkpoint``)
================== ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.formats.checkpoint import StoreCheckpoint
from rucola.runtime.files import Files
from rucola.runtime.machine import process_id
from rucola.store.recovery.watermark import WatermarkFile, WriterMark


class StoreMarks:
    """Reads and writes the marks of a store. Only one thread at a time may use an object of this class.

    Attributes:
        watermark: the file ``rucola-watermark``.
        writers: the writer marks of this run, for the watermark.
        confirm_offset: behind a controller, returns the confirm offset for the checkpoint; otherwise None.

    Args:
        root: the store's directory.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.watermark = WatermarkFile(files, root)
        self.writers: tuple[WriterMark, ...] = ()
        self.confirm_offset: Callable[[], int] | None = None
        self._files = files
        self._root = root
        self._abort_path = f"{root}/abort"
        self._checkpoint_path = f"{root}/checkpoint"
        self._written: StoreCheckpoint | None = None

    @property
    def in_use(self) -> bool:
        """Whether the abort file exists, that is, whether the store is in use or was not stopped cleanly."""
        return self._files.exists(self._abort_path)

    def create_abort_file(self) -> None:
        """Creates the abort file, which marks the store as in use, and syncs it.

        Raises:
            DiskError: the file cannot be created.
        """
        if not self.in_use:
            self._files.write_file(self._abort_path, str(process_id()).encode())
        else:
            # A killed process may have created the file without syncing it.
            self._files.sync_directory(self._root)

    def remove_abort_file(self) -> None:
        """Removes the abort file after a clean stop. Syncs the removal.

        Raises:
            DiskError: the file may still exist; the next start-up then recovers the store.
        """
        self._files.remove(self._abort_path)
        self._files.sync_directory(self._root)

    def read_checkpoint(self) -> StoreCheckpoint:
        """Returns the checkpoint of the last run; all zeros if there is none."""
        return StoreCheckpoint.decode(self._files.read_file(self._checkpoint_path) or b"")

    def write_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        """Writes the checkpoint, unless it equals the one written last.

        Raises:
            DiskError: the checkpoint may not have reached the disk.
        """
        if checkpoint != self._written:
            self._files.write_at(self._checkpoint_path, 0, checkpoint.encode())
            self._written = checkpoint
