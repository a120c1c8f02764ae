"""The stepped event loop: its time depends on the test, not on the speed of the machine."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from rucola.testing.event_loop import advance, run_stepped, settle


def test_a_timer_is_not_due_because_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        due: list[str] = []
        asyncio.get_running_loop().call_later(5, due.append, "timer")
        real, lost = time.monotonic, itertools.count()
        monkeypatch.setattr(time, "monotonic", lambda: real() + 10 * next(lost))
        await settle()
        monkeypatch.undo()
        assert not due
        advance(5)
        await settle()
        assert due == ["timer"]

    run_stepped(scene())


def test_a_timer_comes_due_while_a_test_looks_again_and_again() -> None:
    async def scene() -> None:
        due: list[str] = []
        asyncio.get_running_loop().call_later(0.01, due.append, "timer")
        for _ in range(10_000):
            await settle()
        assert due == ["timer"]

    run_stepped(scene())


def test_a_timer_comes_due_while_the_loop_waits() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(0.01)
        assert loop.time() - begun + 1e-9 >= 0.01

    run_stepped(scene())
