"""The broker's tables on disk, ``config/*.json`` below the store. Each has a backup ``.bak`` and is replaced as a
whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rucola.errors import FormatError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class ConfigFiles:
    """The files of one store directory.

    Args:
        root: the store directory, absolute.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._directory = f"{root}/config"
        self._unread: set[str] = set()
        """Files with damaged or empty content, which must never replace a readable backup."""

    def load(self, name: str, take: Callable[[bytes | None], None]) -> None:
        """Passes the content of file ``name``, or of its ``.bak``, to ``take``; passes None if neither exists, as in a
        new store.

        Raises:
            StoreDamagedError: the existing files cannot be read. A damaged or empty file never counts as an empty
                table.
        """
        if self._files.exists(self._root):
            self._files.hold(self._root)
        first_error: FormatError | None = None
        for spare, path in enumerate((f"{self._directory}/{name}", f"{self._directory}/{name}.bak")):
            text = self._files.read_file(path)
            if text is None:
                continue
            try:
                if not text:
                    raise FormatError(name, 0, "a table", "an empty file")
                take(text)
            except FormatError as error:
                first_error = first_error or error
                event(logger, logging.ERROR, "table cannot be read", path=path, error=error)
                if not spare:
                    self._unread.add(name)
                continue
            return
        if first_error is not None:
            path = f"{self._directory}/{name}"
            raise StoreDamagedError(path, first_error.position, str(first_error), "restore the file from a copy")
        take(None)

    def exist(self, name: str) -> bool:
        """Whether file ``name`` or its ``.bak`` exists."""
        return any(self._files.exists(f"{self._directory}/{name}{suffix}") for suffix in ("", ".bak"))

    def replacer(self, name: str) -> Callable[[bytes | Iterable[bytes]], None]:
        """Returns a function that replaces file ``name`` and keeps the previous content as ``.bak``; the function
        raises ``DiskError``.

        Any thread may call the function, but only one thread at a time for each file.
        """
        path = f"{self._directory}/{name}"

        def replace(content: bytes | Iterable[bytes]) -> None:
            self._files.make_directory(self._directory)
            self._files.replace_file(path, content, "" if name in self._unread else f"{path}.bak")
            self._unread.discard(name)

        return replace
