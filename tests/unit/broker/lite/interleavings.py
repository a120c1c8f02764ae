"""The workers of lite topics, interleaved: a sender, clients that pop and acknowledge, one that subscribes anew all the
time, one that is silent, and the worker of long steps. Each runs as a task of an ``Interleaver``; a turn of the event
loop is what lies between two of its points. The clock is stepped, and only while nobody has anything to do.

So a lost wake-up shows at once: if time is about to pass while a lite topic has unread messages that no block hides,
nobody will come for them. Only those whose event is with the silent client may stay until the look for such clients.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast

from tests.unit.broker.lite.delivery_world import GROUPS, NAMES, FakeStore, Name

from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.leases import LiteLeases
from rucola.broker.lite.pop import LitePop, LitePopReader
from rucola.broker.lite.reading_group import LiteClient, ReadingGroups
from rucola.broker.lite.subscriptions import LiteSubscriptions, Start, StartAt
from rucola.broker.shares import Shares
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader
from rucola.remoting.fairness.steps import Steps
from rucola.testing.interleaver import Interleaver, Task

CHECK_MS = 10_000
SILENT_MS_MAX = 4 * CHECK_MS + 5000
"""35 s without a poll, then the next look."""
OVER_MS = 400_000
_POLLS, _SENDS, _CHANGES = 6, 8, 6


class LostWakeUpError(AssertionError):
    """Messages stand still."""


class Waiter:
    """A pop that waits."""

    def __init__(self) -> None:
        self.is_woken = False


class Room:
    """The workers of one group.

    Args:
        settings: name of the group in ``GROUPS``.
        plant: breaks the rules.
    """

    def __init__(self, seed: int, settings: str, plant: Callable[[Any], None] = lambda _: None) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.deliveries = 0
        self.over = False
        self.names: list[Name] = NAMES[:3]
        self.interleaver = Interleaver(Random(seed), 0.6)
        self.store = FakeStore(self.random)
        self.groups = ReadingGroups()
        self.dispatcher = LiteEventDispatcher(self.groups, self.store, self.random.randrange, 4)
        self.rules = LiteLeases(self.dispatcher, self.store)
        clients, names = Shares(1000, 1000, 0), Shares(1000, 1000, 0)
        self.subscriptions = LiteSubscriptions(
            self.groups, self.dispatcher, self.rules, self.store, clients, names, lambda *_: None, self.store.now_ms
        )
        self.reader = LitePopReader(cast("Any", self.store), self.dispatcher, self.rules, lambda: self.now_ms)
        self.group = self.groups.make(settings, GROUPS[settings])
        self._steps: list[Steps[None]] = []
        self._unread_since: dict[bytes, int] = {}
        self._checked_ms = 0
        self._turning: set[Task] = set()
        plant(self)

    def run(self) -> None:
        """Lets all work, and time pass.

        Raises:
            LostWakeUpError: messages stand still.
        """
        start = self.interleaver.start
        start("sender", self._send)
        start("first", lambda: self._pop("a"))
        start("second", lambda: self._pop("b"))
        start("second pop of first", lambda: self._pop("a"))
        start("subscriber", self._subscribe)
        start("steps", self._work)
        while not self.over:
            self.interleaver.wait(self._is_idle)
            self._pass_time()
        self.interleaver.finish()

    def _is_idle(self) -> bool:
        """Whether nobody has anything to do. The task that asks before it waits has nothing to do, either."""
        first, current = self.interleaver._first, self.interleaver._current
        others = (task for task in self.interleaver._tasks if task is not first and task is not current)
        return current not in self._turning and not any(task.may_go_on for task in others)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _turn_ends(self) -> None:
        """What follows from a change at once; others may have the next turn."""
        woken, self.dispatcher.woken = self.dispatcher.woken, []
        for waiter in cast("list[Any]", woken):
            waiter.is_woken = True
        self.subscriptions.notices.clear()
        task = self.interleaver._current
        self._turning.add(task)
        self.interleaver.point()
        self._turning.discard(task)

    def _do(self, steps: Steps[None]) -> None:
        for _ in steps:
            self._turn_ends()
        self._turn_ends()

    def _send(self) -> None:
        for number in range(_SENDS):
            name = self.random.choice(self.names)
            self.store.put(name)
            self._turn_ends()
            self.dispatcher.arrived(name, self.now_ms)
            self._turn_ends()
            if number % 3 == 2:
                self._sleep(self.random.choice((100, 7000, 45_000)))

    def _sleep(self, milliseconds: int) -> None:
        until_ms = self.now_ms + milliseconds
        self.interleaver.wait(lambda: self.now_ms >= until_ms or self.over)

    def _client(self, client_id: str) -> LiteClient:
        return self.subscriptions.client(self.group, client_id, "", self.now_ms)

    def _join(self, client: LiteClient) -> None:
        if self.group.settings.wildcard:
            self.subscriptions.join(client, self.now_ms)
            self._turn_ends()
        else:
            self._do(self.subscriptions.partial_add(client, self.names, Start(), self.now_ms))

    def _pop(self, client_id: str) -> None:
        if client_id == "a" or not self.group.settings.exclusive:
            self._join(self._client(client_id))
        polls, waited_for = 0, frozenset[bytes]()
        while not self.over:
            polls = polls + 1
            if polls < _POLLS and self.random.random() < 0.15 and not self.group.settings.exclusive:
                self._do(self.subscriptions.complete_remove(self._client(client_id), self.now_ms))
                self._join(self._client(client_id))
            client = self._client(client_id)
            header = PopLiteMessageRequestHeader(
                client_id, self.group.name, "p", self.random.choice((1, 8)), 5000, 20_000, 0, None
            )
            self.dispatcher.polled(client, self.now_ms)
            self.store.wall_ms += 1
            pop = LitePop(header, client, self.now_ms, waited_for)
            self.reader.read(pop)
            waiter = Waiter()
            if not pop.count and pop.cold is None:
                self.dispatcher.wait(client, cast("Any", waiter))
            self.dispatcher.settle(client)
            self.subscriptions.release(client)
            self._turn_ends()
            waited_for = pop.waited_for if not pop.count else frozenset()
            if pop.count:
                self.deliveries += pop.count
                self._finish(pop, always=polls > _POLLS)
            elif pop.cold is None:
                self.interleaver.wait(lambda waiter=waiter: waiter.is_woken or self.over)  # type: ignore[misc]

    def _finish(self, pop: LitePop, always: bool) -> None:
        """Acknowledges a batch, gives it back, or lets its lease end."""
        choice = "acknowledge" if always else self.random.choice(("acknowledge", "leave", "hide", "suspend"))
        for name, offsets in pop.batches:
            for offset in offsets:
                if choice == "acknowledge":
                    self.rules.acknowledge(self.group, name, offset, pop.pop_time_ms, self.now_ms)
                elif choice == "hide":
                    self.rules.hide(self.group, name, offset, pop.pop_time_ms, self.now_ms, self.now_ms)
                elif choice == "suspend":
                    visible_ms = self.now_ms + 300
                    self.rules.suspend(self.group, name, offset, pop.pop_time_ms, self.now_ms, visible_ms)
                self._turn_ends()

    def _subscribe(self) -> None:
        """A client that never polls subscribes and unsubscribes, in all ways, and is silent in the end."""
        if self.group.settings.exclusive:
            return  # it would keep what it takes over
        for _ in range(_CHANGES):
            client, names = self._client("c"), self.random.sample(self.names, 2)
            if self.group.settings.wildcard:
                self._join(client)
            else:
                start = Start(self.random.choice((StartAt.LAST, StartAt.LAST, StartAt.MIN, StartAt.TIME)), 1)
                self._do(self.subscriptions.partial_add(client, names, start, self.now_ms))
            self._do(self.dispatcher.look_through(client, self.now_ms))
            if self.random.random() < 0.5:
                self._sleep(1000)
            if self.random.random() < 0.5 and not self.group.settings.wildcard:
                self._do(self.subscriptions.partial_remove(client, names[:1], self.now_ms))
            elif self.random.random() < 0.6:
                self._do(self.subscriptions.complete_remove(client, self.now_ms))

    def _work(self) -> None:
        """Long steps, one after the other."""
        while not self.over:
            group = self.dispatcher.scan_due()
            if group is not None:
                self._do(self.dispatcher.scan_some(group, self.now_ms))
            elif self._steps:
                self._do(self._steps.pop(0))
            else:
                self.interleaver.wait(lambda: bool(self._steps) or self.dispatcher.scan_due() is not None or self.over)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        """Nobody has anything to do: checks that nobody should, and steps the clock."""
        self._check()
        due_ms = self.dispatcher.next_ms()
        self.now_ms = (
            min(self.now_ms + 100, due_ms) if due_ms is not None and due_ms > self.now_ms else self.now_ms + 100
        )
        if due_ms is not None and due_ms <= self.now_ms:
            self.dispatcher.end_leases(self.now_ms)
        if self.now_ms - self._checked_ms >= CHECK_MS:
            self._checked_ms = self.now_ms
            self._steps.append(self.dispatcher.move_from_silent(self.now_ms))
        self._turn_ends()

    def _check(self) -> None:
        holders = [name for name in self.names if self.group.holders_of(name) or self.group.settings.wildcard]
        unread = [name for name in holders if self.store.has_unread(self.group.name, name)]
        for name in self.names:
            if name not in unread or self.dispatcher.is_blocked(self.group, name, self.now_ms):
                self._unread_since.pop(name, None)
                continue
            if (
                not any(each.client_id in "ab" for each in self.group.holders_of(name))
                and not self.group.settings.wildcard
            ):
                continue  # only the silent client reads it
            since_ms = self._unread_since.setdefault(name, self.now_ms)
            owner = self.group.owners.get(name)
            is_silent = owner is not None and owner.client_id == "c"
            if self.now_ms - since_ms > (SILENT_MS_MAX if is_silent else 0):
                raise LostWakeUpError(f"{name!r} is unread since {since_ms} ms at {self.now_ms} ms")
        sender_done = sum(self.store.next.values()) == _SENDS
        if sender_done and not unread and self.now_ms > 60_000:
            self.over = True
        elif self.now_ms > OVER_MS:
            raise LostWakeUpError(f"{unread} are unread at the end")
