"""Where tests put their files: in memory, because stores sync all the time, and a disk takes half of the suite's time.
Tests of what only a disk does put theirs on the disk.

In memory, the system cannot tell whether bytes of a file are in memory (``RWF_NOWAIT``) or have blocks (``FIEMAP``),
and nothing is ever read from a disk. A directory whose tests need that imports ``tmp_path`` from here in its
``conftest.py``; a module has ``tmp_path = places.tmp_path``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
_FREE_MIN = 8 << 30
"""Bytes that must be free; at most 1.5 GB were used at once by four processes."""
_DISK = "RUCOLA_TESTS_DISK"
"""Environment variable with the temporary directory as it was before ``use_memory``."""


def use_memory() -> None:
    """Lets this process and its children make temporary directories in memory, if enough is free and ``TMPDIR`` is not
    set.
    """
    if "TMPDIR" in os.environ or not _has_room():
        return
    os.environ[_DISK] = tempfile.gettempdir()
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None


def _has_room() -> bool:
    try:
        place, memory = os.statvfs(_MEMORY), Path("/proc/meminfo").read_text()
    except (AttributeError, OSError):  # not Linux
        return False
    available = next(int(line.split()[1]) << 10 for line in memory.splitlines() if line.startswith("MemAvailable:"))
    is_whole = os.access(_MEMORY, os.W_OK) and not place.f_flag & os.ST_NOEXEC
    return is_whole and min(available, place.f_bavail * place.f_frsize) >= _FREE_MIN


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A new directory on the disk."""
    with tempfile.TemporaryDirectory(prefix="rucola-test-", dir=os.environ.get(_DISK)) as directory:
        yield Path(directory)
