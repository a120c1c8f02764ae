"""Decides which client gets the messages of which lite topic (RocketMQ 5.5.0, ``LiteEventDispatcher``). Event loop
only; no I/O, no tasks, and no clock: the time comes as an argument, in monotonic ms.

An *event* says that a lite topic has messages for a group. Each subscribed lite topic has at most one event in a group.
It belongs to one client, which loses it when it takes it; in a wildcard group it belongs to all clients together. The
invariant, without which a session stands still:

    For each lite topic with unread messages that no block hides, and with a subscriber, there is an event, or a scan
    that has not reached it, or it is being popped; and a client with an event has no waiting pop.

So whatever can make messages deliverable ends in ``ready``: an arrival, an acknowledgement, the end of a lease, a
subscription, a new offset, the end of the client that had the event. A superfluous event costs one look.

RocketMQ limits the events of a client, and looks through all its lite topics again 10 s after one found no room. Here,
one has as many events as lite topics, so none is turned away; the limit only says when others are preferred. In a
wildcard group, which reads any number of lite topics, ``READY_MAX`` events wait, and a scan finds the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rucola.broker.lite.order_block import OrderBlock
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup, ReadingGroups
from rucola.remoting.fairness.steps import Steps
from rucola.runtime.due_times import DueTimes

if TYPE_CHECKING:
    from rucola.broker.pop.hold import WaitingPop
    from rucola.store.lite.lite_topics import LiteSlice

READY_MAX = 65_536
"""Number of events that wait in a wildcard group."""
SILENT_MS = 35_000
"""A client that has not polled for so long gets no events if others can have them."""
SILENT_WITH_EVENTS_MS = 10_000
"""The same for a client that has events."""
_BLOCKS_MAX = 65_536
"""Number of blocks of a group above which those whose lease has ended are dropped: their messages count anew."""
_LIVING_LOOKED_AT = 8
"""Number of living clients of a lite topic from which the one for an event is chosen."""
_ROWS_A_STEP, _FOUND_A_STEP = 16_384, 1024
_NAMES_A_STEP = 64


class Unread(Protocol):
    """What the dispatcher asks about messages."""

    def has_unread(self, group: str, name: bytes) -> bool:
        """Whether a lite topic has messages that the group has not consumed."""

    def names_of(self, parent: bytes, first: int, rows_max: int) -> LiteSlice:
        """Returns lite topics of a parent; see ``LiteTopics.names_of``."""


class _Scan:
    """A look through all lite topics of a wildcard group; ``row`` is where it goes on in the store's names."""

    __slots__ = ("row",)

    def __init__(self) -> None:
        self.row = 0


