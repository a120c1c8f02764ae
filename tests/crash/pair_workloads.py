"""What happens to pairs in an exploration: turns that are drawn by weight."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from random import Random

from tests.crash.pair_life import Liar, PairOptions
from tests.crash.pair_world import Pair, held_directions

from rucola.common.numbers import INT64_MAX
from rucola.formats.ha import NEWEST_SEGMENT, TRANSFER_HEADER
from rucola.store.ha.slave_link import FIRST_BYTE
from rucola.testing.crash_states import crash_states
from rucola.testing.fault_plan import ANY_CALL, NEEDS_SPACE, FaultPlan
from rucola.testing.simulated_network import Direction

TURNS = 60
REST_MS, REST_CONNECTIONS = 90_000, 12
"""The end of a run: a peer may be half dead for 20 s, and the pause before the next connection is up to 10 s."""
CONFIGS = {
    "sync": PairOptions(),
    "async": PairOptions(sync_flush=False),
    "sync-alone": PairOptions(replicas=1),
    "async-alone": PairOptions(replicas=1, sync_flush=False),
    "sync-later": PairOptions(at_once=False),
    "one-of-two": PairOptions(slaves=2),
    "two-of-two": PairOptions(replicas=3, slaves=2, sync_flush=False),
    "broker": PairOptions(are_brokers=True),
}
"""SYNC_MASTER or, where it is alone, ASYNC_MASTER; SYNC_FLUSH or ASYNC_FLUSH; slaves that sync at once, or later.
Slaves are replicas, or brokers.
"""
_CALM = {"put": 30, "deliver": 40, "flush": 14, "sync": 14, "work": 12, "wait": 8}
WORKLOADS: Mapping[str, Mapping[str, int]] = {
    "calm": _CALM,
    "links": {**_CALM, "cut": 6, "hold": 4, "release": 5, "long wait": 3, "corrupt": 3, "cold": 3},
    "liars": {**_CALM, "liar": 5, "lie": 5, "cut": 4, "kill slave": 2, "start": 5},
    "kills": {**_CALM, "kill master": 4, "kill slave": 5, "stop": 3, "start": 12, "cut": 2, "cold": 2},
    "power": {
        **_CALM,
        "power of master": 4,
        "power of slave": 5,
        "power of all": 2,
        "lose": 3,
        "start": 14,
        "long wait": 1,
    },
    "full": {**_CALM, "full": 5, "room": 3, "kill slave": 1, "start": 10, "cut": 2, "wait": 12, "trouble": 1},
    "errors": {
        **_CALM,
        "error": 4,
        "room": 1,
        "start": 10,
        "restart": 4,
        "stop": 2,
        "cut": 2,
        "wait": 12,
        "trouble": 1,
    },
    "outages": {
        **_CALM,
        "full": 3,
        "room": 3,
        "error": 3,
        "restart": 3,
        "power of master": 3,
        "power of slave": 3,
        "power of all": 1,
        "start": 14,
        "cut": 2,
    },
    "disks": {**_CALM, "promote": 2, "new slave": 2, "kill slave": 2, "power of master": 2, "start": 12, "cut": 2},
}
"""Weights of the turns."""


def play(pair: Pair, random: Random, weights: Mapping[str, int], turns: int = TURNS) -> None:
    """Starts a pair, draws what happens to it, and lets it come to rest."""
    pair.start_master()
    for name in pair.names:
        pair.start_slave(name)
    names, chances = list(weights), list(weights.values())
    for what in random.choices(names, chances, k=turns):
        _TURNS[what](pair, random)
        if random.random() < 0.75:
            pair.turn()
        elif processes := pair.processes():
            random.choice(processes).loop.run_due(random.randint(1, 3))
    rest(pair, random)


def rest(pair: Pair, random: Random) -> None:
    """No more faults: everything that was asked for is done."""
    for direction in held_directions(pair):
        direction.is_held = False
    pair.corrupts = pair.disks["master"].is_cold = False
    if pair.plans:
        pair.stay_in_trouble()
    pair.mend()
    _restart(pair, random)
    _start(pair)
    for _ in range(random.randint(1, 4)):
        _put(pair, random)
    pair.come_to_rest(REST_MS, REST_CONNECTIONS)
    pair.stay_at_rest()


def _start(pair: Pair, random: Random | None = None) -> None:
    """Starts what does not run; with ``random``, some of it. A slave that was refused gets an empty disk."""
    for name, slave in list(pair.slaves.items()):
        if slave.refused is not None and pair.master is not None and pair.is_forked(name):
            pair.new_slave(name)
    names = [name for name in ("master", *pair.names) if not pair.runs(name)]
    if random is not None and names:
        names = random.sample(names, random.randint(1, len(names)))
    for name in names:
        if name == "master":
            pair.start_master()
        else:
            pair.start_slave(name)


def _restart(pair: Pair, random: Random) -> None:
    """Ends, in any way, what only a restart helps."""
    for name in ("master", *pair.names):
        if pair.needs_restart(name):
            random.choice((pair.stop, pair.end))(name)


def _full(pair: Pair, random: Random) -> None:
    """A disk is full; some file systems can still write where a file has blocks."""
    kinds = random.choice((NEEDS_SPACE, NEEDS_SPACE - {"write"}))
    pair.spoil(_any_disk(pair, random), FaultPlan(random.choice((1, 1, 2, 5)), True, errno.ENOSPC, kinds))


def _error(pair: Pair, random: Random) -> None:
    """A disk will fail: once, or until it is repaired."""
    kinds = random.choice((("sync",), ("sync",), ("write", "allocate", "create"), ANY_CALL))
    plan = FaultPlan(random.randint(1, 6), random.random() < 0.4, errno.EIO, kinds)
    pair.spoil(_any_disk(pair, random), plan)


def _any_disk(pair: Pair, random: Random) -> str:
    return random.choice(("master", random.choice(pair.names)))


def _put(pair: Pair, random: Random) -> None:
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        pair.put(random.choice((60, 200, 200, 800, 3000)))


def _deliver(pair: Pair, random: Random) -> None:
    if ready := [direction for direction in pair.network.directions() if direction.can_deliver]:
        random.choice(ready).deliver(random.choice((random.randint(1, 12), random.randint(1, 700), 1 << 20, 1 << 20)))


def _flush(pair: Pair, random: Random) -> None:
    """The master's disk syncs; meanwhile, a producer may send."""
    if pair.master is not None:
        pair.work(pair.master, 1, (lambda: _put(pair, random)) if random.random() < 0.3 else None)


