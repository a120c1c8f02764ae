"""Limits the time that a server's requests may take in one turn (iteration) of the event loop.

One read of a socket can contain thousands of requests. One call of a Cython kernel stores the messages of many sends,
so the time is checked only once for a number of sends. Most other requests are processed one by one, and the time is
checked after each of them. When the time of a turn is up, or the responses of a connection become large, the remaining
requests wait for a later turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.runtime.clock import thread_cpu_s

TURN_S = 0.01
"""Seconds of one turn, for all connections together. A request that has begun is always finished."""
LONG_S = 0.015
"""When a turn has taken this number of seconds and has served the requests of ``SERVED_READS`` reads, the requests of
further reads wait. Otherwise, thousands of connections would each get one request served in the same turn.
"""
SERVED_READS = 64
"""In a turn that takes longer than ``LONG_S``, the requests of this number of reads are still served, unless the turn
takes longer than ``TOO_LONG_S``.
"""
TOO_LONG_S = 0.025
"""When a turn has taken this number of seconds, the requests of further reads wait, however few reads it has served."""
ANSWER_BYTES = 1024 * 1024
"""Size of the collected responses of a connection above which its further requests wait for the next turn."""
COSTLY_S = 0.002
"""In a turn whose time is up, the first requests of a new read may still be served, but not if the last request of the
same connection used more than this number of seconds of processor time. Otherwise, each of many connections could get
one costly request served per turn.
"""
TASK_S = 0.0001
"""Seconds that a request takes of its turn if a task serves it, because the task runs in the next turn."""
_LOOK_S = 0.001
"""Minimum number of seconds between two queries of the processor time: a query costs as much as a short request."""
_UNSEEN_S = 0.001
"""Minimum number of seconds between the starts of two measured turns. Shorter turns are not measured one by one: a
callback ends each measurement, and this callback costs the loop an extra iteration.
"""
_UNSEEN_READS_S = 0.004
"""As ``_UNSEEN_S``, but for ``note_read``."""


class Turn:
    """The current turn of the event loop. Only code that runs on this loop may call the methods.

    Args:
        cpu_s: returns the processor time of the calling thread, in seconds.
    """

    def __init__(self, cpu_s: Callable[[], float] = thread_cpu_s) -> None:
        self._cpu_s = cpu_s
        self._used_s = 0.0
        """Processor time of the thread at the time ``_looked_s``."""
        self._looked_s = float("-inf")
        self._began_s = float("-inf")
        self._is_seen = False
        self._number = 0
        """Number of turns begun by ``begin``."""
        self._reads = 0
        self._first_read_s = float("-inf")
        self._slice_ends_s = float("inf")
        self._listener: Callable[[], None] | None = None
        self.is_crowded = False
        """True if ``note_read`` returned True in this turn. Further reads should then be small, because reading and
        keeping requests that must wait takes time, too.
        """

    def on_reads(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` at the first read of a turn, but not more often than turns are measured."""
        self._listener = listener

    def begin(self) -> None:
        """Begins a turn. ``PostponedReads`` calls this in a callback that the previous turn scheduled, so the previous
        turn is over. If a call of ``_end`` from the previous turn has not run yet, that call will do nothing.
        """
        self._number += 1
        self._is_seen = False

    def note_request(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Notes that one more request could be served. The first note in a turn starts the time of the turn.

        Returns:
            Whether the request must wait for a later turn: the requests of this turn have used up its time, or the
            requests of one connection have used up that connection's slice.
        """
        now_s = loop.time()
        if self._is_seen:
            return now_s - self._began_s > TURN_S or now_s > self._slice_ends_s
        if now_s - self._began_s > _UNSEEN_S:
            self._began_s, self._is_seen = now_s, True
            loop.call_soon(self._end, self._number)  # runs before the reads of the next turn
        return False

    def note_read(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Notes one more read of a socket; returns whether its requests should wait for a later turn."""
        now_s = loop.time()
        if now_s - self._looked_s >= _LOOK_S:  # the code of _look, repeated to save a call for each read
            self._used_s, self._looked_s = self._cpu_s(), now_s
        if self._reads:
            self._reads += 1
            took_s = now_s - self._first_read_s
            self.is_crowded = self._reads > SERVED_READS and took_s > LONG_S
            return self.is_crowded or took_s > TOO_LONG_S
        if now_s - self._first_read_s > _UNSEEN_READS_S:
            self._first_read_s, self._reads = now_s, 1
            loop.call_soon(self._end_reads)
            if self._listener is not None:
                self._listener()
        return False

    def note_task(self) -> None:
        """Notes that a task will serve a request of this turn."""
        self._began_s -= TASK_S
        self._first_read_s -= TASK_S

    def was_costly(self, took_s: float, loop: asyncio.AbstractEventLoop) -> bool:
        """True if the request that has just ended used more than ``COSTLY_S`` seconds of processor time; by the clock,
        it took ``took_s`` seconds.

        On a busy machine, requests that use little processor time also take long by the clock. The thread is assumed to
        have run without a break from the last query of its processor time to the start of the request.
        """
        now_s = loop.time()
        if took_s <= COSTLY_S:
            self._look(now_s)
            return False
        before_s, earlier_s = self._used_s, max(0.0, now_s - took_s - self._looked_s)
        self._used_s, self._looked_s = self._cpu_s(), now_s
        return self._used_s - before_s - earlier_s > COSTLY_S

    def begin_slice(self, loop: asyncio.AbstractEventLoop, time_s: float) -> None:
        """Gives the next requests ``time_s`` seconds of this turn."""
        now_s = loop.time()
        self._look(now_s)
        self._slice_ends_s = now_s + time_s

    def end_slice(self) -> None:
        """Gives the next requests the rest of this turn."""
        self._slice_ends_s = float("inf")

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s >= _LOOK_S:
            self._used_s, self._looked_s = self._cpu_s(), now_s

    def _end(self, number: int) -> None:
        if number == self._number:
            self._is_seen = False

    def _end_reads(self) -> None:
        self._reads = 0
        self.is_crowded = False
