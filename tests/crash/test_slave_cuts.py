"""The power fails while a slave goes back to the last record that its master has, too (with ``--whole`` at every step):
the next start finishes the cut or has not begun it, and what only the slave had is in ``quarantine/``. The epochs of
the log, which a slave behind a controller keeps, are those of its bytes.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from random import Random

import pytest
from tests.crash.slave_life import SEGMENT, Broken, SlaveLife, compare, left_over, starts
from tests.crash.workloads import config, message
from tests.masters import MasterLog, log_bytes
from tests.sizes import size

from rucola.errors import RucolaError
from rucola.formats.auto_switch import EpochEntry
from rucola.formats.ha import FIRST_BYTE
from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_state import SlaveState
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.manual_worker import manual_workers
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, empty_disk

ONE_IN = size(7, 1)
"""The power fails at one in this many steps."""
AGAIN = size(12, 3)
"""After one in this many of these failures, it fails again while the next start finishes the cut."""
SAMPLE = size(1, 8)
ALL = 1 << 40
WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")


@cache
def logs(common: int, ours: int, theirs: int) -> tuple[MasterLog, MasterLog, int]:
    """The log of a master, that of the same master after it lost its newest messages and wrote on, and the physical
    offset where they part.
    """
    found, ends = [], []
    for seed, count in ((1, ours), (2, theirs)):
        randoms = Random(7), Random(seed)
        with manual_workers(*WORKERS):
            store = MessageStore(config(False), files_on(empty_disk()), ManualClock(step_ms=1))
            store.load()
            store.start()
            for number in range(common + count):
                if number == common:
                    ends.append(store.max_offset)
                random = randoms[number >= common]
                body = random.choice((200, 900, 6000))
                store.put_message(message(random, b"T%d" % (number % 2), number % 3, size=body))
            if not count:
                ends.append(store.max_offset)
            found.append(MasterLog(log_bytes(store), segment_bytes=SEGMENT))
            store.shutdown()
    assert ends[0] == ends[1]
    return found[0], found[1], ends[0]


def epochs_of(disk: SimulatedDisk) -> EpochStore:
    """The epochs on a disk."""
    found = EpochStore(files_on(disk), ROOT)
    found.load()
    return found


class Cuts:
    """A slave that goes back, and power cuts meanwhile.

    Attributes:
        states: number of disk contents that were opened.

    Args:
        common, ours, theirs: numbers of messages that both logs have, and that only one has.
        most: number of bytes that quarantine may have.
        tells_epochs: whether the plan has the epochs after the cut.
    """

    def __init__(self, common: int, ours: int, theirs: int, most: int = ALL, tells_epochs: bool = False) -> None:
        self.states = self.steps = 0
        self._old, self._new, self._cut = logs(common, ours, theirs)
        self._most = most
        self._tells_epochs = tells_epochs
        first = EpochEntry(1, 0)
        self._before = self._after = EpochList((first, EpochEntry(4, self._cut - 1)) if tells_epochs else (first,))
        self._random = Random(5)
        self._known: set[int] = set()

    def run(self) -> None:
        """Copies the old log, goes back, and copies the new one; cuts the power in between."""
        life = SlaveLife(empty_disk(), self._old)
        life.open()
        life.follow(1 << 30)
        life.dispatch()
        life.flush()
        life.keep()
        self._before = EpochList((EpochEntry(1, 0), EpochEntry(2, self._cut), EpochEntry(3, self._old.end)))
        for epochs in (self._before.cut(self._cut), self._before):
            epochs_of(life.disk).write(epochs)
        life.master = self._new
        self._watch(life.disk, 0)
        self._go_back(life)
        life.disk.observer = lambda kind, path: None
        life.follow(1 << 30)
        assert life.link.state is SlaveState.COPYING
        life.stop()

    def _go_back(self, life: SlaveLife) -> None:
        """Searches the last common record, plans the cut, and opens the directory again."""
        common = life.log.common_point()
        for _ in range(60):
            link = SlaveLink(life.log, FIRST_BYTE, ROOT, common)
            link.receive(memoryview(life.master.stream(link.request)))
            for _ in range(2):
                link.receive(memoryview((max(link.request, life.master.end)).to_bytes(8, "big") + bytes(4)))
            if link.state is SlaveState.CUTTING:
                break
        if common.cut_offset != self._cut:
            raise Broken(f"the logs part at {self._cut}, found was {common.cut_offset}")
        life.store.plan_cut(common.cut_offset, self._most, self._after.entries if self._tells_epochs else None)
        life.stop()
        life.open()

    def _watch(self, disk: SimulatedDisk, depth: int) -> None:
        disk.observer = lambda kind, path: self._at_step(disk, f"before {kind} {path}", depth)

    def _at_step(self, disk: SimulatedDisk, step: str, depth: int) -> None:
        self.steps += 1
        if self.steps % ONE_IN:
            return
        for state in crash_states(disk, self._random, SAMPLE, randoms=8):
            key = hash(tuple((path, content) for path, content in state.image.items()))
            if key in self._known:
                continue
            self._known.add(key)
            self.states += 1
            try:
                self._check(state, depth)
            except (RucolaError, ValueError, AssertionError) as error:
                raise Broken(f"step {self.steps} ({step}), depth {depth}, {state.choice}: {error!r}") from error

    def _check(self, state: CrashState, depth: int) -> None:
        """Opens what a crash has left, and follows the new master to its end.

        Raises:
            Broken: a promise was broken.
        """
        disk = SimulatedDisk.of(state.image)
        disk.versions = is_cut_again = depth == 0 and self.states % AGAIN == 0
        life = SlaveLife(disk, self._new)
        if is_cut_again:
            self._watch(disk, depth + 1)
        life.open()
        disk.observer = lambda kind, path: None
        if life.log.end_offset not in (self._cut, self._old.end):
            raise Broken(f"the log ends at {life.log.end_offset}")
        expected = self._after if life.log.end_offset == self._cut != self._old.end else self._before
        if epochs_of(disk).epochs != expected:
            raise Broken(f"{epochs_of(disk).epochs} of a log that ends at {life.log.end_offset}, expected {expected}")
        if life.log.end_offset == self._old.end != self._cut:
            life.master = self._old
            compare(life, self._old.end, () if state.choice == NOTHING_LOST else tuple(left_over(self._old)))
            life.master = self._new
            self._go_back(life)
        if epochs_of(disk).epochs != self._after:
            raise Broken(f"{epochs_of(disk).epochs} after the cut")
        if f"{ROOT}/commitlog/rucola-cut" in disk.names:
            raise Broken("the plan is still there")
        self._check_quarantine(disk)
        life.follow(1 << 30)
        if life.link.state is not SlaveState.COPYING:
            raise Broken(f"the copy does not go on: {life.link.reason or life.link.refusal}")
        compare(life, self._new.end, tuple(left_over(self._new)))
        life.dispatch()
        units = sum(life.store.max_queue_offset(*name) for name in life.store.queue_names())
        records = sum(BLANK.unpack(self._new.bytes_at(at, 8))[1] != MAGIC_BLANK for at in starts(self._new))
        if units != records or life.store.dispatch_behind_bytes:
            raise Broken(f"{units} entries of queues, expected {records}")
        life.stop()
        if f"{ROOT}/abort" in disk.names:
            raise Broken("no clean stop")

    def _check_quarantine(self, disk: SimulatedDisk) -> None:
        """What only the slave had is there, once; or, if that was too much, its lengths and digests."""
        files, place = files_on(disk), f"{ROOT}/quarantine"
        expected = {}
        for start in range(self._cut - self._cut % SEGMENT, self._old.end, SEGMENT):
            first = max(start, self._cut)
            content = self._old.bytes_at(first, start + SEGMENT - first).rstrip(b"\0")
            if content:
                expected[f"{first:020d}"] = content
        found = {name: files.read_file(f"{place}/{name}") for name in files.list_files(place)}
        manifests = {name.removesuffix(".json"): found.pop(name) for name in list(found) if name.endswith(".json")}
        if found != (expected if self._most == ALL else {}):
            raise Broken(f"quarantine has {sorted(found)}, expected were {sorted(expected)}")
        facts = {name: json.loads(text or b"") for name, text in manifests.items()}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in expected.items()}
        if {name: fact["sha256"] for name, fact in facts.items()} != digests:
            raise Broken(f"quarantine tells of {sorted(facts)}, expected were {sorted(expected)}")
        if any(fact["kept"] != (self._most == ALL) for fact in facts.values()):
            raise Broken("a manifest does not say whether its bytes are kept")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("common", "ours", "theirs"),
    [
        (20, 6, 9),  # within a segment
        (20, 30, 25),  # over several segments
        (20, 12, 0),  # the master's log ends before ours
    ],
)
def test_power_cuts_while_a_slave_goes_back(common: int, ours: int, theirs: int) -> None:
    cuts = Cuts(common, ours, theirs)
    cuts.run()
    print(cuts.steps, cuts.states)
    assert cuts.states > 8


def test_power_cuts_while_digests_are_all_that_is_kept() -> None:
    cuts = Cuts(20, 30, 25, 1000)
    cuts.run()
    print(cuts.steps, cuts.states)
    assert cuts.states > 15


def test_power_cuts_while_the_epochs_of_the_new_master_are_taken_over() -> None:
    cuts = Cuts(20, 6, 9, tells_epochs=True)
    cuts.run()
    print(cuts.steps, cuts.states)
    assert cuts.states > 8
