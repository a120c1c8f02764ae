"""Power failures and kills while the log is written in unusual ways: to several directories, to memory first, by write
calls.

Only workloads for which the way of writing matters run here; ``make crash`` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.faults import FULL_DISK, calls, plan
from tests.crash.workloads import WORKLOADS, both, by_calls, commits, paths, pool
from tests.sizes import size

from rucola.store.config import MessageStoreConfig
from rucola.testing.crash_explorer import CrashExplorer
from rucola.testing.fault_plan import FaultPlan

SEED = 11
ONE_IN = size(30, 3)
"""The power fails at one in this many steps; ``make crash`` has all of them."""
FULL_ONE_IN = size(16, 1)
"""The disk is full at one in this many allocations."""
Options = Callable[[bool], MessageStoreConfig]


FLUSH = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@pytest.mark.parametrize("workload", ["roll", "expiry"])
def test_power_cut_with_several_directories(workload: str) -> None:
    explorer = CrashExplorer(paths(True), SEED, sample=1, every=ONE_IN)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.states > size(6, 40)


def test_power_cut_of_their_recovery() -> None:
    explorer = CrashExplorer(paths(True), SEED, sample=1, compound_every=size(17, 80), every=ONE_IN)
    explorer.run(WORKLOADS["roll"])
    assert explorer.counts.compound > 5


@pytest.mark.parametrize(
    ("workload", "sync"), [("batch", True), ("roll", False), ("kill", True), ("while_syncing", False)]
)
def test_power_cut_with_a_pool(workload: str, sync: bool) -> None:
    explorer = CrashExplorer(pool(sync), SEED, sample=1, every=ONE_IN)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.states > size(6, 40)


def test_power_cut_between_commits() -> None:
    explorer = CrashExplorer(both(True), SEED, sample=1, compound_every=size(24, 133), every=ONE_IN)
    explorer.run(commits)
    print(explorer.counts)
    assert explorer.counts.states > size(12, 80)


@pytest.mark.parametrize(("workload", "sync"), [("put", True), ("roll", False), ("kill", True)])
def test_power_cut_between_calls(workload: str, sync: bool) -> None:
    explorer = CrashExplorer(by_calls(sync), SEED, sample=1, every=ONE_IN)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.states > size(6, 40)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("fault", "options", "sync"),
    [
        (fault, options, fault == "kill" if options is not pool else fault != "kill")
        for fault in ("EIO once", "kill")
        for options in (paths, pool, by_calls)
    ],
)
def test_a_call_fails_or_the_process_is_killed(fault: str, options: Options, sync: bool) -> None:
    explorer = CrashExplorer(options(sync), SEED, sample=0, every=ONE_IN)
    points = range(2, calls("put", options(sync), SEED), 17 if fault == "kill" else 31)
    fired = [explorer.run_with_faults(WORKLOADS["put"], plan(fault, nth), sample=0) for nth in points]
    assert sum(fired) > 3


@pytest.mark.few(1)
@FLUSH
def test_a_disk_that_fails_from_the_first_segment_on(sync: bool) -> None:
    """A new segment is created under a temporary name. If the disk fails, this file may stay in any log directory."""
    explorer = CrashExplorer(paths(sync), SEED, sample=0, every=ONE_IN)
    fired = [explorer.run_with_faults(WORKLOADS["put"], plan("EIO for ever", nth), sample=0) for nth in range(10, 25)]
    assert all(fired)


@pytest.mark.parametrize(("options", "sync"), [(paths, True), (pool, False), (by_calls, True), (by_calls, False)])
def test_a_full_disk_at_every_allocation_is_left_by_itself(options: Options, sync: bool) -> None:
    explorer = CrashExplorer(options(sync), SEED, sample=0)
    nth = 1
    while explorer.run_on_full_disk(WORKLOADS["roll"], FaultPlan(nth, *FULL_DISK)):
        nth += FULL_ONE_IN
    assert nth > 20
