"""Imports modules on a thread, while the server's event loop serves requests.

The loop must not import a module that the thread is importing: the loop, and with it every client, would wait for the
thread. Callers check ``is_imported`` first, and await ``get`` if it returns False.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import threading
from collections import deque
from collections.abc import Iterable


def is_imported(module: str) -> bool:
    """Whether ``module`` is already imported, so that an import statement is only a table look-up."""
    loaded = sys.modules.get(module)
    # importlib puts a module into the table before the module has been executed.
    return loaded is not None and not getattr(loaded.__spec__, "_initializing", False)


class BackgroundImports:
    """Imports modules one after the other, on a thread that exists only while there are modules to import. Event loop
    only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: deque[str] = deque()
        self._works = False
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def begin(self, modules: Iterable[str]) -> None:
        """Begins to import the modules, in this order, for later use."""
        for module in modules:
            if not is_imported(module):
                self._future(module, first=False)

    async def get(self, module: str) -> None:
        """Waits until ``module`` is imported; its import precedes all imports that have not begun.

        Raises:
            Exception: the import failed with this error; the next call tries again.
        """
        if not is_imported(module):
            await asyncio.shield(self._future(module, first=True))

    def _future(self, module: str, first: bool) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = self._waiting.get(module)
        if future is not None:
            with self._lock:
                if first and module in self._wanted:  # otherwise the module is being imported
                    self._wanted.remove(module)
                    self._wanted.appendleft(module)
            return future
        future = self._waiting[module] = loop.create_future()
        future.add_done_callback(_retrieve)
        with self._lock:
            if first:
                self._wanted.appendleft(module)
            else:
                self._wanted.append(module)
            begin, self._works = not self._works, True
        if begin:
            threading.Thread(target=self._work, args=(loop,), name="rucola-imports", daemon=True).start()
        return future

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._works = False
                    return
                module = self._wanted.popleft()
            error: Exception | None = None
            try:
                importlib.import_module(module)
            except Exception as caught:  # noqa: BLE001 - the error reaches every caller that needs the module
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._ended, module, error)

    def _ended(self, module: str, error: Exception | None) -> None:
        future = self._waiting.pop(module, None)
        if future is None:
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Retrieves the exception of a future that perhaps nobody awaits, to prevent asyncio's warning."""
    if not future.cancelled():
        future.exception()
