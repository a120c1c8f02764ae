"""How long ago a client created a POP request, although nobody knows how its clock differs from the broker's. Event
loop only.

A request carries the time of its creation by the client's wall clock. A request whose time has passed before it is
served must not pop messages, because its client no longer waits for them. RocketMQ compares the client's time with its
own wall clock. It therefore refuses all pops of clients whose clocks are behind, and all pops while its own clock is
ahead. Here, a request is compared with the fastest request of the same connection, by the monotonic clock. Only the
first request of a connection is judged by the wall clock. If the client's clock is set back far, one request is
refused, and the next ones are compared with that one. After a small step, some requests wait for a shorter time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rucola.remoting.channel import Channel

TOO_LATE_MS: Final = 500
"""A request is refused if its client has stopped waiting for it this long ago."""
BORN_TIME: Final = "bornTime"
"""The field with the client's time; requests without it count as created when they arrive."""
_LEARNED: Final = 8
"""If a request is slower than the fastest one, but not too late, the distance of the clocks grows by this part."""


class RequestAges:
    """Knows the distance between the clocks of each connection and the broker's monotonic clock.

    Args:
        monotonic: returns monotonic seconds.
        peers_ms: the wall clock, which the client of a new connection is assumed to share.
    """

    def __init__(self, monotonic: Callable[[], float], peers_ms: Callable[[], int]) -> None:
        self._monotonic = monotonic
        self._peers_ms = peers_ms
        self._least_ms: dict[Channel, int] = {}

    def now_ms(self) -> int:
        """The monotonic time in ms."""
        return round(self._monotonic() * 1000)

    def began_ms(self, channel: Channel, born_ms: int, poll_ms: int) -> int:
        """Returns when a request that has just arrived was created, as a monotonic time in ms.

        Args:
            born_ms: the client's time of creation; 0 for now.
            poll_ms: how long the client waits for the response.
        """
        now_ms = self.now_ms()
        return now_ms - (self._age_ms(channel, now_ms, born_ms, poll_ms) if born_ms else 0)

    def is_too_late(self, began_ms: int, poll_ms: int) -> bool:
        """Whether the client no longer waits for the response."""
        return self.now_ms() - began_ms - poll_ms > TOO_LATE_MS

    def channel_closed(self, channel: Channel) -> None:
        """Forgets a closed connection."""
        self._least_ms.pop(channel, None)

    def _age_ms(self, channel: Channel, now_ms: int, born_ms: int, poll_ms: int) -> int:
        distance_ms = now_ms - born_ms
        least_ms = self._least_ms.get(channel)
        if least_ms is None:
            if not channel.closed:
                self._least_ms[channel] = distance_ms
            return max(self._peers_ms() - born_ms, 0)
        age_ms = max(distance_ms - least_ms, 0)
        is_late = age_ms - poll_ms > TOO_LATE_MS
        self._least_ms[channel] = distance_ms if is_late else min(distance_ms, least_ms + age_ms // _LEARNED)
        return age_ms
