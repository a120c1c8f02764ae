"""The place of a table: the only way to its files, on a local disk or in an object store.

A table may come from somebody else. What is read, replaced or deleted is named by paths relative to the table's place,
and no path leads out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from rucola.errors import DiskError

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq

HIDDEN = "."
"""Names of incomplete files begin with it; Spark and other engines ignore such files."""


class Found(NamedTuple):
    """A file of a table as its place lists it: path, and the time of its last write in milliseconds since the epoch."""

    path: str
    modified_ms: int


class NewFile(Protocol):
    """A file that is being written. No reader sees it before it is complete.

    Attributes:
        stream: takes the content.
    """

    stream: BinaryIO

    def complete(self) -> int:
        """Closes the file, makes it durable, and gives it its name; returns its length in bytes."""
        ...

    def abandon(self) -> None:
        """Closes the file, and removes what was written."""
        ...


class Place(Protocol):
    """Where the files of a table are. Tasks get it pickled.

    Attributes:
        root: absolute path of the table's directory, or its URL.
        is_local: whether it is a directory, which may be torn by a power cut.
        library_options: options for libraries that open the table by ``root``; they may hold credentials.
    """

    @property
    def root(self) -> str:
        """See above."""
        ...

    @property
    def is_local(self) -> bool:
        """See above."""
        ...

    @property
    def library_options(self) -> Mapping[str, str]:
        """See above."""
        ...

    def told(self, error: Exception) -> str:
        """What a library's error says, without secrets and without its stack."""
        ...

    def error(self, operation: str, path: str, error: OSError) -> DiskError:
        """The error of a failed operation, without secrets."""
        ...

    def make(self) -> None:
        """Makes the table's directory, if it is local."""
        ...

    def check(self, directory: str = "") -> None:
        """Looks at everything in the table, or only in one of its directories, before other programs use the names.

        Raises:
            ForeignEntryError: there is a link, or something else that is neither a file nor a directory.
        """
        ...

    def has(self, directory: str) -> bool:
        """Whether there are files in a directory of the table."""
        ...

    def new_file(self, path: str) -> NewFile:
        """Begins a file; when it is complete, it replaces what has its name."""
        ...

    def filesystem(self) -> tuple[pafs.FileSystem, str]:
        """PyArrow's access to the table, and the table's path in it, for the libraries that open files by name."""
        ...

    def parquet(self, path: str) -> AbstractContextManager[pq.ParquetFile]:
        """Opens a data file; the checksums of its pages are checked.

        Raises:
            ForeignEntryError: the path leads through a link, or to no file.
            FormatError: in the block, something was read that is not there, or is damaged.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something of this name."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content of a small file; None if there is none."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Writes a small file whose name nothing has, durably."""
        ...

    def create(self, path: str, content: bytes) -> bool:
        """Writes a small file durably; returns False, and changes nothing, if something has its name. Of several
        writers, one gets True, unless an object store ignores the condition.
        """
        ...

    def remove(self, path: str) -> None:
        """Removes a file."""
        ...

    def list_files(self, below: str = "") -> Iterator[Found]:
        """All files below a directory, in no certain order."""
        ...

    def sync(self, directory: str, names: Iterable[str]) -> None:
        """Makes files durable that other code has written into ``directory``; a name without a file is left out."""
        ...
