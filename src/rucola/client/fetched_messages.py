"""The fetched messages of a simple consumer: pops have brought them, and the application has not been given them.

They go to the next caller that asks. Messages that no caller and no loop waits for are given back after a second: their
invisible time is cut short, so that any consumer of the group can get them. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.common.message import MessageExt
from rucola.protocol.bodies.heartbeat import SubscriptionData

_UNCLAIMED_S = 1.0
"""How long messages wait for a caller before they are given back, in seconds."""


class Popped:
    """Messages of one pop that share their lease.

    Attributes:
        subscription: the subscription with which they were popped.
        messages: the messages.
        invisible_ms: their invisible time, in ms.
        visible_at: the event loop's time at which it ends.
        owner: the call that asked for them; None if it has left.
        free_since: the event loop's time since when they have no owner.
    """

    __slots__ = ("free_since", "invisible_ms", "messages", "owner", "subscription", "visible_at")

    def __init__(
        self, subscription: SubscriptionData, messages: list[MessageExt], invisible_ms: int, visible_at: float
    ) -> None:
        self.subscription, self.messages = subscription, messages
        self.invisible_ms, self.visible_at = invisible_ms, visible_at
        self.owner: object | None = None
        self.free_since = 0.0

    def is_as_wanted(self, invisible_ms: int, now: float) -> bool:
        """Whether the messages may be given to a call that asks for ``invisible_ms``. When half of their invisible time
        has passed, they must be hidden again first, because another consumer might get them soon.
        """
        return invisible_ms == self.invisible_ms and now < self.visible_at - self.invisible_ms / 2000

    def split(self, count: int) -> Popped:
        """Takes the first ``count`` messages out; returns them."""
        part = Popped(self.subscription, self.messages[:count], self.invisible_ms, self.visible_at)
        del self.messages[:count]
        return part


class FetchedMessages:
    """The messages, in the order of their pops.

    Args:
        give_back: gives messages back to the group; must not block.
        is_claimed: whether a loop will take the messages one by one, so that they stay here.
    """

    def __init__(self, give_back: Callable[[Popped], None], is_claimed: Callable[[], bool]) -> None:
        self._give_back = give_back
        self._is_claimed = is_claimed
        self._batches: list[Popped] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(popped.messages) for popped in self._batches)

    @property
    def has_free(self) -> bool:
        """Whether there are messages without an owner."""
        return any(popped.owner is None for popped in self._batches)

    def put(self, popped: Popped, owner: object | None) -> None:
        """Adds messages, for ``owner`` if it is not None."""
        self.drop_expired()
        popped.owner = owner
        self._batches.append(popped)
        if owner is None:
            self._free([popped])

    def available(self, owner: object) -> list[Popped]:
        """The messages that ``owner`` may take: its own and those without an owner."""
        self.drop_expired()
        return [popped for popped in self._batches if popped.owner is None or popped.owner is owner]

    def take_one(self, invisible_ms: int) -> tuple[MessageExt, float] | None:
        """Takes one message that has no owner and is hidden for ``invisible_ms``. Returns it and the event loop's time
        at which its invisible time ends; None if there is no such message.
        """
        now = asyncio.get_running_loop().time()
        for popped in self._batches:
            if popped.owner is None and popped.is_as_wanted(invisible_ms, now):
                message = popped.messages.pop(0)
                if not popped.messages:
                    self._batches.remove(popped)
                return message, popped.visible_at
        return None

    def take(self, popped: Popped, count: int) -> Popped:
        """Takes up to ``count`` messages out of ``popped``, which is one of these; returns them."""
        if count < len(popped.messages):
            return popped.split(count)
        self._batches.remove(popped)
        return popped

    def disown(self, owner: object) -> None:
        """Notes that ``owner`` has left: anybody may take its messages."""
        self._free([popped for popped in self._batches if popped.owner is owner])

    def unclaimed(self) -> None:
        """Notes that a loop has released its claim. If no other loop has one, messages are given back in a second."""
        self._free([popped for popped in self._batches if popped.owner is None])

    def drop_expired(self) -> None:
        """Forgets messages that the group gets again, because their invisible time has ended."""
        now = asyncio.get_running_loop().time()
        self._batches = [popped for popped in self._batches if now < popped.visible_at]

    def give_back_others(self, is_wanted: Callable[[SubscriptionData], bool]) -> None:
        """Gives back the messages of subscriptions that are not wanted."""
        self._return([popped for popped in self._batches if not is_wanted(popped.subscription)])

    def give_back_all(self) -> None:
        """Gives back all messages."""
        self._return(list(self._batches))

    def _free(self, batches: list[Popped]) -> None:
        now = asyncio.get_running_loop().time()
        for popped in batches:
            popped.owner, popped.free_since = None, now
        self._set_timer()

    def _set_timer(self) -> None:
        since = [popped.free_since for popped in self._batches if popped.owner is None]
        if since and self._timer is None and not self._is_claimed():
            self._timer = asyncio.get_running_loop().call_at(min(since) + _UNCLAIMED_S, self._give_back_unclaimed)

    def _give_back_unclaimed(self) -> None:
        self._timer = None
        if not self._is_claimed():
            # uvloop may call up to a millisecond too early.
            latest = asyncio.get_running_loop().time() - _UNCLAIMED_S + 0.001
            self._return([one for one in self._batches if one.owner is None and one.free_since <= latest])
        self._set_timer()

    def _return(self, returned: list[Popped]) -> None:
        self._batches = [popped for popped in self._batches if popped not in returned]
        for popped in returned:
            self._give_back(popped)
