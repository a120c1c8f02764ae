"""Worker processes of the commands that read or write whole stores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from threading import Thread

from rucola.errors import WorkerKilledError

_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes.

    A new interpreter looks for modules in the current directory first, and this may be a store that holds a
    ``multiprocessing.py``. The environment, which workers inherit, turns that off while the pool exists.

    Workers end with the command, even if it is killed. A worker that goes on would hold the store's directories open,
    and write results for a command that may be running again.

    Raises:
        WorkerKilledError: a worker was killed.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        # A forked child would share the locks of this process's threads, and the lock of the store.
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _end_with_command) as pool:
            yield pool
    except BrokenProcessPool:
        raise WorkerKilledError from None
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _end_with_command() -> None:
    """Runs in each worker, before its first task."""
    command = multiprocessing.parent_process()
    if command is not None:
        Thread(target=_wait_for_end, args=(command.sentinel,), daemon=True).start()


def _wait_for_end(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
