"""Keeps the epochs of a log in the file ``epochFileCheckpoint``; as in RocketMQ, ``.bak`` has what was there before.

A file that cannot be read counts as missing, as in RocketMQ; then the backup counts, and without it there are no
epochs. RocketMQ never writes an empty list, and its backup keeps epochs of bytes that were cut. Here they go, so that
damage does not bring them back.
"""

from __future__ import annotations

import logging
from typing import Final

from rucola.errors import FormatError
from rucola.formats.epoch_file import decode_epoch_file, encode_epoch_file
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.ha.epochs import EpochList

logger = logging.getLogger(__name__)
FILE_NAME: Final = "epochFileCheckpoint"


class EpochStore:
    """The file. Only one thread at a time may call ``write``.

    Attributes:
        epochs: what the file has.

    Args:
        root: the store's directory.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.epochs = EpochList()
        self._files = files
        self._path = f"{root}/{FILE_NAME}"
        self._backup = f"{self._path}.bak"
        self._written = b""

    def load(self) -> None:
        """Reads the file.

        Raises:
            DiskError: it cannot be read.
        """
        for path in (self._path, self._backup):
            content = self._files.read_file(path)
            if content is None:
                continue
            try:
                entries = decode_epoch_file(content, path)
            except FormatError as error:
                event(logger, logging.WARNING, "epochs cannot be read", path=path, error=error)
                continue
            self._written = content if path == self._path else b""
            self.epochs = EpochList(entries)
            return
        self.epochs, self._written = EpochList(), b""

    def write(self, epochs: EpochList) -> None:
        """Makes ``epochs`` durable; does nothing if they are those of the file.

        Raises:
            DiskError: the file has either the old epochs or the new ones; ``epochs`` is unchanged.
        """
        if epochs == self.epochs:
            return
        known = self.epochs.entries
        if not known or epochs.entries[: len(known)] != known:
            self._remove(self._backup)
        elif self._written:
            self._files.replace_file(self._backup, self._written)
        if epochs.entries:
            content = encode_epoch_file(epochs.entries)
            self._files.replace_file(self._path, content)
        else:
            content = b""
            self._remove(self._path)
        self._written = content
        self.epochs = epochs

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
            self._files.sync_parent(path)
