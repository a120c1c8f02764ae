"""Threads that run alternately: the same seed gives the same order, locks exclude other threads, all threads end."""

from __future__ import annotations

import threading
from random import Random

import pytest

from rucola.testing.interleaver import Deadlock, InterleavedLock, Interleaver
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import empty_disk


def turns(seed: int) -> list[str]:
    """Runs three threads; returns their steps in the order in which they ran."""
    threads, noted = Interleaver(Random(seed), 0.5), list[str]()

    def work(name: str) -> None:
        for number in range(4):
            noted.append(f"{name}{number}")
            threads.point()

    for name in "bc":
        threads.start(name, lambda name=name: work(name))  # type: ignore[misc]
    work("a")
    threads.finish()
    threads.drop()
    return noted


def test_a_seed_stands_for_an_order() -> None:
    assert turns(3) == turns(3)
    assert len({tuple(turns(seed)) for seed in range(20)}) > 15
    for name in "abc":
        assert [step for step in turns(3) if step[0] == name] == [f"{name}{number}" for number in range(4)]


def test_two_threads_never_hold_one_lock() -> None:
    for seed in range(20):
        threads = Interleaver(Random(seed), 0.7)
        lock, inside, most = InterleavedLock(threads), [0], [0]

        def work() -> None:
            for _ in range(3):
                with lock:  # noqa: B023
                    inside[0] += 1  # noqa: B023
                    most[0] = max(most[0], inside[0])  # noqa: B023
                    threads.point()  # noqa: B023
                    inside[0] -= 1  # noqa: B023

        tasks = [threads.start(name, work) for name in "ab"]
        work()
        threads.finish()
        assert most == [1]
        assert all(task.done for task in tasks)
        threads.drop()


def test_threads_that_wait_for_each_other_are_told() -> None:
    threads = Interleaver(Random(1), 1.0)
    first, second = InterleavedLock(threads), InterleavedLock(threads)

    def work() -> None:
        with second:
            threads.point()
            first.acquire()

    task = threads.start("other", work)
    with first:
        threads.yield_to(task)
        with pytest.raises(Deadlock, match=r"first.*other|other.*first"):
            second.acquire()
    threads.drop()


def test_exceptions_of_a_thread_reach_the_first_one() -> None:
    threads = Interleaver(Random(1), 1.0)

    def work() -> None:
        raise ZeroDivisionError

    threads.start("other", work)
    with pytest.raises(ZeroDivisionError):
        threads.point()
    threads.drop()


def test_a_process_that_is_gone_changes_nothing_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    disk = empty_disk()
    threads = Interleaver(Random(1), 0.0)
    files = files_on(disk, threads)
    reached = []

    def work() -> None:
        threads.yield_to(threads._first)
        reached.append("after")
        files.make_directory("/late")

    task = threads.start("other", work)
    threads.yield_to(task)
    threads.drop()
    assert task.done
    assert not reached
    assert "/late" not in disk.names
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_others_go_on_while_a_file_is_synced() -> None:
    """A sync of the simulated disk writes bytes stored before it, but not those that other threads store during it."""
    disk = empty_disk()
    threads = Interleaver(Random(1), 1.0)
    files = files_on(disk, threads)
    files.create_segment("/0", "/0.tmp", 4096)
    segment = files.map_file("/0")
    segment.buffer[0] = 1

    def store() -> None:
        segment.buffer[1] = 2

    inodes = dict(disk.inodes())
    held = list[bytes]()
    disk.observer = lambda kind, _: held.append(kind)  # type: ignore[assignment, return-value]
    threads.open_to_start = lambda: (
        [] if threads._tasks[1:] or held != ["sync"] else [lambda: threads.start("o", store)]
    )
    segment.sync()
    threads.finish()
    threads.drop()
    assert inodes["/0"].disk[:2] == bytes((1, 0))
    assert segment.buffer[1] == 2


def test_a_worker_runs_once_at_a_time_and_is_waited_for() -> None:
    threads = Interleaver(Random(1), 1.0)
    with manual_workers("rucola.store.keeper", interleaver=threads):
        from rucola.store import keeper

        running, most = [0], [0]

        def work() -> None:
            running[0] += 1
            most[0] = max(most[0], running[0])
            threads.point()
            running[0] -= 1

        worker = keeper.Worker("w", work, 1.0)
    assert isinstance(worker, ManualWorker)
    worker.start()
    for _ in range(5):
        worker.run()
    worker.stop()
    assert most == [1]
    assert running == [0]
    threads.drop()
