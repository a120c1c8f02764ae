"""What a store's directory says of how its last life went, for the next start to read.

================== ==================================================================================
file               says
================== ==================================================================================
abort              the store is in use; found by a start: nobody stopped it (RocketMQ's name for it)
rucola-watermark   what is known to be on the disk (``watermark``)
checkpoint         the same for RocketMQ, in store times (``formats.checkpoint``)
================== ==================================================================================
"""

from __future__ import annotations

from rucola.formats.checkpoint import StoreCheckpoint
from rucola.runtime.files import Files
from rucola.runtime.machine import process_id
from rucola.store.recovery.watermark import WatermarkFile


class StoreMarks:
    """See the module. One thread at a time.

    Attributes:
        watermark: the file.

    Args:
        root: the store's directory.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.watermark = WatermarkFile(files, root)
        self._files = files
        self._root = root
        self._abort_path = f"{root}/abort"
        self._checkpoint_path = f"{root}/checkpoint"
        self._written: StoreCheckpoint | None = None

    @property
    def in_use(self) -> bool:
        """Whether the store is in use, or nobody stopped it."""
        return self._files.exists(self._abort_path)

    def take_up(self) -> None:
        """Marks the store as in use, durably.

        Raises:
            DiskError: it cannot be marked.
        """
        if not self.in_use:
            self._files.write_file(self._abort_path, str(process_id()).encode())
        else:
            # A killed process may have left it in memory only.
            self._files.sync_directory(self._root)

    def lay_down(self) -> None:
        """Marks the store as stopped, durably.

        Raises:
            DiskError: the next start recovers it.
        """
        self._files.remove(self._abort_path)
        self._files.sync_directory(self._root)

    def read_checkpoint(self) -> StoreCheckpoint:
        """The one of the life before; all zeros without one."""
        return StoreCheckpoint.decode(self._files.read_file(self._checkpoint_path) or b"")

    def write_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        """Does nothing when it is what was written last.

        Raises:
            DiskError: it may not be on the disk.
        """
        if checkpoint != self._written:
            self._files.write_at(self._checkpoint_path, 0, checkpoint.encode())
            self._written = checkpoint
