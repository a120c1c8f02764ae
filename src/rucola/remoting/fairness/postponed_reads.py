"""Serves requests that were put off in earlier turns (iterations) of the event loop. A connection need not wait until
all requests of another connection are served.

Connections wait in three groups: those whose last request was costly (``COSTLY_S``), those whose last read was
interrupted with many requests left, and all others. The third group gets half of the processor time of all groups,
and each of the first two gets a quarter. A client that sends few requests at a time, and no costly ones, therefore
hardly waits, even if many other connections send costly requests, or thousands of requests in one read. Inside a group,
the connections are served in the order of their arrival. A connection that still has requests goes to the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rucola.remoting.fairness.turn import TURN_S, Turn
from rucola.runtime.clock import thread_cpu_s

SLICE_S = 0.001
"""Seconds for one connection in one turn, if many connections of its group wait."""


class _Group:
    """Connections that share the fraction ``part`` of the processor time.

    Attributes:
        used_s: processor time that the group has used, in seconds, divided by ``part``. The group with the smallest
            value is served next.
    """

    def __init__(self, part: float) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.part = part
        self.used_s = 0.0


class PostponedReads:
    """The connections that wait for a later turn. Event loop only.

    Args:
        turn: the current turn of the server's event loop; when its time is up, the remaining connections keep waiting.
        cpu_s: processor time of the calling thread, in seconds.
    """

    def __init__(self, turn: Turn, cpu_s: Callable[[], float] = thread_cpu_s) -> None:
        self._turn = turn
        self._cpu_s = cpu_s
        self._short, self._begun, self._costly = self._groups = (_Group(0.5), _Group(0.25), _Group(0.25))
        self._used_s = 0.0
        """The value that ``used_s`` of the last served group had before the group was served."""
        self._is_due = False

    def add(self, serve: Callable[[], None], loop: asyncio.AbstractEventLoop, *, begun: bool, costly: bool) -> None:
        """Calls ``serve`` in a later turn.

        Args:
            serve: serves requests of one connection until ``Turn.note_request`` says that they must wait, but at least
                one request; may call ``add`` again.
            begun: whether the connection's last read was interrupted with many requests left.
            costly: see ``Channel.costly``.
        """
        group = self._costly if costly else self._begun if begun else self._short
        if not group.waiting:
            # A group gets no credit for time in which none of its connections waited.
            group.used_s = max(group.used_s, self._used_s)
        group.waiting.append(serve)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        # The turn begins here, before its new reads. Otherwise, new reads could use up the time of every turn, and the
        # connections that wait would never be served.
        self._turn.begin()
        try:
            self._serve_groups(loop)
        finally:
            self._turn.end_slice()
            self._is_due = any(group.waiting for group in self._groups)
            if self._is_due:
                loop.call_soon(self._serve, loop)

    def _serve_groups(self, loop: asyncio.AbstractEventLoop) -> None:
        used_s = self._cpu_s()
        while not self._turn.note_request(loop):
            group = min((each for each in self._groups if each.waiting), key=lambda each: each.used_s, default=None)
            if group is None:
                return
            serve = group.waiting.popleft()
            self._turn.begin_slice(loop, max(TURN_S / (1 + len(group.waiting)), SLICE_S))
            self._used_s = group.used_s
            try:
                serve()
            finally:
                before_s, used_s = used_s, self._cpu_s()
                group.used_s += (used_s - before_s) / group.part
                self._turn.end_slice()