class LiteEventDispatcher:
    """The events of all groups.

    Args:
        random_below: returns a random number from 0 to below its argument.
        events_max: events of one client from which on other clients are preferred, unless its group says it.

    Attributes:
        woken: pops whose wait has ended; the caller takes them out and runs them.
    """

    def __init__(
        self,
        groups: ReadingGroups,
        unread: Unread,
        random_below: Callable[[int], int],
        events_max: int,
    ) -> None:
        self.woken: list[WaitingPop] = []
        self._groups = groups
        self._unread = unread
        self._random_below = random_below
        self._events_max = events_max
        self._leases: DueTimes[tuple[ReadingGroup, bytes], int] = DueTimes()
        self._ended_ms = 0
        """LiteLeases that ended up to this time are over."""
        self._scans: dict[ReadingGroup, _Scan] = {}
        """The scans of wildcard groups that are not complete."""
        self._missed: set[ReadingGroup] = set()
        """Groups that had no room for an event since their scan began."""

    # -- what makes messages deliverable -------------------------------------------------------------------------------

    def arrived(self, name: bytes, now_ms: int) -> None:
        """A lite topic has a new message."""
        for group in self._groups.of_parent(name.partition(b"$")[0]):
            self.ready(group, name, now_ms)

    def ready(self, group: ReadingGroup, name: bytes, now_ms: int) -> None:
        """A lite topic may have messages for a group: gives it an event, if somebody wants it and no block hides it."""
        if self.is_blocked(group, name, now_ms):
            return
        if group.settings.wildcard:
            self._ready_for_all(group, name)
            return
        holders = group.holders.get(name)
        if holders is None:
            return
        owner = group.owners.get(name)
        if owner is not None and not owner.is_aside:
            return
        client = holders if isinstance(holders, LiteClient) else self._choose(holders)
        if client is not owner:
            self._give(group, name, owner, client)

    def ready_if_unread(self, group: ReadingGroup, name: bytes, now_ms: int) -> None:
        """Like ``ready``, for a lite topic that may have no unread messages."""
        if self._unread.has_unread(group.name, name):
            self.ready(group, name, now_ms)

    def _ready_for_all(self, group: ReadingGroup, name: bytes) -> None:
        if name in group.ready:
            return
        if len(group.ready) >= READY_MAX:
            self._missed.add(group)
            self._scans.setdefault(group, _Scan())
            return
        group.ready[name] = None
        self._wake_any(group)

    def _choose(self, holders: tuple[LiteClient, ...]) -> LiteClient:
        """Returns the client that gets an event: one that polls, has room, and waits, if there is one."""
        start, count, looked = self._random_below(len(holders)), len(holders), 0
        best, best_rank = holders[start], (True, True, True)
        for step in range(count):
            client = holders[(start + step) % count]
            if client.is_aside:
                continue
            rank = False, len(client.events) >= self._events_max_of(client.group), not client.waiters
            if rank < best_rank:
                best, best_rank = client, rank
            looked += 1
            if looked == _LIVING_LOOKED_AT or not any(rank):
                break
        return best

    def _give(self, group: ReadingGroup, name: bytes, before: LiteClient | None, client: LiteClient) -> None:
        if before is not None:
            before.events.pop(name, None)
        client.events[name] = None
        group.owners[name] = client
        self._wake(client)

    def _events_max_of(self, group: ReadingGroup) -> int:
        return group.settings.events_max or self._events_max

    # -- pops ----------------------------------------------------------------------------------------------------------

    def take(self, client: LiteClient, now_ms: int) -> bytes | None:
        """Takes the next event of a client; returns its name, None if the client has none."""
        group = client.group
        while client.events:
            name, _ = client.events.popitem(last=False)
            del group.owners[name]
            if not self.is_blocked(group, name, now_ms):
                return name
        if group.settings.wildcard and client.is_subscribed:
            while group.ready:
                name, _ = group.ready.popitem(last=False)
                if not self.is_blocked(group, name, now_ms):
                    return name
        return None

    def put_back(self, client: LiteClient, name: bytes) -> None:
        """Gives back an event whose messages could not be read now; it comes first again. Wakes no pop of ``client``.
        If the client has unsubscribed meanwhile, another one gets the event.
        """
        group = client.group
        if group.settings.wildcard:
            group.ready[name] = None
            group.ready.move_to_end(name, last=False)
        elif name in group.holders and name not in group.owners:
            owner = client if client in group.holders_of(name) else self._choose(group.holders_of(name))
            owner.events[name] = None
            owner.events.move_to_end(name, last=False)
            group.owners[name] = owner
            if owner is not client:
                self._wake(owner)

    def polled(self, client: LiteClient, now_ms: int) -> None:
        """A client has asked for messages."""
        client.polled_ms = now_ms
        client.is_aside = False

    def wait(self, client: LiteClient, waiter: WaitingPop) -> None:
        """A pop of a client begins to wait."""
        client.waiters[waiter] = None
        if client.group.settings.wildcard and client.is_subscribed:
            client.group.waiting[client] = None
        self.settle(client)

    def leave(self, client: LiteClient, waiter: WaitingPop, now_ms: int) -> None:
        """A pop of a client waits no longer, for another reason than an event."""
        if waiter in client.waiters:
            del client.waiters[waiter]
            self.polled(client, now_ms)
            if not client.waiters:
                client.group.waiting.pop(client, None)

    def settle(self, client: LiteClient) -> None:
        """Wakes a further pop if there are events for it: after a pop has ended, whatever it got."""
        group = client.group
        if client.events:
            self._wake(client)
        if group.ready:
            self._wake_any(group)

    def _wake(self, client: LiteClient) -> None:
        if client.waiters:
            waiter = next(iter(client.waiters))
            del client.waiters[waiter]
            self.woken.append(waiter)
            if not client.waiters:
                client.group.waiting.pop(client, None)

    def _wake_any(self, group: ReadingGroup) -> None:
        if group.waiting:
            client = next(iter(group.waiting))
            group.waiting.move_to_end(client)
            self._wake(client)

    def _end_waits(self, client: LiteClient) -> None:
        self.woken += client.waiters
        client.waiters.clear()
        client.group.waiting.pop(client, None)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def is_blocked(self, group: ReadingGroup, name: bytes, now_ms: int) -> bool:
        """Whether the last pop of a lite topic hides its messages from the group. ``now_ms`` may be the time at which
        long steps began: what was unblocked since then stays so, because nothing else would end it.
        """
        block = group.blocks.get(name)
        return block is not None and max(now_ms, self._ended_ms) < block.free_ms

    def block(self, group: ReadingGroup, name: bytes, block: OrderBlock) -> None:
        """Notes a pop, in place of the one before."""
        group.blocks[name] = block
        self._leases.set((group, name), block.free_ms)

    def block_changed(self, group: ReadingGroup, name: bytes, now_ms: int) -> None:
        """The block of a lite topic was acknowledged, or its lease changed."""
        block = group.blocks[name]
        if block.is_over():
            self.unblock(group, name)
        elif block.free_ms > now_ms:
            self._leases.set((group, name), block.free_ms)
            return
        self.ready_if_unread(group, name, now_ms)

    def unblock(self, group: ReadingGroup, name: bytes) -> None:
        """Forgets the last pop of a lite topic."""
        if group.blocks.pop(name, None) is not None:
            self._leases.drop((group, name))

    def look_again(self, group: ReadingGroup, name: bytes, at_ms: int) -> None:
        """Looks at a lite topic again later, because its messages cannot be read now."""
        if name not in group.blocks:
            self._leases.set((group, name), at_ms)

    @property
    def lease_count(self) -> int:
        """Number of leases that have not ended."""
        return len(self._leases)

    def next_ms(self) -> int | None:
        """Returns when the next lease ends; None if there is none."""
        return self._leases.next_due()

    def end_leases(self, now_ms: int, count_max: int = 256) -> None:
        """Makes messages deliverable whose leases have ended, at most so many."""
        self._ended_ms = max(self._ended_ms, now_ms)
        for _ in range(count_max):
            due = self._leases.take(now_ms)
            if due is None:
                return
            group, name = due
            if len(group.blocks) > _BLOCKS_MAX or not (group.settings.wildcard or name in group.holders):
                group.blocks.pop(name, None)
            self.ready_if_unread(group, name, now_ms)

    # -- clients and names come and go ---------------------------------------------------------------------------------

    def subscribed(self, client: LiteClient, name: bytes, now_ms: int) -> None:
        """A client has subscribed to a lite topic."""
        client.group.add_holder(name, client)
        self.ready_if_unread(client.group, name, now_ms)

    def unsubscribed(self, client: LiteClient, name: bytes, now_ms: int) -> None:
        """A client no longer subscribes to a lite topic; others get its event."""
        group = client.group
        group.remove_holder(name, client)
        if group.owners.get(name) is client:
            del group.owners[name], client.events[name]
            self.ready(group, name, now_ms)

    def joined(self, client: LiteClient) -> None:
        """A client subscribes to all lite topics of its wildcard group."""
        client.is_subscribed = True
        if client.waiters:
            client.group.waiting[client] = None
        if sum(each.is_subscribed for each in client.group.clients.values()) == 1:
            self.scan(client.group)  # before, no event was kept
        self.settle(client)

    def left(self, client: LiteClient) -> None:
        """A client has ended, except for its names: its pops run again."""
        group = client.group
        self._end_waits(client)
        if not any(each.is_subscribed for each in group.clients.values()):
            group.ready.clear()
            self._scans.pop(group, None)
            self._missed.discard(group)

    def forget(self, group: ReadingGroup, name: bytes) -> None:
        """A lite topic was deleted: it has neither events nor blocks."""
        self.unblock(group, name)
        group.ready.pop(name, None)
        owner = group.owners.pop(name, None)
        if owner is not None:
            del owner.events[name]
        group.moved.discard(name)

    def drop(self, group: ReadingGroup) -> None:
        """A group was deleted: the pops of its clients run again."""
        for client in group.clients.values():
            self._end_waits(client)
        for name in list(group.blocks):
            self.unblock(group, name)
        self._scans.pop(group, None)
        self._missed.discard(group)

    def move_from_silent(self, now_ms: int) -> Steps[None]:
        """Gives events of clients that do not poll to others; called every ``liteEventCheckInterval``."""
        for group in self._groups:
            for client in list(group.clients.values()):
                idle_ms = 0 if client.waiters else now_ms - client.polled_ms
                if idle_ms >= SILENT_MS or (client.events and idle_ms >= SILENT_WITH_EVENTS_MS):
                    client.is_aside = True
                    yield from self.move(client, now_ms)
            yield

    def move(self, client: LiteClient, now_ms: int) -> Steps[None]:
        """Gives the events of a client that was put aside to others, as far as others can have them."""
        for number, name in enumerate(list(client.events), 1):
            if client.is_aside and client.group.owners.get(name) is client:
                self.ready(client.group, name, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    # -- looking through all lite topics -------------------------------------------------------------------------------

    def look_through(self, client: LiteClient, now_ms: int) -> Steps[None]:
        """Gives each unread lite topic of a client an event (request 200079)."""
        if client.group.settings.wildcard:
            self.scan(client.group)
        for number, name in enumerate(list(client.names), 1):
            if name in client.names:
                self.ready_if_unread(client.group, name, now_ms)
            if number % _NAMES_A_STEP == 0:
                yield

    def scan(self, group: ReadingGroup) -> None:
        """Begins to look through all lite topics of a wildcard group; ``scan_some`` does it."""
        self._scans[group] = _Scan()
        self._missed.discard(group)

    def scan_due(self) -> ReadingGroup | None:
        """Returns a group whose scan can go on; None if there is none."""
        return next((group for group in self._scans if len(group.ready) <= READY_MAX // 2), None)

    def scan_some(self, group: ReadingGroup, now_ms: int) -> Steps[None]:
        """Goes on with a scan, until it is complete or there is no room for more events."""
        parent, scan = group.settings.bind_topic.encode(), self._scans.get(group)
        while scan is not None and len(group.ready) <= READY_MAX - _FOUND_A_STEP:
            if scan.row == 0:
                self._missed.discard(group)
            found = self._unread.names_of(parent, scan.row, _ROWS_A_STEP)
            for number, name in enumerate(found.names, 1):
                self.ready_if_unread(group, name, now_ms)
                if number % _NAMES_A_STEP == 0:
                    yield
            if self._scans.get(group) is not scan:
                return  # another scan began meanwhile, or the last client has gone
            if found.following is None and group not in self._missed:
                del self._scans[group]
                return
            scan.row = found.following or 0
            yield
            if self._scans.get(group) is not scan:
                return

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def block_count(self) -> int:
        """Number of pops that are not over."""
        return sum(len(group.blocks) for group in self._groups)

    @property
    def event_count(self) -> int:
        """Number of events."""
        return sum(len(group.owners) + len(group.ready) for group in self._groups)
