"""The stacks of all threads, at one moment."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

_one_at_a_time = threading.Lock()


def current_frames() -> dict[int, FrameType]:
    """Returns the innermost frame of each thread, by the thread's identifier.

    Python 3.11 may collect garbage during ``sys._current_frames()``, which holds a lock of the interpreter. If another
    thread then runs and begins a thread, or makes the same call, the whole process waits for ever
    (python/cpython#106883). So garbage waits until the call has ended.
    """
    with _one_at_a_time:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()
