"""A world of clients, messages, deaths and restarts in random order, around the real rules of lite topics, and what
must hold in it. Run it with ``python -m tests.unit.broker.lite.delivery_world --steps 100000``.

The store and the offsets are dicts. Woken pops, steps of long changes, arrivals and the end of leases happen when
chance wants it. What must hold after each step:

- each unread lite topic that somebody reads has an event, or a lease that ends, or a step under way that reaches it;
- no client with an event has a waiting pop, unless another one was woken;
- a batch begins with the first message that the group has not acknowledged, and is in order;
- no message comes again before its lease has ended or was given up, unless the broker restarted or an offset was set;
- no event stays for long with a silent client while another one waits.

At the end, clients that behave get everything.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

from rucola.broker.lite.attributes import LiteGroup
from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.leases import Acknowledged, LiteLeases
from rucola.broker.lite.pop import LitePop, LitePopReader
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup, ReadingGroups
from rucola.broker.lite.subscriptions import LiteSubscriptions, Start, StartAt
from rucola.broker.shares import Shares
from rucola.formats.light_queue import lite_name
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader
from rucola.remoting.fairness.steps import Steps
from rucola.store.lite.lite_topics import LiteSlice
from rucola.store.results import GetMessageResult, GetMessageStatus

GROUPS = {
    "shared": LiteGroup("p"),
    "owner": LiteGroup("p", exclusive=True, reset_exclusive=True),
    "again": LiteGroup("p", reset_unsubscribe=True),
    "all": LiteGroup("p", wildcard=True),
}


class Name(bytes):
    """A name whose hash is always the same, so that a seed always leads to the same order."""

    def __hash__(self) -> int:
        return int.from_bytes(self[-2:], "big")


NAMES = [Name(b"p$%d" % number) for number in range(12)]
EVENT_CHECK_MS, EXPIRY_CHECK_MS, EXPIRY_MS = 10_000, 120_000, 180_000
STUCK_MS = 60_000
"""10 s without a poll, then a look every 10 s, which here may take a while to come."""
_RECORD = Struct(">iq").pack


class WorldError(AssertionError):
    """Something that must hold does not."""


@dataclass(eq=False)
class Waiter:
    """A pop that waits."""

    client: LiteClient
    header: PopLiteMessageRequestHeader
    waited_for: frozenset[bytes] = frozenset()


@dataclass
class Lease:
    """A batch as its client sees it."""

    group: str
    name: bytes
    offsets: tuple[int, ...]
    pop_time_ms: int
    acknowledged: set[int] = field(default_factory=set)


class FakeStore:
    """Messages of lite topics; implements what rules and reader ask of store and offsets."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.first: dict[bytes, int] = {}
        self.next: dict[bytes, int] = {}
        self.offsets: dict[tuple[str, bytes], int] = {}
        self.wall_ms = 1_000_000
        self.config = SimpleNamespace(timer_max_delay_sec=3 * 86_400)

    def now_ms(self) -> int:
        return self.wall_ms

    def put(self, name: bytes) -> None:
        self.next[name] = self.next.get(name, 0) + 1
        self.first.setdefault(name, 0)

    def delete(self, name: bytes) -> None:
        self.first[name] = self.next[name]
        for key in [key for key in self.offsets if key[1] == name]:
            del self.offsets[key]

    def max_offset(self, name: bytes) -> int:
        return self.next.get(name, 0)

    def min_offset(self, name: bytes) -> int:
        return self.first.get(name, 0)

    def offset_since(self, name: bytes, time_ms: int) -> int:
        """A message is stored at its offset."""
        return min(max(time_ms, self.min_offset(name)), self.max_offset(name))

    def committed(self, group: str, name: bytes) -> int:
        return self.offsets.get((group, name), -1)

    def commit(self, group: str, name: bytes, consumer_offset: int) -> None:
        if name in self.next:
            self.offsets[group, name] = consumer_offset

    def has_unread(self, group: str, name: bytes) -> bool:
        return self.max_offset(name) > max(self.committed(group, name), self.min_offset(name))

    def names_of(self, parent: bytes, first: int, rows_max: int) -> LiteSlice:
        rows = list(self.next)
        last = first + 3  # few, so that a scan has several steps
        names = [name for name in rows[first:last] if self.next[name] > self.first[name]]
        return LiteSlice(names, last if last < len(rows) else None)

    def get_message(
        self, topic: bytes, queue_id: int, start: int, count: int, size: int, codes: object, may_block: bool
    ) -> GetMessageResult:
        name = NAMES[int(lite_name(topic)[2:])]
        low, high = self.min_offset(name), self.max_offset(name)
        if not low <= start < high:
            status = GetMessageStatus.OFFSET_TOO_SMALL if start < low else GetMessageStatus.OFFSET_OVERFLOW_ONE
            return GetMessageResult(status, low if start < low else high, low, high)
        if not may_block and self._chance.random() < 0.1:
            return GetMessageResult(GetMessageStatus.FOUND, start, low, high, cold=lambda: None)
        end = min(start + count, high)
        records = b"".join(_RECORD(12, offset) for offset in range(start, end))
        return GetMessageResult(
            GetMessageStatus.FOUND, end, low, high, [memoryview(records)], end - start, len(records)
        )


