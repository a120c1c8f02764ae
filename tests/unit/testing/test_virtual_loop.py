"""The loop in virtual time: it jumps over pauses, and stands still while something is under way."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from rucola.runtime.background import Worker
from rucola.runtime.background_imports import BackgroundImports
from rucola.runtime.clock import SystemClock
from rucola.testing.virtual_loop import VirtualEventLoop, virtual_time

T = TypeVar("T")
_LATE_S = 0.05
"""Real seconds that a thread takes; virtual timeouts are far shorter than the hour that could pass meanwhile."""
_SOON_S = 0.001


def run(work: Coroutine[Any, Any, T]) -> T:
    loop = VirtualEventLoop()
    with virtual_time(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def test_an_hour_passes_at_once_on_all_clocks():
    async def wait() -> tuple[float, float, int]:
        clock = SystemClock()
        began, wall_ms, monotonic = loop_time(), clock.wall_ms(), clock.monotonic()
        await asyncio.sleep(3_600.0)
        return loop_time() - began, clock.monotonic() - monotonic, clock.wall_ms() - wall_ms

    hour, monotonic, wall_ms = run(wait())
    assert hour == pytest.approx(3_600.0)
    assert monotonic == pytest.approx(3_600.0)
    assert wall_ms == pytest.approx(3_600_000)


def test_the_clocks_are_the_systems_again_afterwards():
    before = SystemClock.wall_ms, SystemClock.monotonic, Worker.wake, Worker._run, BackgroundImports._future
    run(asyncio.sleep(1.0))
    assert (SystemClock.wall_ms, SystemClock.monotonic, Worker.wake, Worker._run, BackgroundImports._future) == before


def late() -> threading.Event:
    event = threading.Event()
    threading.Timer(_LATE_S, event.set).start()
    return event


def test_time_stands_still_while_an_executor_works():
    async def wait() -> float:
        began, event = loop_time(), late()
        async with asyncio.timeout(_SOON_S):
            await asyncio.get_running_loop().run_in_executor(None, event.wait)
        await asyncio.sleep(1.0)
        return loop_time() - began

    assert run(wait()) == pytest.approx(1.0)


def test_time_passes_again_after_a_call_in_an_executor_was_cancelled():
    async def wait() -> None:
        call = asyncio.ensure_future(asyncio.to_thread(late().wait))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.sleep(3_600.0)

    run(wait())


def test_time_stands_still_while_a_woken_worker_works():
    async def wait() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            late().wait()
            loop.call_soon_threadsafe(done.set)

        worker = Worker("worker", work)
        worker.start()
        try:
            for _ in range(2):
                done.clear()
                worker.wake()
                async with asyncio.timeout(_SOON_S):
                    await done.wait()
        finally:
            worker.stop()

    run(wait())


def test_time_stands_still_while_a_server_imports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.import_module", lambda _: late().wait())

    async def wait() -> None:
        async with asyncio.timeout(_SOON_S):
            await BackgroundImports().get("a.module.of.nobody")

    run(wait())


def test_a_thread_that_waits_for_virtual_time_lets_it_pass():
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        began = loop.time()

        def work() -> None:
            loop.working.wait(asyncio.run_coroutine_threadsafe(asyncio.sleep(600.0), loop))

        await loop.run_in_executor(None, work)
        return loop.time() - began

    assert run(wait()) == pytest.approx(600.0)


def test_a_thread_that_waits_for_something_else_has_to_tell():
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        answer: Future[None] = Future()
        began = loop.time()
        waiting = loop.run_in_executor(None, loop.working.wait, answer)
        await asyncio.sleep(60.0)
        answer.set_result(None)
        await waiting
        return loop.time() - began

    assert run(wait()) == pytest.approx(60.0)


def test_requests_to_a_peer_outside_of_the_loop_may_be_under_way():
    async def look() -> tuple[bool, bool, bool]:
        loop: Any = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            _, inside = await asyncio.open_connection(*listener.getsockname())
            outside = bool(loop._jumping._under_way())
            peer, _ = listener.accept()
            both = await asyncio.open_connection(sock=peer)
            await asyncio.sleep(0)
            silent = bool(loop._jumping._under_way())
            inside.write(b"bytes")
            await both[0].readexactly(5)
            arrived = bool(loop._jumping._under_way())
            inside.close()
            both[1].close()
        return outside, silent, arrived

    assert run(look()) == (True, False, False)


def test_an_answer_that_takes_real_time_comes_before_a_timeout():
    async def ask() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            peer, _ = listener.accept()
        with peer:
            threading.Timer(_LATE_S, peer.sendall, [b"answer"]).start()
            writer.write(b"request")
            async with asyncio.timeout(3.0):
                answer = await reader.readexactly(6)
            writer.close()
            return answer

    assert run(ask()) == b"answer"


def test_a_step_of_the_loop_can_be_met():
    async def count() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        met: list[int] = []
        turns = 0
        loop.call_at_step(3, lambda: met.append(turns))
        for turns in range(1, 6):  # noqa: B007 - the function above reads it
            await asyncio.sleep(0)
        return met

    assert run(count()) == [4]
