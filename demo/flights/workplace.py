"""The job's working directory: it is emptied at the start, and belongs to one run at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .processes import DemoError

MARKER = ".made-by-flights-demo"
"""File in a directory that may be emptied; a run holds a lock on it."""


@contextmanager
def workplace(directory: Path) -> Iterator[None]:
    """Makes ``directory`` empty, and keeps other runs out of it.

    Raises:
        DemoError: it has content that this job did not make, or another run uses it. In both cases nothing was changed.
    """
    marker = directory / MARKER
    if directory.exists() and not marker.exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} holds files that are not of this job; choose another with --directory")
    directory.mkdir(parents=True, exist_ok=True)
    with marker.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another run works in {directory}; wait for its end, or choose another with --directory"
            raise DemoError(text) from None
        # The marker stays: a lock on a removed file would keep nobody out.
        for path in directory.iterdir():
            if path != marker:
                _remove(path)
        yield


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
