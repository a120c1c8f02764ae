"""Wakes pops when queues that are popped in order become free (RocketMQ 5.3.3, ``ConsumerOrderInfoLockManager``).

The last pop of a queue blocks the queue. Waiting pops are woken when the queue becomes free. An acknowledgement or a
change of an invisible time can make this moment earlier or later. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.pop.hold import PopHold
from rucola.broker.pop.order_info import OrderInfoManager
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.waiting_requests import Timer


class OrderLocks:
    """One timer for each blocked queue with a waiting pop.

    Args:
        call_later: the event loop's method, called with ``(seconds, callback, *args)``.
    """

    def __init__(
        self,
        orders: OrderInfoManager,
        hold: PopHold,
        wall_ms: Callable[[], int],
        call_later: Callable[..., Timer],
    ) -> None:
        self._orders = orders
        self._hold = hold
        self._wall_ms = wall_ms
        self._call_later = call_later
        self._timers: dict[PoppedQueue, Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def clock_moved(self) -> None:
        """Updates all timers, because the wall clock was changed."""
        for queue in list(self._timers):
            self.changed(queue)

    def changed(self, queue: PoppedQueue) -> None:
        """Updates the timer of a queue, because the queue was popped, its last pop changed, or a pop begins to wait."""
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if not self._hold.waits_for(*queue):
            return
        free_at_ms = self._orders.blocked_until_ms(queue, None, 0)
        if free_at_ms is None:
            self._hold.wake(*queue)
        else:
            # The wall clock may be changed during the wait, so the clock is read again when the wait is over.
            pause_s = max(free_at_ms - self._wall_ms(), 0) / 1000
            self._timers[queue] = self._call_later(pause_s, self.changed, queue)
