"""Which directories of a store may be reached through links, and their opening.

Followed are the store's root, the directories that its operator may have moved to other disks (``MAY_BE_LINKS``), and
the directories that the configuration names. Each is opened once, when the store is opened; below them no link is
followed (``runtime.held_directories``).
"""

from __future__ import annotations

from collections.abc import Iterable

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.runtime.held_directories import LINK

MAY_BE_LINKS = ("commitlog", "consumequeue", "index")
_NAME_BYTES_MAX = 255
_LEVELS = 3
"""How deep directories are nested in a store: consumequeue, topic, queue."""


def hold_store(files: Files, path: str, *others: str) -> str:
    """Opens the directories of the store in ``path``; returns its absolute path.

    Args:
        others: absolute paths of further directories, which the configuration names; need not exist.

    Raises:
        StoreDamagedError: there is no such directory.
        DiskError: a directory cannot be opened.
    """
    root = files.expand(path)
    if not files.exists(root):
        raise StoreDamagedError(root, 0, "no store here: there is no such directory", "give the path of a store")
    files.hold(root)
    linked = [f"{root}/{name}" for name in MAY_BE_LINKS if files.is_link(f"{root}/{name}")]
    for other in (*linked, *others):
        if other in linked or files.exists(other):
            files.hold(other)
    return root


def is_directory_name(name: str) -> bool:
    """Whether a directory can have this name. The topic of a record may be none: then it never had a queue."""
    length = len(name.encode("utf-8", "surrogateescape"))
    return 0 < length <= _NAME_BYTES_MAX and name not in (".", "..") and not any(char in name for char in "/\\\0")


def foreign_entries(files: Files, root: str) -> dict[str, str]:
    """Finds what is neither a file nor a directory in a held store; links that ``hold_store`` follows are left out, and
    what they lead to is looked at.

    Returns:
        For each path, what is there, such as ``a symbolic link``.
    """
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        entries = files.list_foreign(directory)
        if directory == root:
            entries = {name: kind for name, kind in entries.items() if not (name in MAY_BE_LINKS and kind == LINK)}
        found |= {f"{directory}/{name}": kind for name, kind in entries.items()}
        if directory.count("/") < root.count("/") + _LEVELS:
            names = files.list_directories(directory)
            waiting += [f"{directory}/{name}" for name in names if name not in entries]
    return dict(sorted(found.items()))


def check_replaceable(files: Files, root: str, parts: Iterable[str]) -> None:
    """Checks that parts of a store can be replaced by renaming.

    Args:
        root: absolute path of the store.
        parts: paths below it; need not exist.

    Raises:
        StoreDamagedError: a part is a link, or lies on another file system; nothing was changed.
    """
    for part in parts:
        path = f"{root}/{part}"
        if files.is_link(path):
            problem = "a symbolic link; new files can replace only a directory of the store itself"
        elif files.exists(path) and files.device(path) != files.device(root):
            problem = "on another file system than the store; new files cannot be renamed to it"
        else:
            continue
        raise StoreDamagedError(path, 0, problem, "move the directory back into the store for this work")
