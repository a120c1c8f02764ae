"""Measures how long turns (iterations) of an event loop take; a turn serves some clients while all others wait.

At regular intervals the loop runs a tick, which records the time. A late tick means that a long turn delayed it. Thus
the watch costs nothing per message. If a turn is still running when a tick is late, a thread reads from the loop's
stack what the turn is doing, at most once for each turn. A turn that ends within ``PERIOD_S`` may go unnoticed; the
measured length of other turns is exact to ``PERIOD_S``.

A turn that takes long but uses little processor time has waited for the disk, or for a processor that other threads
use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import FrameType

from rucola.runtime.background import Worker
from rucola.runtime.clock import thread_cpu_s
from rucola.runtime.frames import current_frames
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

PERIOD_S = 0.02
LIMIT_S = 0.05
"""Turns that take more seconds than this are counted and logged."""
WINDOW_S = 60.0
"""Length in seconds of an interval; ``longest_s`` covers the current interval and the previous one."""
LOG_INTERVAL_S = 10.0
WARN_S = 1.0
"""Turns of at least this number of seconds are logged as warnings, because clients notice them; shorter turns are
logged as information.
"""
_FRAMES_MAX = 40


class LoopWatch:
    """Measures the turns of one event loop. ``start`` and ``stop`` are called once each, on the loop's thread.

    Args:
        monotonic: returns a time in seconds that never goes back.
        cpu_s: returns the processor time of the calling thread in seconds.

    Attributes:
        slow_turns: number of turns that took longer than ``LIMIT_S``.
    """

    def __init__(self, monotonic: Callable[[], float], cpu_s: Callable[[], float] = thread_cpu_s) -> None:
        self.slow_turns = 0
        self._monotonic = monotonic
        self._cpu_s = cpu_s
        self._used_s = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._call: asyncio.Handle | None = None
        self._thread_id = 0
        self._worker = Worker("rucola-loop-watch", self._look, LIMIT_S / 2)
        self._due_s = 0.0
        self._window_began_s = 0.0
        self._longest_s = [0.0, 0.0]
        """Durations of the longest turn in the current interval and in the previous interval."""
        self._longest_cpu_s = [0.0, 0.0]
        self._logged_s = float("-inf")
        self._not_logged = 0
        self._seen: tuple[float, str] | None = None
        """The time of a late tick, and what the loop was doing when the watching thread looked. Both are one value, so
        that the loop never reads the time of one tick with the text of another.
        """

    @property
    def longest_s(self) -> float:
        """Duration in seconds of the longest turn in the last one to two minutes."""
        return max(self._longest_s)

    @property
    def longest_cpu_s(self) -> float:
        """Largest processor time of one turn in the last one to two minutes, in seconds; exact to ``PERIOD_S``."""
        return max(self._longest_cpu_s)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches ``loop``, which runs in this thread, from its next turn on. The current turn still belongs to the
        start of the server.
        """
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._call = loop.call_soon(self._begin)

    def stop(self) -> None:
        """Stops watching."""
        if self._call is not None:
            self._call.cancel()
            self._worker.stop()

    def _begin(self) -> None:
        self._window_began_s = self._monotonic()
        self._wait()
        self._worker.start()

    def _wait(self) -> None:
        self._due_s = self._monotonic() + PERIOD_S
        self._used_s = self._cpu_s()
        self._call = self._loop.call_later(PERIOD_S, self._tick)

    def _tick(self) -> None:
        now_s, due_s = self._monotonic(), self._due_s
        took_s = now_s - due_s
        # The time since the last tick includes turns that ended before this tick was due.
        cpu_s = min(took_s, self._cpu_s() - self._used_s)
        if now_s - self._window_began_s > WINDOW_S:
            self._window_began_s = now_s
            self._longest_s = [0.0, self._longest_s[0]]
            self._longest_cpu_s = [0.0, self._longest_cpu_s[0]]
        self._longest_s[0] = max(self._longest_s[0], took_s)
        self._longest_cpu_s[0] = max(self._longest_cpu_s[0], cpu_s)
        if took_s > LIMIT_S:
            self._tell(took_s, cpu_s, now_s, due_s)
        self._wait()

    def _tell(self, took_s: float, cpu_s: float, now_s: float, due_s: float) -> None:
        self.slow_turns += 1
        if now_s - self._logged_s < LOG_INTERVAL_S:
            self._not_logged += 1
            return
        seen, self._seen = self._seen, None
        doing = seen[1] if seen is not None and seen[0] == due_s else "unknown"
        took_ms, cpu_ms = round(took_s * 1000), round(cpu_s * 1000)
        level = logging.WARNING if took_s >= WARN_S else logging.INFO
        event(logger, level, "long turn", took_ms=took_ms, cpu_ms=cpu_ms, doing=doing, not_logged=self._not_logged)
        self._logged_s, self._not_logged = now_s, 0

    def _look(self) -> None:
        """Called in the thread: finds out whether a tick is late, and why."""
        due_s, seen = self._due_s, self._seen
        if self._monotonic() - due_s > LIMIT_S / 2 and (seen is None or seen[0] != due_s):
            frame = current_frames().get(self._thread_id)
            self._seen = (due_s, _doing(frame))


def _doing(frame: FrameType | None) -> str:
    """Describes a stack: its innermost functions from this package, and the code of the request that is being
    served.
    """
    functions: list[str] = []
    code: object = None
    for _ in range(_FRAMES_MAX):
        if frame is None:
            break
        if "rucola" in frame.f_code.co_filename and len(functions) < 3:
            functions.append(frame.f_code.co_qualname)
        code = getattr(frame.f_locals.get("command"), "code", code)
        frame = frame.f_back
    request = "" if code is None else f"request {code}: "
    return request + (" < ".join(functions) or "not this broker's code")