def _sync(pair: Pair, random: Random) -> None:
    """A slave's disk syncs; meanwhile, bytes may arrive."""

    def meanwhile() -> None:
        _deliver(pair, random)
        pair.turn()

    if pair.slaves:
        slave = random.choice(list(pair.slaves.values()))
        pair.work(slave, 1, meanwhile if random.random() < 0.3 else None)


def _work(pair: Pair, random: Random) -> None:
    """Another thread of a store works."""
    if processes := pair.processes():
        pair.work(random.choice(processes), random.choice((0, 2)), None)


def _wait(pair: Pair, random: Random) -> None:
    pair.advance(random.choice((5, 200, 1000, 3000)))


def _long_wait(pair: Pair, random: Random) -> None:
    for _ in range(random.randint(5, 22)):
        pair.advance(1000)
        pair.turn()


def _cut(pair: Pair, random: Random) -> None:
    if pair.network.connections:
        pair.network.cut(random.choice(pair.network.connections), random)


def _hold(pair: Pair, random: Random) -> None:
    if directions := list(pair.network.directions()):
        random.choice(directions).is_held = True


def _release(pair: Pair, random: Random) -> None:
    for direction in held_directions(pair):
        direction.is_held = False


def _corrupt(pair: Pair, random: Random) -> None:
    pair.corrupts = True


