"""The power fails while a slave behind a controller copies a log of several epochs: whatever is left of the log, its
epochs are those of its bytes. And while a store becomes a master's: it has the new epoch, or it has the old ones.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from tests.crash.slave_life import SEGMENT, Broken, SlaveLife, master_log, starts
from tests.crash.test_slave_cuts import epochs_of
from tests.sizes import size

from rucola.formats.auto_switch import EpochEntry, EpochTransfer, Hello, encode_answer, encode_transfer
from rucola.store.ha.epoch_slave import EpochSlaveLink
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.slave_state import SlaveState
from rucola.testing.crash_states import crash_states
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, empty_disk

ONE_IN = size(5, 1)
"""The power fails at one in this many steps."""


def stream(at: int, truth: EpochList) -> bytes:
    """What a master of the log sends from ``at`` on, behind its handshake that knows the first two epochs."""
    master = master_log()
    frames = [encode_answer(master.end, truth.entries[:2])]
    while at < master.end:
        epoch = truth.at(at)
        assert epoch is not None
        end = min(truth.end_of(epoch.epoch), at + 3000, at - at % SEGMENT + SEGMENT, master.end)
        frames.append(encode_transfer(EpochTransfer(end - at, at, *epoch, at)) + master.bytes_at(at, end - at))
        at = end
    return b"".join(frames)


class Watched:
    """Cuts the power at the steps of a slave, and looks at what is left."""

    def __init__(self, truth: EpochList) -> None:
        self.states = self.steps = 0
        self._truth = truth
        self._random = Random(3)
        self._known: set[int] = set()

    def watch(self, disk: SimulatedDisk) -> None:
        disk.observer = lambda kind, path: self._at_step(disk, f"{kind} {path}")

    def _at_step(self, disk: SimulatedDisk, step: str) -> None:
        self.steps += 1
        if self.steps % ONE_IN and "epoch" not in step:
            return
        for state in crash_states(disk, self._random, 1, randoms=4):
            key = hash(tuple(state.image.items()))
            if key in self._known:
                continue
            self._known.add(key)
            self.states += 1
            life = SlaveLife(SimulatedDisk.of(state.image), master_log())
            life.disk.versions = False
            life.open()
            kept = epochs_of(life.disk).epochs
            for at in starts(master_log()):
                if at < life.log.end_offset and kept.at(at) != self._truth.at(at):
                    raise Broken(f"before {step}, {state.choice}: {kept} for the byte at {at}, expected {self._truth}")
            life.stop()


def test_power_cuts_while_a_slave_copies_several_epochs() -> None:
    places = starts(master_log())
    truth = EpochList(EpochEntry(number, places[at]) for number, at in ((1, 0), (2, 20), (4, 21), (5, 45)))
    life = SlaveLife(empty_disk(), master_log())
    life.open()
    watched = Watched(truth)
    watched.watch(life.disk)
    kept = EpochStore(files_on(life.disk), ROOT)
    kept.load()
    link = EpochSlaveLink(life.log, kept, Hello(2), ROOT)
    content = memoryview(stream(0, truth))
    for at in range(0, len(content), 5000):
        link.receive(content[at : at + 5000])
        if life.log.end_offset:
            life.allocate()
    life.disk.observer = lambda kind, path: None
    assert (link.state, life.log.end_offset) == (SlaveState.COPYING, master_log().end), link.reason
    assert epochs_of(life.disk).epochs == truth
    life.stop()
    print(watched.steps, watched.states)
    assert watched.states > 20


def test_power_cuts_while_an_epoch_is_written() -> None:
    """Each list is there as a whole, or the one before it is."""
    disk, random = empty_disk(), Random(1)
    files_on(disk).make_directory(ROOT)
    kept = EpochStore(files_on(disk), ROOT)
    kept.load()
    lists = [
        EpochList(EpochEntry(*entry) for entry in entries)
        for entries in ((), ((1, 0),), ((1, 0), (2, 5)), ((1, 0), (3, 4)), (), ((4, 9),))
    ]
    allowed = {lists[0]}

    def at_step(kind: str, path: str) -> None:
        for state in crash_states(disk, random, 4, randoms=8):
            found = epochs_of(SimulatedDisk.of(state.image)).epochs
            assert found in allowed, (kind, path, state.choice)

    disk.observer = at_step
    for before, following in pairwise(lists):
        allowed.clear()
        allowed.update((before, following))
        kept.write(following)
        allowed.discard(before)
        at_step("after", "")