class World:
    """The state of everything.

    Args:
        plant: breaks the rules of each new broker.
    """

    def __init__(self, seed: int, plant: Callable[[World], None] = lambda _: None) -> None:
        self.random = random.Random(seed)
        self.store = FakeStore(self.random)
        self.now_ms = 0
        self.steps_done = 0
        self.deliveries = 0
        self.leases: list[Lease] = []
        self.current: dict[tuple[str, bytes], tuple[Lease, dict[int, int]]] = {}
        """For each group and name the last batch, and when its messages are visible again."""
        self.excused: set[tuple[str, bytes]] = set()
        """Where a message may come again early: an offset was set, the lite topic deleted, or the broker restarted."""
        self.stuck_since: dict[tuple[str, bytes], int] = {}
        self.arrivals: list[bytes] = []
        self.running: list[Steps[None]] = []
        self._scan: Steps[None] | None = None
        self.woken: list[Waiter] = []
        self.away: list[Waiter] = []
        self.checked_ms = self.expired_ms = 0
        self._plant = plant
        self._start()

    def _start(self) -> None:
        self.groups = ReadingGroups()
        self.dispatcher = LiteEventDispatcher(self.groups, self.store, self.random.randrange, 4)
        self.rules = LiteLeases(self.dispatcher, self.store)
        clients, names = Shares(1000, 1000, 0), Shares(1000, 1000, 0)
        self.subscriptions = LiteSubscriptions(
            self.groups, self.dispatcher, self.rules, self.store, clients, names, lambda *_: None, self.store.now_ms
        )
        self.reader = LitePopReader(cast("Any", self.store), self.dispatcher, self.rules, lambda: self.now_ms)
        self._plant(self)

    # -- what happens --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Lets something happen, and checks what must hold."""
        happenings: list[tuple[int, Callable[[], None]]] = [
            (30, self.send),
            (30, self.poll),
            (40, self.run_woken),
            (10, self.read_disk),
            (40, self.acknowledge),
            (10, self.change_lease),
            (20, self.pass_time),
            (25, self.dispatch),
            (12, self.subscribe),
            (30, self.run_steps),
            (2, self.lose_connection),
            (1, self.delete),
            (1, self.end_client),
        ]
        if self.steps_done % 997 == 996:
            self.restart()
        weights = [weight for weight, _ in happenings]
        self.random.choices([happening for _, happening in happenings], weights)[0]()
        self._collect()
        self.steps_done += 1
        self.check()

    def _collect(self) -> None:
        self.woken += cast("list[Waiter]", self.dispatcher.woken)
        self.dispatcher.woken = []
        self.subscriptions.notices.clear()
        group = self.dispatcher.scan_due()
        if group is not None and self._scan not in self.running:
            self._scan = self.dispatcher.scan_some(group, self.now_ms)
            self.running.append(self._scan)

    def send(self) -> None:
        """A message is stored; its arrival is told later."""
        name = self.random.choice(NAMES)
        self.store.put(name)
        self.arrivals.append(name)

    def dispatch(self) -> None:
        """Arrivals are told."""
        for name in self.arrivals:
            self.dispatcher.arrived(name, self.now_ms)
        self.arrivals = []

    def poll(self) -> None:
        """A client asks for messages."""
        name = self.random.choice(list(GROUPS))
        group = self.groups.make(name, GROUPS[name])
        client = self.subscriptions.client(group, self.random.choice("abc"), "", self.now_ms)
        if len(client.waiters) < 2:
            attempt = self.random.choice([None, None, "x", "y"])
            count, invisible_ms = self.random.choice([1, 2, 8]), self.random.choice([500, 5000, 60_000])
            self._pop(
                client,
                PopLiteMessageRequestHeader(client.client_id, name, "p", count, invisible_ms, 20_000, 0, attempt),
            )

    def _pop(
        self, client: LiteClient, header: PopLiteMessageRequestHeader, waited_for: frozenset[bytes] = frozenset()
    ) -> None:
        self.dispatcher.polled(client, self.now_ms)
        before = {name: block.attempt_id for name, block in client.group.blocks.items()}
        self.excused.update((client.group.name, name) for name in client.group.moved)
        self.store.wall_ms += 1  # so that pop times differ
        pop = LitePop(header, client, self.now_ms, waited_for)
        self.reader.read(pop)
        for name, offsets in pop.batches:
            is_repeat = header.attempt_id is not None and before.get(name) == header.attempt_id
            self._delivered(client.group, name, tuple(offsets), pop.pop_time_ms, is_repeat)
        if not pop.count and pop.cold is not None:
            self.away.append(Waiter(client, header, pop.waited_for))
        elif not pop.count:
            self.dispatcher.wait(client, cast("Any", Waiter(client, header)))
        self._settle(client)

    def _settle(self, client: LiteClient) -> None:
        self.dispatcher.settle(client)
        self.subscriptions.release(client)

    def run_woken(self) -> None:
        """A woken pop runs, or its connection is gone."""
        if self.woken:
            waiter = self.woken.pop(self.random.randrange(len(self.woken)))
            self._run_again(waiter)

    def read_disk(self) -> None:
        """Messages that were not in memory were read from the disk."""
        if self.away:
            self._run_again(self.away.pop(self.random.randrange(len(self.away))))

    def _run_again(self, waiter: Waiter) -> None:
        if self.random.random() < 0.05:
            self._settle(waiter.client)
            return
        group = self.groups.make(waiter.client.group.name, waiter.client.group.settings)
        client = self.subscriptions.client(group, waiter.client.client_id, "", self.now_ms)
        self._pop(client, waiter.header, waiter.waited_for)

    def lose_connection(self) -> None:
        """A waiting pop ends without an answer."""
        waiting = [waiter for group in self.groups for client in group.clients.values() for waiter in client.waiters]
        if waiting:
            waiter = cast("Waiter", self.random.choice(waiting))
            self.dispatcher.leave(waiter.client, cast("Any", waiter), self.now_ms)
            self._settle(waiter.client)

    def acknowledge(self) -> None:
        """A client acknowledges a message, perhaps too late."""
        if self.leases:
            lease = self.random.choice(self.leases[-20:])
            offset = self.random.choice(lease.offsets)
            self._acknowledge(lease, offset)

    def _acknowledge(self, lease: Lease, offset: int) -> None:
        group = self.groups.make(lease.group, GROUPS[lease.group])
        done = self.rules.acknowledge(group, lease.name, offset, lease.pop_time_ms, self.now_ms)
        if done is not Acknowledged.DONE:
            raise WorldError(f"{lease}: {offset} is {done}")
        lease.acknowledged.add(offset)

    def change_lease(self) -> None:
        """A client gives a message back, or suspends its batch."""
        if not self.leases:
            return
        lease = self.random.choice(self.leases[-10:])
        group, visible_ms = (
            self.groups.make(lease.group, GROUPS[lease.group]),
            self.now_ms + self.random.choice([0, 1000]),
        )
        known, visible = self.current.get((lease.group, lease.name), (None, {}))
        offset = self.random.choice(lease.offsets)
        if self.random.random() < 0.5:
            self.rules.hide(group, lease.name, offset, lease.pop_time_ms, self.now_ms, visible_ms)
            if known is lease:
                visible[offset] = visible_ms
        else:
            self.rules.suspend(group, lease.name, offset, lease.pop_time_ms, self.now_ms, visible_ms)
            if known is lease:
                visible.update(dict.fromkeys(lease.offsets, visible_ms))

    def pass_time(self) -> None:
        """Time passes: leases end, silent clients are found."""
        self.advance(self.random.choice([0, 10, 400, 3000, 9000]))

    def advance(self, ms: int) -> None:
        """Lets time pass."""
        self.now_ms += ms
        self.store.wall_ms += ms
        self.dispatcher.end_leases(self.now_ms)
        if self.now_ms - self.checked_ms >= EVENT_CHECK_MS:
            self.checked_ms = self.now_ms
            self.running.append(self.dispatcher.move_from_silent(self.now_ms))
        if self.now_ms - self.expired_ms >= EXPIRY_CHECK_MS:
            self.expired_ms = self.now_ms
            self.running.append(self.subscriptions.expire(EXPIRY_MS, self.now_ms))

    def run_steps(self) -> None:
        """A long change goes on."""
        if self.running:
            steps = self.random.choice(self.running)
            try:
                next(steps)
            except StopIteration:
                self.running.remove(steps)

    def subscribe(self) -> None:
        """A client changes its subscriptions."""
        name = self.random.choice(list(GROUPS))
        group = self.groups.make(name, GROUPS[name])
        client = self.subscriptions.client(group, self.random.choice("abc"), "", self.now_ms)
        names = self.random.sample(NAMES, self.random.randrange(1, 5))
        if group.settings.wildcard:
            self.subscriptions.join(client, self.now_ms)
        elif self.random.random() < 0.5:
            start = Start(self.random.choice([*[StartAt.LAST] * 6, *StartAt]), self.random.randrange(6))
            self.running.append(self.subscriptions.partial_add(client, names, start, self.now_ms))
        elif self.random.random() < 0.5:
            self.running.append(self.subscriptions.partial_remove(client, names, self.now_ms))
        else:
            self.running.append(self.subscriptions.complete_add(client, names, self.now_ms))

    def end_client(self) -> None:
        """A client says that it ends."""
        clients = [client for group in self.groups for client in group.clients.values()]
        if clients:
            self.running.append(self.subscriptions.complete_remove(self.random.choice(clients), self.now_ms))

    def delete(self) -> None:
        """A lite topic expires."""
        name = self.random.choice(NAMES)
        if name in self.store.next:
            self.store.delete(name)
            self.subscriptions.forget(name, self.now_ms)
            self._excuse_all(name)

    def _excuse_all(self, name: bytes) -> None:
        self.excused.update((group, name) for group in GROUPS)

    def restart(self) -> None:
        """The broker is killed and starts again."""
        self.running, self.woken, self.away, self.arrivals = [], [], [], []
        for name in NAMES:
            self._excuse_all(name)
        self._start()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _delivered(
        self, group: ReadingGroup, name: bytes, offsets: tuple[int, ...], pop_time_ms: int, is_repeat: bool
    ) -> None:
        self.deliveries += 1
        key = group.name, name
        start = max(self.store.committed(*key), self.store.min_offset(name))
        if offsets[0] != start or list(offsets) != list(range(start, start + len(offsets))):
            raise WorldError(f"{key}: {offsets} after {start}")
        known = self.current.get(key)
        if known is not None and key not in self.excused and not is_repeat:
            before, visible = known
            open_ = [o for o in before.offsets if o not in before.acknowledged and self.now_ms < visible[o]]
            if open_:
                raise WorldError(f"{key}: {offsets} while {open_} are leased")
        self.excused.discard(key)
        lease = Lease(group.name, name, offsets, pop_time_ms)
        visible_ms = group.blocks[name].free_ms
        self.current[key] = lease, dict.fromkeys(offsets, visible_ms)
        self.leases.append(lease)

    def check(self) -> None:
        """Checks what must hold, except where a step or an arrival is under way."""
        woken = {waiter.client for waiter in [*self.woken, *self.away]}
        for group in self.groups:
            for client in group.clients.values():
                if client.events and client.waiters and client not in woken:
                    raise WorldError(f"{group.name}: {client.client_id} waits beside {list(client.events)}")
                if any(group.owners.get(name) is not client for name in client.events):
                    raise WorldError(f"{group.name}: {client.client_id} has another client's event")
            if group.ready and group.waiting and not any(client.group is group for client in woken):
                raise WorldError(f"{group.name}: somebody waits beside {list(group.ready)}")
            for name in NAMES:
                self._check_name(group, name)

    def _check_name(self, group: ReadingGroup, name: bytes) -> None:
        key = group.name, name
        readers = [client for client in group.holders_of(name) if client.group is group]
        if group.settings.wildcard:
            readers = [client for client in group.clients.values() if client.is_subscribed]
        block = group.blocks.get(name)
        if block is not None and self.now_ms < block.free_ms:
            if self.dispatcher._leases._times.get((group, name)) != block.free_ms:
                raise WorldError(f"{key}: nothing ends the lease")
            self.stuck_since.pop(key, None)
            return
        if not readers or not self.store.has_unread(*key):
            self.stuck_since.pop(key, None)
            return
        is_under_way = self.running or name in self.arrivals
        has_event = name in group.ready or name in group.owners or (group, name) in self.dispatcher._leases._times
        if not has_event and not is_under_way and group not in self.dispatcher._scans:
            raise WorldError(f"{key}: unread, and nothing will deliver it")
        owner = group.owners.get(name)
        waits = [client for client in readers if client.waiters and client is not owner]
        if owner is None or not waits or self.now_ms - owner.polled_ms < EVENT_CHECK_MS:
            self.stuck_since.pop(key, None)
        elif self.now_ms - self.stuck_since.setdefault(key, self.now_ms) > STUCK_MS:
            raise WorldError(f"{key}: stays with {owner.client_id} while {waits[0].client_id} waits")

    def finish(self) -> None:
        """Lets a client of each group that behaves read everything that is subscribed."""
        self._run_all()
        for name, settings in GROUPS.items():
            group = self.groups.make(name, settings)
            client = self.subscriptions.client(group, "good", "", self.now_ms)
            if settings.wildcard:
                self.subscriptions.join(client, self.now_ms)
            else:
                self.running.append(self.subscriptions.partial_add(client, NAMES, Start(), self.now_ms))
        for _ in range(400):
            self._run_all()
            self.advance(1000)
            for group in self.groups:
                for client in list(group.clients.values()):
                    if client.client_id == "good" and not client.waiters:
                        header = PopLiteMessageRequestHeader("good", group.name, "p", 32, 5000, 20_000)
                        self._pop(client, header)
                    elif client.client_id != "good":
                        client.renewed_ms = self.now_ms
            for lease in self.leases:
                for offset in lease.offsets:
                    self._acknowledge(lease, offset)
            self.leases.clear()
        self._run_all()
        left = [(g, n) for g in GROUPS for n in NAMES if self.store.has_unread(g, n)]
        if left:
            raise WorldError(f"never delivered: {left}")

    def _run_all(self) -> None:
        self.dispatch()
        while self.running or self.woken or self.away:
            self._collect()
            self.run_steps()
            self.run_woken()
            self.read_disk()
            self._collect()


def run(seed: int, steps: int, plant: Callable[[World], None] = lambda _: None) -> World:
    """Runs a world; raises ``WorldError`` if something that must hold does not."""
    world = World(seed, plant)
    for _ in range(steps):
        world.step()
    world.finish()
    return world


def main() -> None:
    """Runs worlds until the steps are done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seed, deliveries = arguments.seed, 0
    for first in range(0, arguments.steps, 5000):
        try:
            deliveries += run(seed, min(5000, arguments.steps - first)).deliveries
        except WorldError as error:
            raise SystemExit(f"seed {seed}: {error}") from error
        seed += 1
    print(f"{arguments.steps} steps, {deliveries} batches: all that must hold holds")


if __name__ == "__main__":
    main()
