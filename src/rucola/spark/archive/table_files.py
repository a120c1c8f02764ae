"""The only way to the files of a table. A table may come from somebody else. Therefore its directory is held: no path
below it leads through a link, and only files are opened.

Libraries that want names (Spark's reader, delta-rs, PyIceberg) get them after ``check_table`` has looked at everything
in the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rucola.errors import ForeignEntryError, FormatError
from rucola.runtime.files import Files

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_LEVELS_MAX = 16
"""Deepest directory of a table that is looked at; our own have at most six levels."""


def table_root(table: str | os.PathLike[str]) -> str:
    """The directory of a table. All ways to write it are one table: relative, as a ``file:`` URL, with a slash at the
    end, through links, which are followed once, here.

    Raises:
        ConfigError: it is the URL of another place.
    """
    return os.path.realpath(Files().expand(os.fspath(table)))


def hold_table(root: str, files: Files | None = None) -> Files:
    """Holds the directory of a table, if there is one; returns the access to it."""
    files = files if files is not None else Files()
    if files.is_directory(root):
        files.hold(root)
    return files


def remove_from(root: str, path: str) -> None:
    """Removes a data file of a table."""
    hold_table(root).remove(f"{root}/{path}")


@contextmanager
def parquet_file(root: str, path: str) -> Iterator[pq.ParquetFile]:
    """Opens a data file; the checksums of its pages are checked.

    Raises:
        ForeignEntryError: the path leads through a link, or to no file.
        FormatError: in the block, something was read that is not there, or is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = f"{root}/{path}"
    with hold_table(root).open_to_read(place) as stream:
        try:
            with pq.ParquetFile(stream, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowException, OSError, LookupError, ValueError) as error:
            raise FormatError("table", 0, "pages with matching checksums", str(error), place) from error


def check_table(root: str) -> None:
    """Looks at everything in a table before other programs use its names.

    Raises:
        ForeignEntryError: there is a link, or something else that is neither a file nor a directory.
    """
    files, waiting = hold_table(root), [(root, 0)]
    while waiting:
        directory, level = waiting.pop()
        _refuse(directory, files.list_foreign(directory))
        if level > _LEVELS_MAX:
            raise ForeignEntryError(directory, "list", f"is more than {_LEVELS_MAX} levels deep")
        waiting += [(f"{directory}/{name}", level + 1) for name in files.list_directories(directory)]


def _refuse(directory: str, foreign: Mapping[str, str]) -> None:
    for name, kind in foreign.items():
        raise ForeignEntryError(f"{directory}/{name}", "open", f"is {kind}; a table has only files and directories")
