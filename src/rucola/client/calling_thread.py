"""Identifies the thread whose blocking call of ``rucola.sync`` is running on the event loop.

Each blocking call runs as a task of its own, so the task does not identify the caller.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar

CALLING_THREAD: ContextVar[threading.Thread | None] = ContextVar("CALLING_THREAD", default=None)
"""The thread that waits for the current task; None if no blocking call started the task."""
