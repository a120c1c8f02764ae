"""The power fails, or the process is killed, while lite topics get messages and are deleted: no acknowledged message is
lost, no offset is given twice, and what is deleted stays deleted.
"""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from tests.lite_ledger import NAMES, LiteLedger, lite_config, lite_message
from tests.sizes import size

from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.interleaver import Interleaver
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, StoreLife, empty_disk

SEGMENT_BYTES = 4096
ONE_IN = size(23, 3)


def lives(life: StoreLife, ledger: LiteLedger, random: Random) -> None:
    """Writes, deletes, forgets, stops, is killed, writes the table in between."""
    for last in range(4):
        life.load()
        life.store.start()
        life._started = True  # what it reports as flushed was acknowledged
        for number in range(10):
            names = tuple(random.sample(NAMES, random.randrange(1, 3)))
            ledger.put(life.store, lite_message(random, names, size=900))
            if number % 3 == 1:
                life.turn()
                ledger.settle(life.store)
            if number % 4 == 2:
                ledger.delete(life.store, random.sample(NAMES, 1))
                life.keep()
            if number == 5 and life.store.lite is not None:
                life.store.lite._table_due = True
        life.turn()
        ledger.settle(life.store)
        life.expire()
        ledger.settle(life.store)
        if ledger.forget(life.store):
            life.keep()
            life.dispatch()
        if last in (0, 2):
            life.store.shutdown()


def recover(state: CrashState, sync: bool, ledger: LiteLedger, acked_end: int) -> None:
    life = StoreLife(SimulatedDisk.of(state.image), lite_config(sync, SEGMENT_BYTES))
    life.load()
    acked_end = max(acked_end, ledger.end) if state.choice == NOTHING_LOST else acked_end
    assert life.store.max_offset >= acked_end
    ledger.adopt(life.store, SEGMENT_BYTES)
    ledger.check(life.store, acked_end)
    life.store.start()
    known = {name: life.store.lite.next_offset(b"%LMQ%$" + name) for name in NAMES} if life.store.lite else {}
    result = life.store.put_message(lite_message(Random(1), NAMES))
    assert result.size > 0
    life.store.shutdown()
    again = StoreLife(life.disk, lite_config(sync, SEGMENT_BYTES))
    again.load()
    for name, offset in known.items():
        assert again.store.max_queue_offset(b"%LMQ%$" + name, 0) == offset + 1
    assert again.store.lite is not None
    assert f"{again.store.root}/quarantine/rucola-lite" not in again.disk.names
    again.store.shutdown()
    kinds = (FindingKind.LITE_TOPICS, FindingKind.RECORD_WITHOUT_UNIT)
    found = [one for one in verify(ROOT, files_on(again.disk)).findings if one.kind in kinds]
    assert found == [], (state.choice, found)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", range(size(2, 12)))
def test_lite_topics_after_a_power_cut(sync: bool, seed: int) -> None:
    threads, random, known, steps = Random(seed), Random(seed), set[int](), count()
    life = StoreLife(
        empty_disk(), lite_config(sync, SEGMENT_BYTES), interleave=lambda: Interleaver(threads, 0.05, lambda: None)
    )
    ledger = LiteLedger()

    def at_step(_kind: str, _path: str) -> None:
        if next(steps) % ONE_IN != seed % ONE_IN:
            return
        for state in crash_states(life.disk, random, 2):
            key = hash(tuple(state.image.items()))
            if key not in known:
                known.add(key)
                recover(state, sync, ledger.copy(), life.promised_end)

    life.disk.observer = at_step
    lives(life, ledger, Random(seed))
    life.settle()
    life.disk.observer = None
    life.end()
    assert len(known) > 20