def _liar(pair: Pair, random: Random) -> None:
    """Somebody connects, and asks for the log."""
    if pair.master is not None and len(pair.liars) < 3:
        pair.liars.append(Liar(pair.clock, pair.network))
        pair.liars[-1].report(random.choice((NEWEST_SEGMENT, FIRST_BYTE, NEWEST_SEGMENT, 1 << 30)))


def _lie(pair: Pair, random: Random) -> None:
    """Somebody reports what he was not sent, less than before, or what cannot be."""
    honest = [liar for liar in pair.liars if not liar.lied]
    if honest and pair.master is not None:
        liar, end = random.choice(honest), pair.master.store.max_offset
        liar.report(random.choice((end + random.randint(1 << 20, 1 << 40), -random.randint(1, 1 << 40), INT64_MAX)))


def _cold(pair: Pair, random: Random) -> None:
    """What the master has written leaves its memory, or is there again."""
    pair.disks["master"].is_cold = not pair.disks["master"].is_cold


def _power(pair: Pair, random: Random, names: list[str]) -> None:
    for name in names:
        if pair.runs(name):
            states = list(crash_states(pair.disks[name], random, 4, randoms=8))
            pair.end(name, random.choice(states))


def _lose(pair: Pair, random: Random) -> None:
    """The master sends something, loses all that was not synced, and writes on; the new records may be as long."""
    if pair.master is not None:
        size = random.choice((200, 200, 3000))
        pair.work(pair.master, 1, None)
        for _ in range(3):
            pair.put(size)
        pair.turn()
        for direction in list(pair.network.directions()):
            direction.deliver(_transfer_bytes(direction) if size == 3000 else 1 << 20)
        pair.turn()
        for slave in pair.slaves.values():
            pair.work(slave, 1, None)
        lost = [state for state in crash_states(pair.disks["master"], random, 0) if state.choice == "all lost"]
        if lost:
            pair.end("master", lost[0])
            for direction in pair.network.directions():
                direction.end(0)
            pair.start_master()
            again = random.choice((size, 800))
            for _ in range(6):
                pair.put(again)


def _transfer_bytes(direction: Direction) -> int:
    """Number of bytes of the next transfer, which may end with a segment; of something else it may be any number."""
    if len(direction.waiting) < TRANSFER_HEADER.size:
        return 1 << 20
    return TRANSFER_HEADER.size + max(TRANSFER_HEADER.unpack(direction.waiting[: TRANSFER_HEADER.size])[1], 0)


def _promote(pair: Pair, random: Random) -> None:
    if pair.slaves and len(pair.slaves) == len(pair.names):
        pair.promote(max(pair.slaves, key=lambda name: pair.slaves[name].log.end_offset))
        pair.start_master()


_TURNS: dict[str, Callable[[Pair, Random], None]] = {
    "put": _put,
    "deliver": _deliver,
    "flush": _flush,
    "sync": _sync,
    "work": _work,
    "wait": _wait,
    "long wait": _long_wait,
    "cut": _cut,
    "hold": _hold,
    "release": _release,
    "corrupt": _corrupt,
    "full": _full,
    "error": _error,
    "room": lambda pair, _: pair.mend(),
    "restart": _restart,
    "trouble": lambda pair, _: pair.stay_in_trouble() if pair.plans else None,
    "start": _start,
    "kill master": lambda pair, random: pair.end("master"),
    "kill slave": lambda pair, random: pair.end(random.choice(pair.names)),
    "stop": lambda pair, random: pair.stop(random.choice(["master", *pair.names])),
    "cold": _cold,
    "power of master": lambda pair, random: _power(pair, random, ["master"]),
    "power of slave": lambda pair, random: _power(pair, random, [random.choice(pair.names)]),
    "power of all": lambda pair, random: _power(pair, random, ["master", *pair.names]),
    "liar": _liar,
    "lie": _lie,
    "lose": _lose,
    "promote": _promote,
    "new slave": lambda pair, random: pair.new_slave(random.choice(pair.names)),
}
