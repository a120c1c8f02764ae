"""The job's working directory: it is emptied at the start, and belongs to one run at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .processes import DemoError

MARKER = ".made-by-flights-demo"
"""File that marks a directory which may be emptied; a run holds a lock on it."""


@contextmanager
def workplace(directory: Path) -> Iterator[None]:
    """Empties ``directory``, and keeps other runs out of it within the block.

    Raises:
        DemoError: the directory has content that this job did not make, or another run uses it. In both cases nothing
            was changed.
    """
    marker = directory / MARKER
    if directory.exists() and not marker.exists() and any(directory.iterdir()):
        raise DemoError(
            f"{directory} holds files that this job did not make; choose another directory with --directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with marker.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another run works in {directory}; wait until it ends, or choose another directory with --directory"
            raise DemoError(text) from None
        # The marker file stays, because a lock on a removed file would not keep other runs out.
        for path in directory.iterdir():
            if path != marker:
                _remove(path)
        yield


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
