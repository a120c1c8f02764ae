"""Accounts that stand in files, and are loaded again when the files change.

All files are read together. If all are valid, their accounts replace the snapshot. Otherwise the last valid snapshot
stays, and the error is logged and counted.

Threads: ``reload`` may run on any thread. A lock lets only one load or change run at a time; each replaces ``snapshot``
as a whole.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping

from rucola.broker.acl.permission import AclSnapshot
from rucola.errors import DiskError, FormatError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class WatchedAccounts(ABC):
    """The accounts in some files.

    Attributes:
        snapshot: the current accounts.
        failures: number of failed loads since start-up.
        error: error of the last load; empty if that load succeeded.
    """

    def __init__(self) -> None:
        self._seen = ""
        self._candidate = ""
        self._lock = threading.Lock()
        self.snapshot = AclSnapshot({})
        self.failures = 0
        self.error = ""

    def load(self) -> None:
        """Loads the files for the first time.

        Raises:
            FormatError: a file is invalid, or there is none.
            DiskError: a file cannot be read.
        """
        with self._lock:
            texts = self._read()
            self._seen = digest_of(texts)
            self.snapshot = self._parse(texts)
        event(logger, logging.INFO, "accounts loaded", accounts=len(self.snapshot.accounts), digest=self._seen[:12])

    def reload(self) -> None:
        """Loads changed files. New content is used only when two calls in a row have read it, because a single call may
        read a file that is only half written.

        If a file is invalid or cannot be read, the last valid accounts stay.
        """
        with self._lock:
            try:
                texts = self._read()
                digest = digest_of(texts)
                if digest == self._seen or digest != self._candidate:
                    self._candidate = digest
                    return
                self._seen = digest
                self.snapshot = self._parse(texts)
            except (FormatError, DiskError) as error:
                if str(error) != self.error:
                    event(logger, logging.ERROR, "accounts not loaded, the last good ones stay", error=error)
                self.failures += 1
                self.error = str(error)
                return
            self.error = ""
        event(logger, logging.INFO, "accounts loaded", accounts=len(self.snapshot.accounts), digest=digest[:12])

    @abstractmethod
    def _read(self) -> dict[str, bytes]:
        """The contents of the files that exist, by path."""

    @abstractmethod
    def _parse(self, texts: Mapping[str, bytes]) -> AclSnapshot:
        """The accounts in the contents."""


def digest_of(texts: Mapping[str, bytes]) -> str:
    """A digest of the contents and paths of files."""
    digest = hashlib.sha256()
    for path, text in texts.items():
        digest.update(f"{len(path)}:{path}{len(text)}:".encode() + text)
    return digest.hexdigest()
