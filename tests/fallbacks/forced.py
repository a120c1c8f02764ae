"""Removes features that only some systems have, in the process that imports this module before it imports ``rucola``.

Afterwards the process has only what Windows and macOS have: no ``fcntl``, ``resource``, ``uvloop``, ``isal``, no
compiled kernel, no calls of ``os`` and ``mmap`` that only Linux has, no signal handlers of the event loop. ``python -m
pytest -p tests.fallbacks.forced FILES`` runs tests in this way; ``python -m tests.fallbacks`` chooses the files.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import mmap
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

MODULES = ("fcntl", "resource", "grp", "pwd", "uvloop", "isal")
CALLS = [
    *("posix_fallocate", "fdatasync", "pread", "preadv", "pwrite", "pwritev", "posix_fadvise", "statvfs", "geteuid"),
    *("sysconf", "register_at_fork", "sched_getaffinity", "RWF_NOWAIT", "O_NOFOLLOW", "SEEK_DATA", "SEEK_HOLE"),
]


class _Missing(importlib.abc.MetaPathFinder):
    """An importer that does not find ``MODULES``, and finds only the source of each kernel, not its compiled module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name.startswith("rucola.") and name.endswith("_cy"):
            assert path is not None
            for directory in path:
                source = os.path.join(directory, name.rpartition(".")[2] + ".py")  # noqa: PTH118
                if os.path.exists(source):  # noqa: PTH110
                    return importlib.util.spec_from_file_location(name, source)
        return None


class _Map(mmap.mmap):
    """An ``mmap`` without ``madvise``."""

    def madvise(self, *_arguments: int) -> None:
        raise AttributeError("'mmap.mmap' object has no attribute 'madvise'")


def _no_handlers(*_arguments: object) -> None:
    raise NotImplementedError("this platform has no signal handlers")  # as the event loop of Windows does


def _keep_disk_usage() -> None:
    """Replaces ``shutil.disk_usage``: it exists on every system, but on Linux it uses a call that is removed here."""
    statvfs = os.statvfs

    def disk_usage(path: str) -> SimpleNamespace:
        status = statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return SimpleNamespace(used=used, free=status.f_bavail * status.f_frsize)

    shutil.disk_usage = disk_usage  # type: ignore[assignment]


def force() -> None:
    """Removes all features that only some systems have; call this once, before ``rucola`` is imported."""
    loaded = [name for name in sys.modules if name.partition(".")[0] == "rucola" and name != "rucola.testing.plugin"]
    assert not [name for name in loaded if name.startswith(("rucola.runtime", "rucola.formats"))], loaded
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Missing())
    _keep_disk_usage()
    locks = ModuleType("msvcrt")
    locks.LK_NBLCK = 2  # type: ignore[attr-defined]
    locks.locking = lambda *_arguments: None  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = locks
    for name in CALLS:
        if hasattr(os, name):
            delattr(os, name)
    for name in [name for name in dir(mmap) if name.startswith("MADV_")]:
        delattr(mmap, name)
    mmap.mmap = _Map  # type: ignore[misc]
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2"):
        delattr(signal, name)
    for name in ("SO_REUSEPORT",):
        delattr(socket, name)
    asyncio.BaseEventLoop.add_signal_handler = _no_handlers  # type: ignore[method-assign, assignment]


force()
