"""A lite consumer through random faults: requests that are refused or lost, connections that end, brokers that start
anew, slow and failing listeners, lite topics that are left and subscribed again.

Whatever happens, the messages of a lite topic are given one at a time, none before the earlier ones were handled; in
the end all of them were handled and acknowledged, and nothing is held any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from tests.unit.client.liting import ACK, CHANGE, CTL, POP, LiteBroker, lite_consumer, lost, pass_by, refused

from rucola import ConsumeResultSuspend, RucolaError
from rucola.testing.event_loop import run_stepped

NAMES = ("a", "b", "c")
STEPS = 40


class World:
    """The application, and what it promises itself of its consumer."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.calm = False
        self.running: set[str] = set()
        self.handled: Counter[str] = Counter()
        """Number of messages of each lite topic, from the first one on, that were handled."""
        self.calls = 0
        self.wrong: list[str] = []

    async def listen(self, message: Any) -> Any:
        name, offset = message.lite_topic, message.lite_offset
        if name in self.running:
            self.wrong.append(f"{name} {offset}: two calls at a time")
        if offset > self.handled[name]:
            self.wrong.append(f"{name} {offset}: before {self.handled[name]} was handled")
        self.running.add(name)
        self.calls += 1
        try:
            outcome = 9 if self.calm else self.random.randrange(10)
            if outcome == 0:
                raise ValueError("no")
            if outcome == 1:
                return ConsumeResultSuspend(timedelta(milliseconds=self.random.randrange(50, 8_000)))
            if outcome == 2:
                await asyncio.sleep(self.random.random() * 45)
            self.handled[name] = max(self.handled[name], offset + 1)
        finally:
            self.running.discard(name)
        return None


async def step(world: World, broker: LiteBroker, consumer: Any, calls: set[asyncio.Task[None]]) -> None:
    """One thing happens."""
    random = world.random
    name = random.choice(NAMES)
    event = random.randrange(9)
    if event < 3:
        broker.send(name, *[b"x"] * random.randrange(1, 4))
    elif event < 5:
        await pass_by(random.random() * 12)
    elif event == 5:
        answer = random.choice((refused(1), refused(13), lost))
        broker.scripts.setdefault(random.choice((ACK, CHANGE, POP, CTL)), []).append(answer)
    elif event == 6 and broker.channels:
        if random.randrange(2):
            broker.subscriptions.clear()
            for lite in broker.lite.values():
                lite.batch = None
                lite.counts.clear()
        broker.channels[-1].close()
    elif event == 7:
        call = consumer.unsubscribe_lite if random.randrange(2) else consumer.subscribe_lite
        calls.add(asyncio.ensure_future(call(name)))
    else:
        for lite in broker.lite.values():
            lite.batch = None  # somebody has cleared it
        broker.wake()
    await pass_by(0.05)


async def play(seed: int) -> World:
    world = World(seed)
    async with LiteBroker() as broker:
        broker.keep_offsets = True
        consumer = lite_consumer(
            broker, invisible_duration_ms=10_000, retry_delay_ms=100, broker_suspend_max_time_ms=4_000
        )
        consumer.register_message_listener(world.listen)
        async with consumer:
            await consumer.subscribe_lite(NAMES)
            calls: set[asyncio.Task[None]] = set()
            for _ in range(STEPS):
                await step(world, broker, consumer, calls)
            world.calm = True
            broker.scripts.clear()
            for _ in range(3):
                await pass_by(4)
            for call in calls:
                with suppress(RucolaError):
                    await call
            await consumer.subscribe_lite(NAMES)
            for _ in range(60):
                if all(lite.committed == len(lite.records) for lite in broker.lite.values()) and not world.running:
                    break
                await pass_by(4)
            assert {name: (lite.committed, world.handled[name]) for name, lite in broker.lite.items()} == {
                name: (len(lite.records), len(lite.records)) for name, lite in broker.lite.items()
            }
            await pass_by(25)
            assert len(consumer._queues) == 0
            assert (consumer._queues._room._messages, consumer._queues._room._bytes) == (0, 0)
            assert broker.subscriptions[consumer.client_id] == set(NAMES)
        assert consumer.client_id not in broker.subscriptions
    return world


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(40))
def test_each_message_is_handled_in_order_whatever_happens(seed):
    world: list[World] = []

    async def scene() -> None:
        world.append(await play(seed))

    run_stepped(scene())
    assert world[0].wrong == []
    assert world[0].calls > 0
