"""Worker processes of the commands that read or write whole stores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes.

    A new interpreter looks for modules in the current directory first, and this may be a store that holds a
    ``multiprocessing.py``. The environment, which workers inherit, turns that off while the pool exists.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        # A forked child would share the locks of this process's threads, and the lock of the store.
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
