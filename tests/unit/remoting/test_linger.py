"""The short time after the last response in which the event loop does not sleep yet.

A turn is an iteration of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.server import RemotingServer


class Turns:
    """Stands in for the part of an event loop that the code examines: the calls that are due in the next turn."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run_until_idle(self) -> int:
        """Runs turns until the loop would sleep; returns their number."""
        turns = 0
        while self.due:
            turns += 1
            due, self.due = self.due, []
            for callback in due:
                callback()
        return turns


def test_a_loop_looks_a_few_times_and_then_sleeps() -> None:
    turns, linger = Turns(), Linger()
    loop = cast(asyncio.AbstractEventLoop, turns)
    linger.expect_more(loop)
    first = turns.run_until_idle()
    assert 1 < first < 10
    linger.expect_more(loop)
    linger.expect_more(loop)
    assert len(turns.due) == 1
    assert turns.run_until_idle() == first


class Noting(Linger):
    """A ``Linger`` that also counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def expect_more(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked += 1
        super().expect_more(loop)


def test_only_a_read_of_several_requests_keeps_the_loop_awake(run, handler):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        server.linger = noting = Noting()
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        frame = RemotingCommand(105, 1).encode()
        writer.write(frame)
        await scripted.until(lambda: sum(scripted.reads) == 1)
        assert noting.asked == 0
        writer.write(3 * frame)
        await scripted.until(lambda: sum(scripted.reads) == 4)
        assert noting.asked == 1
        writer.close()
        await server.close()

    run(scene())
