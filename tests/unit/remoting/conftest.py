"""Fixtures: a handler whose responses the test chooses, and a function that runs tests on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.remoting.server import Channel
from rucola.testing.event_loop import SteppedEventLoop

Run = Callable[[Coroutine[Any, Any, None]], None]


class ScriptedHandler:
    """Keeps all frames that arrive; responds to a request with the result of its code's function, if there is one."""

    def __init__(self, answers: dict[int, Callable[[RemotingCommand], RemotingCommand | None]] | None = None) -> None:
        self.answers = answers or {}
        self.received: list[RemotingCommand] = []
        self.reads: list[int] = []
        self.channels: list[Channel] = []
        self.closed: list[Channel] = []
        self.arrived = asyncio.Event()

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        if channel not in self.channels:
            self.channels.append(channel)
        self.reads.append(batch.count)
        self.serve_rows(channel, batch, 0)

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        for row in range(first, batch.count):
            command = batch.command(row)
            if command.is_response:
                continue
            self.received.append(command)
            answer = self.answers.get(command.code, lambda _: None)(command)
            if answer is not None:
                channel.send(answer.encode())
        self.arrived.set()

    def channel_closed(self, channel: Channel) -> None:
        self.closed.append(channel)
        self.arrived.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits for arrivals until ``reached`` is true."""
        while not reached():
            self.arrived.clear()
            await self.arrived.wait()


@pytest.fixture
def handler() -> type[ScriptedHandler]:
    return ScriptedHandler


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each of the two event loops."""

    def run_on(work: Coroutine[Any, Any, None]) -> None:
        factory: Callable[[], asyncio.AbstractEventLoop] = SteppedEventLoop
        if request.param == "uvloop":
            factory = pytest.importorskip("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run_on
