"""A table in a directory of this machine, or of a file system that all workers share.

The directory is held: no path below it leads through a link, and only files are opened. Libraries that want names
(Spark's reader, delta-rs, PyIceberg) get them after ``check`` has looked at everything in the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from rucola.errors import DiskError, ForeignEntryError, FormatError
from rucola.places.place import HIDDEN, Found
from rucola.runtime.disk_calls import disk_error
from rucola.runtime.files import Files

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq

_LEVELS_MAX = 16
"""Deepest directory of a table that is looked at; our own have at most six levels."""


class LocalPlace:
    """``Place`` in a directory.

    Args:
        table: path of the directory, or its ``file:`` URL. All ways to write it are one table: relative, with a slash
            at the end, through links, which are followed once, here.
        files: access to the disk.

    Raises:
        ConfigError: it is the URL of another place.
    """

    is_local = True

    def __init__(self, table: str | os.PathLike[str], files: Files | None = None) -> None:
        self._files = files or Files()
        self.root = os.path.realpath(self._files.expand(os.fspath(table)))
        self.library_options: Mapping[str, str] = {}

    def __reduce__(self) -> tuple[type[LocalPlace], tuple[str]]:
        return LocalPlace, (self.root,)

    def check(self, directory: str = "") -> None:
        """See ``Place``."""
        files, waiting = self._held(), [(f"{self.root}/{directory}".rstrip("/"), 0)]
        if directory and (kind := files.list_foreign(self.root).get(directory)):
            _refuse(self.root, {directory: kind})
        while waiting:
            directory, level = waiting.pop()
            _refuse(directory, files.list_foreign(directory))
            if level > _LEVELS_MAX:
                raise ForeignEntryError(directory, "list", f"is more than {_LEVELS_MAX} levels deep")
            waiting += [(f"{directory}/{name}", level + 1) for name in files.list_directories(directory)]

    def told(self, error: Exception) -> str:
        """See ``Place``."""
        return str(error).partition("\n")[0]

    def error(self, operation: str, path: str, error: OSError) -> DiskError:
        """See ``Place``."""
        return disk_error(f"{self.root}/{path}".rstrip("/"), operation, error)

    def make(self) -> None:
        """See ``Place``."""
        self._held().make_directory(self.root)

    def has(self, directory: str) -> bool:
        """See ``Place``."""
        return bool(self._held().list_files(f"{self.root}/{directory}"))

    def new_file(self, path: str) -> NewLocalFile:
        """See ``Place``."""
        self.make()
        files = self._held()
        files.make_directory(f"{self.root}/{path.rpartition('/')[0]}".rstrip("/"))
        return NewLocalFile(files, f"{self.root}/{path}")

    def filesystem(self) -> tuple[pafs.FileSystem, str]:
        """See ``Place``."""
        import pyarrow.fs as pafs

        return pafs.LocalFileSystem(), self.root

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """See ``Place``."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        place = f"{self.root}/{path}"
        with self._held().open_to_read(place) as stream:
            try:
                with pq.ParquetFile(stream, page_checksum_verification=True) as file:
                    yield file
            except (pa.ArrowException, OSError, LookupError, ValueError) as error:
                raise FormatError("table", 0, "pages with matching checksums", str(error), place) from error

    def exists(self, path: str) -> bool:
        """See ``Place``."""
        return self._held().exists(f"{self.root}/{path}")

    def read(self, path: str) -> bytes | None:
        """See ``Place``."""
        return self._held().read_file(f"{self.root}/{path}")

    def write(self, path: str, content: bytes) -> None:
        """See ``Place``."""
        new = self.new_file(path)
        try:
            new.stream.write(content)
        except BaseException:
            new.abandon()
            raise
        new.complete()

    def create(self, path: str, content: bytes) -> bool:
        """See ``Place``."""
        files, name = self._held(), f"{self.root}/{path}"
        directory, _, last = name.rpartition("/")
        files.make_directory(directory)
        hidden = f"{directory}/{HIDDEN}{uuid4().hex}-{last}"
        try:
            files.write_file(hidden, content)
            is_new = files.link(hidden, name)
        finally:
            files.remove(hidden)
        files.sync_directory(directory)
        return is_new

    def remove(self, path: str) -> None:
        """See ``Place``."""
        self._held().remove(f"{self.root}/{path}")

    def list_files(self, below: str = "") -> Iterator[Found]:
        """See ``Place``."""
        files, waiting = self._held(), [below]
        while waiting:
            folder = waiting.pop()
            directory = f"{self.root}/{folder}".rstrip("/")
            before = f"{folder}/" if folder else ""
            for name in files.list_files(directory):
                yield Found(f"{before}{name}", files.modified_ms(f"{directory}/{name}"))
            waiting += [f"{before}{name}" for name in files.list_directories(directory)]

    def sync(self, directory: str, names: Iterable[str]) -> None:
        """See ``Place``."""
        files, path = self._held(), f"{self.root}/{directory}"
        for name in names:
            if files.exists(f"{path}/{name}"):
                files.sync_file(f"{path}/{name}")
        files.sync_directory(path)
        files.sync_directory(self.root)

    def _held(self) -> Files:
        if self._files.is_directory(self.root):
            self._files.hold(self.root)
        else:  # somebody has removed it
            self._files.held.forget(self.root)
        return self._files


class NewLocalFile:
    """``NewFile`` on a disk: it is synced, and then gets its name.

    Args:
        files: access to the disk.
        path: absolute path of the complete file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        directory, _, name = path.rpartition("/")
        self._hidden = f"{directory}/{HIDDEN}{uuid4().hex}-{name}"
        self.stream: BinaryIO = files.open_new(self._hidden)

    def complete(self) -> int:
        """See ``NewFile``."""
        self.stream.close()
        self._files.sync_file(self._hidden)
        self._files.rename(self._hidden, self._path)
        self._files.sync_directory(self._path.rpartition("/")[0])
        return self._files.size(self._path)

    def abandon(self) -> None:
        """See ``NewFile``."""
        self.stream.close()
        self._files.remove(self._hidden)


def _refuse(directory: str, foreign: Mapping[str, str]) -> None:
    for name, kind in foreign.items():
        raise ForeignEntryError(f"{directory}/{name}", "open", f"is {kind}; a table has only files and directories")
