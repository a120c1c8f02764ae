"""The thread that waits for the work that is now running on the event loop of ``rucola.sync``.

Each blocking call is a task of its own, so the task does not identify the caller.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar

CALLING_THREAD: ContextVar[threading.Thread | None] = ContextVar("CALLING_THREAD", default=None)
"""It is None for work that no blocking call started."""
