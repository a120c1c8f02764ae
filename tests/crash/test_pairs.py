"""Crashes of a master and its slaves at a few steps of short runs; ``make crash`` has 100,000 states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.pair_explorer import PairExplorer
from tests.crash.pair_ledger import Broken
from tests.crash.pair_workloads import CONFIGS, WORKLOADS
from tests.sizes import size

from rucola.broker.ha import copying
from rucola.broker.ha.master import HaServer
from rucola.store.ha.master_link import MasterLink
from rucola.store.ha.overlap import Overlap
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_log import SlaveLog
from rucola.store.log.flush import FlushService
from rucola.store.message_store import MessageStore

SEED = 5
EVERY = size(60, 5)
"""The power fails at one in this many steps."""
NEVER = 1 << 30
RUNS = size(2, 40)
"""Number of runs without power cuts at each step; they take a fortieth of a second each."""


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("workload", "pair"),
    [
        ("calm", "sync-alone"),
        ("links", "async"),
        ("liars", "one-of-two"),
        ("kills", "sync-later"),
        ("power", "sync"),
        ("power", "async-alone"),
        ("disks", "two-of-two"),
        ("outages", "broker"),
    ],
)
def test_nothing_acknowledged_is_lost_with_a_disk(workload: str, pair: str) -> None:
    explorer = PairExplorer(CONFIGS[pair], SEED, size(0, 3), EVERY)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.states > size(4, 100)
    assert explorer.counts.promoted or explorer.counts.states < 8


@pytest.mark.few(3)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_pairs_come_to_rest_with_equal_logs(workload: str) -> None:
    for seed in range(RUNS):
        pair = list(CONFIGS.values())[(seed + list(WORKLOADS).index(workload)) % len(CONFIGS)]
        PairExplorer(pair, SEED + seed, 0, NEVER).run(WORKLOADS[workload])


def test_a_run_is_the_same_for_a_seed() -> None:
    explorers = [PairExplorer(CONFIGS["sync"], SEED, 1, 80) for _ in range(2)]
    for explorer in explorers:
        explorer.run(WORKLOADS["power"])
    assert explorers[0].counts == explorers[1].counts
    assert explorers[0].known == explorers[1].known


def _unsynced_is_reported(patch: pytest.MonkeyPatch) -> None:
    report = SlaveLink.report
    patch.setattr(SlaveLink, "report", lambda link, _: report(link, link._log.end_offset))


def _unsynced_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageStore, "confirm_offset", property(lambda store: store.max_offset))


def _another_log_is_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlap, "is_equal", True)


def _partial_records_are_shown(patch: pytest.MonkeyPatch) -> None:
    publish = SlaveLog._publish
    patch.setattr(SlaveLog, "_publish", lambda log, end, *what: publish(log, min(end + 1, log.received_offset), *what))


def _any_report_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterLink, "_take", lambda link, reports: setattr(link, "acknowledged", max(reports)))


def _one_copy_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    held = HaServer.held_offset
    patch.setattr(HaServer, "held_offset", lambda server, _, oldest: held(server, 1, oldest))


def _failed_syncs_are_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlushService, "fail", lambda _: None)


def _trouble_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copying, "_check_disk", lambda _: None)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("defect", "workload", "pair", "seed", "found"),
    [
        (_unsynced_is_reported, "calm", "sync", 0, "some of it not synced"),
        (_unsynced_is_sent, "calm", "sync", 0, "not synced"),
        (_another_log_is_followed, "power", "async", 5, "none that its master has had"),
        (_partial_records_are_shown, "calm", "async", 1, "none that its master has had"),
        (_any_report_is_believed, "liars", "sync", 0, "a liar is believed|is acknowledged"),
        (_one_copy_counts_for_all, "links", "two-of-two", 2, "1 slaves have it"),
        (_failed_syncs_are_repeated, "errors", "sync", 0, "not synced"),
        (_trouble_is_ignored, "errors", "broker", 0, "StoreState.IO_ERROR"),
    ],
)
def test_defects_are_noticed(
    defect: Callable[[Any], None], workload: str, pair: str, seed: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Args:
    seed: a seed that notices it; another change may need later ones.
    """
    defect(monkeypatch)
    with pytest.raises(Broken, match=found):
        for later in range(40):
            PairExplorer(CONFIGS[pair], seed + later, 0, NEVER).run(WORKLOADS[workload])
