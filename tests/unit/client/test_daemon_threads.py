"""The threads of listeners that are plain functions."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from rucola.client.daemon_threads import DaemonThreads


class Gate:
    """Counts the functions that run, and holds them until it is opened."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.opened = threading.Event()
        self.names: list[str] = []

    def __call__(self, result: object = None) -> object:
        self.names.append(threading.current_thread().name)
        self.inside.release()
        self.opened.wait()
        return result

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.inside.acquire(timeout=10)


def test_functions_run_at_the_same_time_up_to_a_limit():
    pool, gate = DaemonThreads(2, "pool"), Gate()
    futures = [pool.submit(gate, number) for number in range(3)]
    gate.wait_for(2)
    assert not gate.inside.acquire(blocking=False)
    assert sorted(gate.names) == ["pool_0", "pool_1"]
    gate.opened.set()
    assert [future.result(10) for future in futures] == [0, 1, 2]
    pool.shutdown()


def test_an_idle_thread_is_used_again():
    pool, names = DaemonThreads(5, "pool"), set()
    for _ in range(5):
        names.add(pool.submit(lambda: threading.current_thread().name).result(10))
        while not pool._idle._value:  # the thread reports itself idle after the result
            pass
    assert names == {"pool_0"}
    pool.shutdown()


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
def test_a_thread_goes_on_whatever_its_function_raises(error):
    def fails():
        raise error

    pool = DaemonThreads(1, "pool")
    raised = pool.submit(fails).exception(10)
    assert raised is error or raised.__cause__ is error
    assert pool.submit(lambda: 3).result(10) == 3
    pool.shutdown()


@pytest.mark.parametrize("cancel", [True, False])
def test_shutdown_ends_the_threads(cancel):
    pool, gate = DaemonThreads(1, "pool"), Gate()
    running, waiting = pool.submit(gate, 1), pool.submit(gate, 2)
    gate.wait_for(1)
    pool.shutdown(wait=False, cancel_futures=cancel)
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(gate)
    gate.opened.set()
    pool.shutdown()
    assert running.result() == 1
    assert waiting.cancelled() is cancel
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_forgotten_pool_leaves_no_thread():
    pool = DaemonThreads(1, "pool")
    pool.submit(lambda: None).result(10)
    (thread,) = pool._threads
    del pool
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_the_interpreter_does_not_wait_for_a_function_that_never_returns():
    program = (
        "import threading\n"
        "from rucola.client.daemon_threads import DaemonThreads\n"
        "pool, inside = DaemonThreads(1, 'pool'), threading.Event()\n"
        "pool.submit(lambda: (inside.set(), threading.Event().wait()))\n"
        "inside.wait()\n"
        "pool.shutdown(wait=False)\n"
        "print('ends')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "ends\n"
