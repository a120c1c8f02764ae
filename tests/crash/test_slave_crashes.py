"""The power fails at one in a few steps of a slave (with ``--whole`` at every step): the copy goes on, and nothing that
was reported is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.slave_life import SEGMENT, SlaveExplorer, SlaveLife, master_log, starts
from tests.masters import MasterLog
from tests.sizes import size

from rucola.testing.fault_plan import FaultPlan
from rucola.testing.store_life import ROOT, empty_disk

ONE_IN = size(25, 1)
"""The power fails at one in this many steps."""
ONE_IN_FEW = size(2, 1)
"""The same for short workloads."""
SAMPLE = size(1, 6)


def whole(life: SlaveLife) -> None:
    """A copy from the first byte over several segments, with syncs and dispatches in between."""
    life.open()
    life.connect()
    stream = memoryview(life.master.stream(life.link.request))
    for number, at in enumerate(range(0, len(stream), 3000)):
        life.link.receive(stream[at : at + 3000])
        if number % 3 == 1:
            life.dispatch()
        if number % 4 == 3:
            life.flush()
        if number % 5 == 4:
            life.keep()
        if number % 2:
            life.allocate()
    life.flush()
    life.stop()


def connections(life: SlaveLife) -> None:
    """Connections that end inside records, behind a blank record, and inside its left-over bytes."""
    life.open()
    for end in (700, 9000, SEGMENT - 20, SEGMENT, SEGMENT + 500, 2 * SEGMENT + 9000):
        life.follow(1 << 30, end=end)
        life.dispatch()
        if end % 2 == 0:
            life.flush()
    life.keep()
    life.follow(1 << 30)
    life.flush()


def kills(life: SlaveLife) -> None:
    """Processes that are killed, and stopped, inside a record."""
    for end in (5000, SEGMENT + 3000, 2 * SEGMENT, 3 * SEGMENT - 100):
        life.open()
        life.follow(1 << 30, end=end)
        life.dispatch()
        life.flush()
        if end % 3:
            life.stop()
        else:
            life.kill()
    life.open()
    life.follow(1 << 30)
    life.flush()


def another_start(life: SlaveLife) -> None:
    """A first process that has begun at a later segment, and was killed before it had a record."""
    life.open()
    life.connect(2 * SEGMENT)
    life.link.receive(memoryview(life.master.stream(2 * SEGMENT))[:40])
    life.flush()
    life.kill()
    life.promised = 0
    life.open()
    life.follow(6000)
    life.flush()
    life.stop()


def damaged(life: SlaveLife) -> None:
    """A record that is damaged on the master is passed over."""
    life.open()
    for _ in range(2):
        life.follow(1 << 30)
        life.dispatch()
    life.flush()
    life.stop()


def bad_master() -> tuple[MasterLog, tuple[tuple[int, int], ...]]:
    """A master with a damaged record, and where the record is."""
    master = master_log()
    start, end = starts(master)[12:14]
    return master.changed(start + 120, b"\xff\xfe"), ((start, end),)


@pytest.mark.few
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("workload", [whole, connections, kills, another_start])
def test_power_cuts_leave_a_copy_that_goes_on(workload: Callable[[SlaveLife], None], sync: bool) -> None:
    explorer = SlaveExplorer(7, SAMPLE, ONE_IN_FEW if workload is another_start else ONE_IN)
    life = SlaveLife(empty_disk(), master_log(), sync)
    explorer.watch(life)
    workload(life)
    print(explorer.steps, explorer.states)
    assert explorer.states > size(8, 15)


def test_power_cuts_while_a_damaged_record_is_passed_over() -> None:
    master, gaps = bad_master()
    explorer = SlaveExplorer(7, SAMPLE, size(25, 1), gaps)
    life = SlaveLife(empty_disk(), master)
    explorer.watch(life)
    damaged(life)
    print(explorer.steps, explorer.states)
    assert explorer.states > size(8, 50)
    assert life.log.end_offset == master.end


def test_a_slave_whose_last_bytes_cannot_be_erased_has_not_stopped_cleanly() -> None:
    life = SlaveLife(empty_disk(), master_log())
    life.open()
    life.follow(1500)
    assert life.log.received_offset > life.log.end_offset > 0
    life.disk.faults = plan = FaultPlan(1, kinds=("write",))
    life.stop()
    assert plan.fired
    assert f"{ROOT}/abort" in life.disk.names
