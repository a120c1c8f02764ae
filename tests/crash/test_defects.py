"""Tests the explorer itself: it notices every planted defect, and every defect that it had found in the store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.defects import (
    BETWEEN_THREADS,
    ELSEWHERE,
    FOUND,
    FOUND_BY_FAULTS,
    FOUND_IN_RECOVERY,
    MAPS_FAIL,
    PLANTED,
    PLANTED_FAULTS,
)
from tests.crash.faults import FAULTS
from tests.crash.workloads import WORKLOADS, config

from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.testing import crash_explorer
from rucola.testing.crash_explorer import CrashExplorer, Violation
from rucola.testing.fault_plan import FaultPlan

SEED = 7
ONE_IN = {
    "keys of the record at the border of two index files put twice": 13,
    "record whose checksum was lost with its page taken for one that has none": 7,
    "units found in memory after a kill not synced": 13,
}
"""Defects that are noticed late, and long before the end even if the power fails at only one in this many steps."""
PLANTED_ONE_IN = 3
"""As ``test_explorer.py`` has it by day, with as many random states."""
BETWEEN_THREADS_ONE_IN = 13
FAULTS_ONE_IN = 9


@contextmanager
def noticed(text: str | None = None) -> Iterator[None]:
    """The block must end in a violation that matches ``text``. Planted code that a change has broken does not count:
    it would be noticed whatever it plants.
    """
    with pytest.raises(Violation, match=text) as violation:
        yield
    error: BaseException | None = violation.value
    while error is not None:
        assert not isinstance(error, AttributeError | NameError | TypeError), f"the planted code is broken: {error!r}"
        error = error.__cause__ or error.__context__


def explore(workload: str, sample: int = 8, compound_every: int = 0, every: int = 1) -> None:
    name, _, flush = workload.partition(", ")
    CrashExplorer(config(flush != "async"), SEED, sample, compound_every, every=every).run(WORKLOADS[name])


def sweep(workload: str, fault: tuple[bool, int, frozenset[str]]) -> None:
    """Runs the workload once for each of its disk calls; in each run, one call fails or ends the process."""
    explorer = CrashExplorer(config(True), SEED, sample=0, every=FAULTS_ONE_IN)
    nth = 1
    while explorer.run_with_faults(WORKLOADS[workload], FaultPlan(nth, *fault)):
        nth += 1


@pytest.mark.few(6)
@pytest.mark.parametrize("name", PLANTED)
def test_power_cuts_notice(name: str) -> None:
    workload, defect = PLANTED[name]
    with defect(), noticed(f"seed {SEED}"):
        explore(workload, sample=1, every=PLANTED_ONE_IN)


@pytest.mark.parametrize(
    ("name", "ahead"),
    [
        ("acknowledged before the sync", "flushed offset"),
        ("watermark ahead of the sync", "flushed offset"),
        ("queues recorded, not synced", "queues offset"),
    ],
)
def test_progress_ahead_of_the_disk_is_noticed_without_a_power_cut(
    name: str, ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_explorer, "crash_states", lambda *_: iter(()))
    workload, defect = PLANTED[name]
    with defect(), noticed(f"{ahead} .* not synced"):
        explore(workload, sample=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PLANTED_FAULTS)
def test_faults_notice(name: str) -> None:
    workload, defect = PLANTED_FAULTS[name]
    with defect(), noticed(f"seed {SEED}"):
        sweep(workload, (False, errno.EIO, frozenset(("sync",))))


def test_power_cuts_notice_directories_that_are_not_synced() -> None:
    def prepare(files: Files) -> None:
        files.sync_directory = lambda path: None  # type: ignore[method-assign]

    with pytest.raises(Violation):
        CrashExplorer(config(True), SEED, sample=4, prepare=prepare).run(WORKLOADS["put"])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FOUND)
def test_found_and_fixed(name: str) -> None:
    workload, defect = FOUND[name]
    with defect(), noticed():
        explore(workload, every=ONE_IN.get(name, 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FOUND_IN_RECOVERY)
def test_found_in_recovery_and_fixed(name: str) -> None:
    workload, sample, compound_every, every, defect = FOUND_IN_RECOVERY[name]
    with defect(), noticed():
        explore(workload, sample, compound_every, every)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", BETWEEN_THREADS)
def test_turns_of_threads_notice(name: str) -> None:
    workload, seed, defect = BETWEEN_THREADS[name]
    with defect(), noticed(f"seed {seed}"):
        explorer = CrashExplorer(config(True), seed, sample=2, interleaved=True, every=BETWEEN_THREADS_ONE_IN)
        explorer.run(WORKLOADS[workload])


@pytest.fixture
def _stores_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the stores that tests which fail on purpose leave open."""
    loaded: list[MessageStore] = []
    load = MessageStore.load

    def noted(store: MessageStore) -> None:
        loaded.append(store)
        load(store)

    monkeypatch.setattr(MessageStore, "load", noted)
    yield
    for store in loaded:
        store.shutdown()


@pytest.mark.usefixtures("_stores_end")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_unit_tests_notice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test, defect = ELSEWHERE[name]
    (tmp_path / "sound").mkdir()
    test(tmp_path / "sound", monkeypatch)
    (tmp_path / "defect").mkdir()
    with defect(), pytest.raises(AssertionError):
        test(tmp_path / "defect", monkeypatch)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", {**FOUND_BY_FAULTS, **MAPS_FAIL})
def test_found_by_faults_and_fixed(name: str) -> None:
    workload, fault, defect = {**FOUND_BY_FAULTS, **MAPS_FAIL}[name]
    with defect(), noticed():
        sweep(workload, FAULTS[fault])
