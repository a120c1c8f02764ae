"""What a directory has: names, lengths, and what is neither a file nor a directory.

A directory is a descriptor where the system can list one, so that nobody replaces it meanwhile, else a path. ``path``
is its name in errors.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from rucola.errors import ForeignEntryError
from rucola.runtime.held_directories import LINK, kind_of


def names_in(directory: str | int, path: str, directories: bool, refuse_links: bool) -> list[str]:
    """Sorted names of the directories, or of all other entries; links are followed.

    Raises:
        ForeignEntryError: ``refuse_links``, and a link leads to one of the wanted entries.
    """
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if _leads_to_directory(entry) is directories]
    for entry in found if refuse_links else ():
        if entry.is_symlink():
            raise ForeignEntryError(f"{path}/{entry.name}", "list", f"is {LINK}, not a directory")
    return sorted(entry.name for entry in found)


def lengths_below(
    directory: str | int, path: str, wanted: Callable[[str], bool], names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """For each directory whose name is ``wanted``, the lengths of its files ``names`` in bytes; -1 for one that is not
    there.
    """
    above, descriptor = ("", directory) if isinstance(directory, int) else (f"{path}/", None)
    found = {}
    for below in filter(wanted, names_in(directory, path, directories=True, refuse_links=True)):
        lengths = []
        for name in names:
            try:
                lengths.append(os.stat(f"{above}{below}/{name}", dir_fd=descriptor).st_size)
            except FileNotFoundError:
                lengths.append(-1)
        found[below] = tuple(lengths)
    return found


def lengths_in(directory: str | int, path: str, wanted: Callable[[str], bool] | None, is_held: bool) -> dict[str, int]:
    """Names of all entries but directories, with the lengths of the ``wanted`` ones in bytes, and -1 for the others.

    Raises:
        ForeignEntryError: ``is_held``, and a wanted entry is not a file.
    """
    found = {}
    for name in names_in(directory, path, directories=False, refuse_links=False):
        found[name] = -1
        if wanted is None or wanted(name):
            try:
                if isinstance(directory, int):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                else:
                    status = os.stat(f"{path}/{name}", follow_symlinks=not is_held)  # noqa: PTH116
            except FileNotFoundError:
                del found[name]
                continue
            if is_held and not stat.S_ISREG(status.st_mode):
                raise ForeignEntryError(f"{path}/{name}", "stat", f"is {kind_of(status.st_mode)}, not a file")
            found[name] = status.st_size
    return found


def foreign_in(directory: str | int) -> dict[str, str]:
    """Names of the entries that are neither files nor directories, with what they are."""
    with os.scandir(directory) as entries:
        return {
            entry.name: kind_of(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        }


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False
