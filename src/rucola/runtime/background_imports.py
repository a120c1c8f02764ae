"""Modules that a server needs later, imported in a thread while its event loop serves.

A module that is being imported must not be imported on the loop, too: it would wait for the thread, and everybody with
it. Whoever needs one asks ``is_imported`` and awaits ``get`` when it is not.
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
    """Whether importing ``module`` is no more than a look into a table."""
    loaded = sys.modules.get(module)
    # As importlib itself asks: a module stands in the table before it was executed.
    return loaded is not None and not getattr(loaded.__spec__, "_initializing", False)


class BackgroundImports:
    """Imports one module after the other, in a thread that lives as long as there are some. Event loop only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: deque[str] = deque()
        self._works = False
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def begin(self, modules: Iterable[str]) -> None:
        """Import them, in this order, for whoever needs them later."""
        for module in modules:
            if not is_imported(module):
                self._future(module, first=False)

    async def get(self, module: str) -> None:
        """Returns when ``module`` is imported.

        Raises:
            Exception: what the import raised; the next call tries again.
        """
        if not is_imported(module):
            await asyncio.shield(self._future(module, first=True))

    def _future(self, module: str, first: bool) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = self._waiting.get(module)
        if future is not None:
            with self._lock:
                if first and module in self._wanted:  # else it is being imported
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
            except Exception as caught:  # noqa: BLE001 - whoever needs the module hears of it
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
    """Perhaps nobody waits."""
    if not future.cancelled():
        future.exception()
