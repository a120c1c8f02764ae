"""Measures how long turns (iterations) of an event loop take; a turn serves some clients while all others wait.

While there is work, the loop runs a tick at regular intervals, which records the time. A late tick means that a long
turn delayed it. Thus the watch costs nothing per message. If a turn is still running when a tick is late, a thread
reads from the loop's stack what the turn is doing, at most once for each turn. A turn that ends within ``PERIOD_S`` may
go unnoticed; the measured length of other turns is exact to ``PERIOD_S``.

Reads and tasks say that there is work (``expect_work``); ``QUIET_S`` after the last of them, ticks and thread rest.
The time of periodic work that is a plain function is measured (``timed``), so that no tick need be due while it runs.

A turn that takes long but uses little processor time has waited for the disk, or for a processor that other threads
use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TypeVar

from rucola.runtime.background import Worker
from rucola.runtime.clock import thread_cpu_s
from rucola.runtime.frames import current_frames
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
T = TypeVar("T")

PERIOD_S = 0.02
LIMIT_S = 0.05
"""Turns that take more seconds than this are counted and logged."""
QUIET_S = 1.0
"""Seconds after the last read for which the watch goes on."""
TASK_S = 0.04
"""As ``QUIET_S``, after the start of a periodic task, whose turns follow each other at once. Some tasks run each second."""
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
        self._is_running = False
        self._until_s = 0.0
        """When the ticks end, unless more work comes."""
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
        return max(self._recent(self._longest_s))

    @property
    def longest_cpu_s(self) -> float:
        """Largest processor time of one turn in the last one to two minutes, in seconds; exact to ``PERIOD_S``."""
        return max(self._recent(self._longest_cpu_s))

    def _recent(self, longest_s: list[float]) -> list[float]:
        """What is left of the two intervals."""
        passed = int((self._monotonic() - self._window_began_s) / WINDOW_S)
        return longest_s if passed <= 0 else [0.0, longest_s[0]] if passed == 1 else [0.0, 0.0]

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
        if self._is_running:
            self._is_running = False
            self._worker.stop()

    def expect_work(self, seconds: float = QUIET_S) -> None:
        """Watches the current turn and those of the next ``seconds``."""
        if not self._is_running:
            return
        now_s = self._monotonic()
        self._until_s = max(self._until_s, now_s + seconds)
        if self._call is None:
            self._wait()
            self._worker.wake()

    def timed(self, name: str, work: Callable[[], T]) -> T:
        """Returns the result of ``work``, whose time is noted even if no tick is due. If the result is a coroutine, a
        task will run it, and ticks watch that.
        """
        began_s, used_s = self._monotonic(), self._cpu_s()
        try:
            result = work()
        finally:
            took_s = self._monotonic() - began_s
            if self._is_running and self._call is None and took_s > PERIOD_S:
                self._note(took_s, self._cpu_s() - used_s, lambda: f"work {name}")
        if isinstance(result, Coroutine):
            self.expect_work(TASK_S)
        return result

    def _begin(self) -> None:
        self._call = None
        self._is_running = True
        self._window_began_s = self._monotonic()
        self._worker.start()
        self.expect_work()

    def _wait(self) -> None:
        self._due_s = self._monotonic() + PERIOD_S
        self._used_s = self._cpu_s()
        self._call = self._loop.call_later(PERIOD_S, self._tick)

    def _tick(self) -> None:
        now_s, due_s = self._monotonic(), self._due_s
        took_s = now_s - due_s
        # The time since the last tick includes turns that ended before this tick was due.
        self._note(took_s, min(took_s, self._cpu_s() - self._used_s), lambda: self._doing_at(due_s))
        if now_s < self._until_s:
            self._wait()
        else:
            self._call = None
            self._worker.rest()

    def _note(self, took_s: float, cpu_s: float, doing: Callable[[], str]) -> None:
        now_s = self._monotonic()
        if now_s - self._window_began_s > WINDOW_S:
            self._longest_s = list(self._recent(self._longest_s))
            self._longest_cpu_s = list(self._recent(self._longest_cpu_s))
            self._window_began_s = now_s
        self._longest_s[0] = max(self._longest_s[0], took_s)
        self._longest_cpu_s[0] = max(self._longest_cpu_s[0], cpu_s)
        if took_s > LIMIT_S:
            self._tell(took_s, cpu_s, now_s, doing)

    def _tell(self, took_s: float, cpu_s: float, now_s: float, doing: Callable[[], str]) -> None:
        self.slow_turns += 1
        if now_s - self._logged_s < LOG_INTERVAL_S:
            self._not_logged += 1
            return
        took_ms, cpu_ms = round(took_s * 1000), round(cpu_s * 1000)
        level = logging.WARNING if took_s >= WARN_S else logging.INFO
        event(logger, level, "long turn", took_ms=took_ms, cpu_ms=cpu_ms, doing=doing(), not_logged=self._not_logged)
        self._logged_s, self._not_logged = now_s, 0

    def _doing_at(self, due_s: float) -> str:
        """What the thread has seen when the tick of ``due_s`` was late."""
        seen, self._seen = self._seen, None
        return seen[1] if seen is not None and seen[0] == due_s else "unknown"

    def _look(self) -> None:
        """Called in the thread: finds out whether a tick is late, and why."""
        due_s, seen = self._due_s, self._seen
        if self._call is not None and self._monotonic() - due_s > LIMIT_S / 2 and (seen is None or seen[0] != due_s):
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
