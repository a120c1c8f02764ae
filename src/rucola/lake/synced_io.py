"""PyIceberg's access to local files, with one difference: a file is on the disk when it is closed."""

from __future__ import annotations

from types import TracebackType

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from rucola.runtime.files import Files


class SyncedFileIO(PyArrowFileIO):
    """See the module."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write."""
        made = super().new_output(location)
        return SyncedFile(made.location, made._path, made._filesystem, made._buffer_size)


class SyncedFile(PyArrowFile):
    """A file whose content and name are durable when its stream is closed."""

    def create(self, overwrite: bool = False) -> SyncedStream:
        """Opens the file for writing."""
        return SyncedStream(super().create(overwrite), self._path)


class SyncedStream(OutputStream):
    """A stream that syncs the file and its directory at the end.

    Args:
        stream: what takes the content.
        path: path of the file.
    """

    def __init__(self, stream: OutputStream, path: str) -> None:
        self._stream = stream
        self._path = path
        self._is_closed = False

    def write(self, content: bytes) -> int:
        """Writes bytes; returns their number."""
        return self._stream.write(content)

    def tell(self) -> int:
        """Number of bytes written so far."""
        return self._stream.tell()

    def close(self) -> None:
        """Closes the file, and makes it durable."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stream.close()
        files = Files()
        files.sync_file(self._path)
        directory = self._path.rpartition("/")[0]
        files.sync_directory(directory)
        files.sync_parent(directory)  # the directory may be new, too

    def __enter__(self) -> SyncedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
