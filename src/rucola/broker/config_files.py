"""The broker's tables on disk, ``config/*.json`` below the store: read with ``.bak`` in reserve, replaced whole."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rucola.errors import FormatError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.runtime.logs import event

_log = logging.getLogger(__name__)


class ConfigFiles:
    """The files of one store directory.

    Args:
        root: the store directory, absolute.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._directory = f"{root}/config"

    def load(self, name: str, take: Callable[[bytes | None], None]) -> None:
        """Give the content of file ``name`` to ``take``; None when neither it nor its ``.bak`` exists.

        Raises:
            StoreDamagedError: neither can be read. A damaged table never counts as an empty one.
        """
        first_error: FormatError | None = None
        for path in (f"{self._directory}/{name}", f"{self._directory}/{name}.bak"):
            text = self._files.read_file(path)
            if not text:
                continue
            try:
                take(text)
            except FormatError as error:
                first_error = first_error or error
                event(_log, logging.ERROR, "table cannot be read", path=path, error=error)
                continue
            return
        if first_error is not None:
            path = f"{self._directory}/{name}"
            raise StoreDamagedError(path, first_error.position, str(first_error), "restore the file from a copy")
        take(None)

    def replacer(self, name: str) -> Callable[[bytes], None]:
        """A function that replaces file ``name``; it raises ``DiskError``."""
        path = f"{self._directory}/{name}"

        def replace(content: bytes) -> None:
            self._files.make_directory(self._directory)
            self._files.replace_file(path, content)

        return replace
