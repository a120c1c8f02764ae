"""Power failures at every step of short runs of the store; ``make crash`` has the larger runs."""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.faults import FAULTS, FULL_DISK, calls_of, plan
from tests.crash.workloads import WORKLOADS, config, message
from tests.sizes import size

from rucola.runtime.files import Files
from rucola.testing.crash_explorer import CrashExplorer
from rucola.testing.crash_states import NOTHING_LOST, crash_states
from rucola.testing.fault_plan import FaultPlan
from rucola.testing.simulated_disk import Inode, SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import StoreLife, check_kept_aside, empty_disk, quarantine
from rucola.testing.store_model import Mismatch

SEED = 7
EVERY = size(3, 1)
"""The power fails at one in this many steps of short runs."""
ONE_IN = size(30, 3)
"""The power fails at one in this many steps of the runs that resemble others; ``make crash`` has all steps."""
FULL_ONE_IN = size(16, 1)
"""The disk is full at one in this many allocations."""
FLUSH = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@pytest.mark.few(2)
@pytest.mark.parametrize(("workload", "sync"), [("put", True), ("roll", False), ("kill", True), ("kill", False)])
def test_power_cuts_at_the_steps_of_a_run(workload: str, sync: bool) -> None:
    """The next test has the other workloads, and ``make crash`` all of them in both flush modes with random states."""
    explorer = CrashExplorer(config(sync), SEED, sample=1, every=EVERY)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.steps > 70
    assert explorer.counts.states > size(30, 50)


@pytest.mark.few(6)
@pytest.mark.parametrize("workload", sorted({*WORKLOADS} - {"expired_and_deleted"}))  # it is long
def test_power_cuts_while_the_threads_go_on_in_turns(workload: str) -> None:
    explorer = CrashExplorer(config(len(workload) % 2 == 0), SEED + 1, sample=0, interleaved=True, every=ONE_IN)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.states > size(5, 30)


def test_turns_and_states_are_the_same_for_a_seed() -> None:
    counts = []
    for _ in range(2):
        explorer = CrashExplorer(config(True), SEED + 3, sample=1, interleaved=True, every=ONE_IN)
        explorer.run(WORKLOADS["roll"])
        counts.append(explorer.counts)
    assert counts[0] == counts[1]
    assert counts[0].switches > 10


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("workload", "every", "sync"),
    [("put", 120, True), ("roll", 100, False), ("kill", 180, True), ("missing_queue", 100, False)],
)
def test_power_cut_at_every_step_of_the_recovery(workload: str, every: int, sync: bool) -> None:
    explorer = CrashExplorer(config(sync), SEED + 1, sample=1, compound_every=every // size(4, 3), every=10)
    explorer.run(WORKLOADS[workload])
    print(explorer.counts)
    assert explorer.counts.compound > 5


@FLUSH
def test_whole_segments_of_64_kib(sync: bool) -> None:
    def fill(life: StoreLife, random: Random) -> None:
        life.open()
        for number in range(24):
            life.put(message(random, queue_id=number % 2, size=9000))
            if number % 8 == 7:
                life.turn()

    explorer = CrashExplorer(config(sync, 65536), SEED, sample=1, every=ONE_IN)
    explorer.run(fill)
    assert explorer.counts.states > size(10, 60)


@pytest.mark.few
@pytest.mark.parametrize(
    ("fault", "workload", "sync"),
    [
        (fault, workload, (number + other) % 2 == 0)
        for number, fault in enumerate(FAULTS)
        for other, workload in enumerate(("put", "clean_stop", "kill"))
    ],
)
def test_a_call_fails_or_the_process_is_killed(fault: str, workload: str, sync: bool) -> None:
    explorer = CrashExplorer(config(sync), SEED, sample=0, every=ONE_IN)
    count = calls_of(FAULTS[fault][2], workload, config(sync), SEED)
    few = count < 122
    hit = range(1 if few else 1 + sorted(FAULTS).index(fault), count + 1, size(61, 37) if few else 499)
    fired = [explorer.run_with_faults(WORKLOADS[workload], plan(fault, nth), sample=0) for nth in hit]
    assert sum(fired) >= 1


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["EIO reading once", "EIO reading for ever"])
def test_reads_fail_while_the_threads_go_on_in_turns(fault: str) -> None:
    """Reads fail in recovering and consuming threads, and in threads that read ahead for them."""
    fired = 0
    for seed in (SEED, SEED + 1):
        explorer = CrashExplorer(config(seed % 2 == 0), seed, sample=0, interleaved=True, every=ONE_IN)
        fired += sum(
            explorer.run_with_faults(WORKLOADS["kill"], plan(fault, nth), sample=0) for nth in range(1, 60, 14)
        )
    assert fired > 5


