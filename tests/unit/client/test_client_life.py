"""The life of a consumer: one start, one shutdown, on one event loop, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rucola import LitePullConsumer, MessageQueue, PushConsumer, SimpleConsumer
from rucola.client.client_life import ClientLife
from rucola.client.owner import LoopOwner
from rucola.errors import ClientError
from rucola.testing.event_loop import run_stepped, settle


class Parts:
    """A client whose start and shutdown last until the test lets them end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_start, self.may_close = asyncio.Event(), asyncio.Event()
        self.life = ClientLife("test client", LoopOwner(), self._start, self._close)

    async def _start(self) -> None:
        self.calls.append("start")
        await self.may_start.wait()
        self.calls.append("started")

    async def _close(self) -> None:
        self.calls.append("close")
        await self.may_close.wait()
        self.calls.append("closed")


def test_a_shutdown_waits_for_the_start_and_runs_once():
    async def scene() -> None:
        parts = Parts()
        starting = [asyncio.ensure_future(parts.life.start()) for _ in range(2)]
        await settle()
        closing = [asyncio.ensure_future(parts.life.close(inside=False)) for _ in range(2)]
        await parts.life.close(inside=True)  # returns at once
        await settle()
        assert parts.calls == ["start"]
        parts.may_start.set()
        await settle()
        assert parts.calls == ["start", "started", "close"]
        assert starting[0].done()
        with pytest.raises(ClientError, match="a test client that was shut down"):
            await starting[1]
        closing[0].cancel()
        parts.may_close.set()
        await closing[1]
        assert (parts.calls[3:], parts.life.closed.is_set()) == (["closed"], True)
        with pytest.raises(ClientError, match="not started, or is shut down"):
            parts.life.check_running()

    run_stepped(scene())


def test_a_start_that_is_cancelled_closes_and_one_that_only_waited_does_not():
    async def scene() -> None:
        parts = Parts()
        parts.may_close.set()
        first, second = (asyncio.ensure_future(parts.life.start()) for _ in range(2))
        await settle()
        second.cancel()
        await asyncio.wait([second])
        assert (parts.calls, parts.life.is_closing) == (["start"], False)
        first.cancel()
        await asyncio.wait([first])
        assert parts.calls == ["start", "close", "closed"]

    run_stepped(scene())


def test_a_client_that_was_never_started_has_nothing_to_close():
    async def scene() -> None:
        parts = Parts()
        await parts.life.close(inside=False)
        with pytest.raises(ClientError, match="create a new one"):
            await parts.life.start()
        assert parts.calls == []

    run_stepped(scene())


def test_a_failed_shutdown_is_told_to_everybody_and_logged(caplog):
    async def scene() -> None:
        async def fail() -> None:
            raise OSError("disk")

        async def start() -> None:
            """Starts at once."""

        life = ClientLife("test client", LoopOwner(), start, fail)
        await life.start()
        for _ in range(2):
            with pytest.raises(OSError, match="disk"):
                await life.close(inside=False)
        assert life.closed.is_set()

    run_stepped(scene())
    assert [vars(record)["rucola_event"] for record in caplog.records] == ["shutdown failed"]


CALLS: dict[str, Callable[[Any], Any]] = {
    "subscribe": lambda one: one.subscribe("U"),
    "unsubscribe": lambda one: one.unsubscribe("T"),
    "start": lambda one: one.start(),
    "shutdown": lambda one: one.shutdown(),
    "__aexit__": lambda one: one.__aexit__(None, None, None),
    "loop": lambda one: anext(aiter(one)),
    "poll": lambda one: one.poll(0),
    "commit": lambda one: one.commit(),
    "assign": lambda one: one.assign([MessageQueue("T", "broker-a", 0)]),
    "receive": lambda one: one.receive(),
}


PAIRS = [
    (kind, call)
    for kind in (PushConsumer, LitePullConsumer, SimpleConsumer)
    for call in CALLS
    if hasattr(kind, "__aiter__" if call == "loop" else call)
]


@pytest.mark.few
@pytest.mark.parametrize(("kind", "call"), PAIRS)
def test_another_event_loop_is_refused_at_once(rocketmq, kind, call):
    rocketmq.create_topic("T", queues=1)
    consumer = kind("cg", rocketmq.namesrv, topics=["T"])
    with asyncio.Runner() as runner:
        runner.run(consumer.start())

        async def calls() -> None:
            async with asyncio.timeout(5):
                await CALLS[call](consumer)

        with asyncio.Runner() as other, pytest.raises(ClientError, match="another event loop"):
            other.run(calls())
        runner.run(consumer.shutdown())


def test_assigned_queues_are_not_unsubscribed():
    async def scene() -> None:
        one = LitePullConsumer("cg", "127.0.0.1:9876")
        await one.assign([MessageQueue("T", "broker-a", 0)])
        with pytest.raises(ClientError, match="assign the queues that remain"):
            await one.unsubscribe("T")

    run_stepped(scene())