def test_consumers_wait_for_what_is_not_in_memory() -> None:
    """A consumer of an explored store retries a pull later if a message is not in memory; the messages of all other
    pulls are compared.
    """
    lives: list[StoreLife] = []

    def workload(life: StoreLife, random: Random) -> None:
        lives.append(life)
        WORKLOADS["queues"](life, random)

    explorer = CrashExplorer(config(True), SEED, sample=0, interleaved=True, every=100)
    explorer.run(workload)
    assert lives[0].pulls["cold"] >= 2 <= lives[0].pulls["found"]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("workload", "sync"),
    [("put", True), ("put", False), ("roll", True), ("index_roll", False), ("queues", True), ("clean_stop", False)],
)
def test_a_full_disk_at_every_allocation_is_left_by_itself(workload: str, sync: bool) -> None:
    explorer = CrashExplorer(config(sync), SEED, sample=0)
    nth = 1
    while explorer.run_on_full_disk(WORKLOADS[workload], FaultPlan(nth, *FULL_DISK)):
        nth += FULL_ONE_IN
    assert nth > 20


def test_a_table_that_is_replaced_is_the_old_one_or_the_new_one() -> None:
    disk = empty_disk()
    files = files_on(disk)
    random, seen = Random(SEED), set()
    contents = [b"", *(b"%d " % number * 3000 for number in range(4))]
    done = 1

    def check(kind: str, path: str) -> None:
        for state in crash_states(disk, random, 20):
            content = files_on(SimulatedDisk.of(state.image)).read_file("/topics.json") or b""
            assert content in contents[done - 1 : done + 1]
            seen.add((done, content))

    for content in contents[1:]:
        disk.observer = check
        files.replace_file("/topics.json", content)
        disk.observer = None
        for state in crash_states(disk, random, 20):
            assert files_on(SimulatedDisk.of(state.image)).read_file("/topics.json") == content
        done += 1
    assert len(seen) == 2 * (len(contents) - 1)


def test_a_killed_process_leaves_the_bytes_that_processes_see() -> None:
    life = StoreLife(empty_disk(), config(True))
    WORKLOADS["queues"](life, Random(SEED))
    first = next(crash_states(life.disk, Random(SEED), 0))
    assert first.choice == NOTHING_LOST
    assert first.image == life.disk.seen()


def test_a_tail_that_was_kept_whole_and_then_lost_a_page_is_kept() -> None:
    """The first recovery reads bytes that are only in memory and keeps a copy of them. Before this recovery ends, the
    power fails.
    """
    life = StoreLife(empty_disk(), config(False))
    life.open()
    for _ in range(6):
        life.put(message(Random(SEED), size=2000))
    path = "/store/commitlog/00000000000000000000"
    log = bytearray(life.disk.seen()[path] or b"")
    log[4:5] = b"?"
    image = {**life.disk.seen(), path: bytes(log)}

    first = StoreLife(SimulatedDisk.of(image), config(False))
    first.load()
    check_kept_aside(first, image)
    (kept,) = [name for name in quarantine(first.disk) if name.endswith("0")]
    whole = quarantine(first.disk)[kept]
    log[:4096] = bytes(4096)
    image |= {path: bytes(log), kept.rpartition("/")[0]: None, kept: whole}

    second = StoreLife(SimulatedDisk.of(image), config(False))
    second.load()
    check_kept_aside(second, image)
    assert quarantine(second.disk)[kept] == whole
    for other in (whole[:5000] + b"?" + whole[5001:], whole[:-1], b""):
        node = second.disk.names[kept]
        assert isinstance(node, Inode)
        node.data[:] = other
        with pytest.raises(Mismatch):
            check_kept_aside(second, image)


def test_the_simulated_disk_forgets_what_was_not_synced() -> None:
    disk = empty_disk()
    files: Files = files_on(disk)
    files.make_directory("/d")
    files.create_segment("/d/0", "/d-0.tmp", 8192)
    segment = files.map_file("/d/0")
    segment.buffer[0] = 1
    segment.sync()
    segment.buffer[1] = 2
    segment.buffer[5000] = 3
    files.rename("/d/0", "/d/1")
    images = [state.image for state in crash_states(disk, Random(SEED), 100)]
    contents = {content for image in images for path, content in image.items() if content is not None}
    assert {(content[0], content[1], content[5000]) for content in contents} == {
        (1, second, third) for second in (0, 2) for third in (0, 3)
    }
    assert {path for image in images for path, content in image.items() if content is not None} == {"/d/0", "/d/1"}
