"""The schedule of renewals: how long, how often, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.errors import BrokerError
from rucola.proxy.acknowledge import VISIBLE_SOON_MS
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.renewals import HIDDEN_MS, Renewals
from rucola.testing.clock import ManualClock

MINUTE_S = 60


class World:
    """A clock, and a broker that hides messages for as long as it is asked to."""

    def __init__(self, **group: Any) -> None:
        self.clock = ManualClock(0)
        self.changes: list[tuple[float, int, int]] = []
        """Time in s, offset of the message and new invisible time in s."""
        self.fails = 0
        self.meanwhile: list[Any] = []
        self._group = SubscriptionGroupConfig("G", **group)
        self.renewals = Renewals(self, self._change, self._show, self.clock.monotonic)  # type: ignore[arg-type]

    async def group(self, name: str) -> SubscriptionGroupConfig:
        return self._group

    def handle(self, queue_offset: int = 0) -> ReceiptHandle:
        return ReceiptHandle(0, self.clock.wall_ms(), HIDDEN_MS, 1, "0", "broker-a", 0, queue_offset, 100)

    async def _change(self, session: Any, group: str, topic: str, handle: ReceiptHandle, ms: int) -> ReceiptHandle:
        self.changes.append((self.clock.monotonic(), handle.queue_offset, ms // 1000))
        for act in self.meanwhile:
            act()
        if self.fails:
            self.fails -= 1
            raise BrokerError(1, "not now")
        return handle._replace(pop_time_ms=self.clock.wall_ms(), invisible_ms=ms)

    async def _show(self, session: Any, group: str, topic: str, handle: ReceiptHandle) -> None:
        await self._change(session, group, topic, handle, VISIBLE_SOON_MS)

    def pass_seconds(self, seconds: int) -> None:
        async def looks() -> None:
            for _ in range(seconds):
                self.clock.advance(1000)
                await self.renewals.look()

        asyncio.run(looks())


class Client:
    """Stands for a session."""


def test_each_renewal_is_longer_than_the_last() -> None:
    world = World()
    world.renewals.keep(Client(), "G", "T", world.handle(), 0)  # type: ignore[arg-type]
    world.pass_seconds(49)
    assert not world.changes
    world.pass_seconds(100 * MINUTE_S)
    minutes = [seconds // MINUTE_S for _, _, seconds in world.changes]
    assert minutes == [1, 3, 5, 10, 30, 60]
    times = [time for time, _, _ in world.changes]
    assert times[0] == 50
    for (before, _, hidden), (after, _, _) in zip(world.changes, world.changes[1:], strict=False):
        assert after == before + hidden - 10, "10 s before the message would be visible"


@pytest.mark.parametrize(
    ("policy", "reconsume_times", "last_s"),
    [
        ({"type": "CUSTOMIZED"}, 0, 10),
        ({"type": "CUSTOMIZED"}, 3, 120),
        ({"type": "CUSTOMIZED"}, 99, 7200),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 2000]}}, 0, 2),
        ({"type": "EXPONENTIAL"}, 0, 5),
        ({"type": "EXPONENTIAL"}, 3, 40),
        ({"type": "EXPONENTIAL"}, 99, 7200),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "x", "max": 3000, "multiplier": None}}, 9, 3),
    ],
)
def test_after_three_hours_the_message_comes_again(policy: Any, reconsume_times: int, last_s: int) -> None:
    world = World(group_retry_policy=policy)
    world.renewals.keep(Client(), "G", "T", world.handle(), reconsume_times)  # type: ignore[arg-type]
    world.pass_seconds(5 * 60 * MINUTE_S)
    time, _, hidden_s = world.changes[-1]
    assert hidden_s == last_s and time >= 3 * 60 * MINUTE_S
    assert not len(world.renewals) and len(world.changes) == 9


def test_failures() -> None:
    world = World()
    world.renewals.keep(Client(), "G", "T", world.handle(), 0)  # type: ignore[arg-type]
    world.fails = 2
    world.pass_seconds(60)
    assert [time for time, _, _ in world.changes] == [50, 52, 54], "tried again every 2 s"
    world.fails = 2
    world.pass_seconds(60)
    assert len(world.renewals) == 1, "failures in a row count"
    world.fails = 3
    world.pass_seconds(3 * MINUTE_S)
    assert not len(world.renewals)
    count = len(world.changes)
    world.pass_seconds(60 * MINUTE_S)
    assert len(world.changes) == count


def test_the_newest_handle_stands_for_the_first() -> None:
    world, client = World(), Client()
    first = world.handle()
    world.renewals.keep(client, "G", "T", first, 0)  # type: ignore[arg-type]
    world.pass_seconds(55)
    newest = world.renewals.take(client, "G", first)  # type: ignore[arg-type]
    assert newest.pop_time_ms == 50_000 and newest != first
    assert world.renewals.take(client, "G", first) is first, "nothing is kept any more"  # type: ignore[arg-type]
    other = Client()
    world.renewals.keep(client, "G", "T", first, 0)  # type: ignore[arg-type]
    for session, group, handle in (
        (other, "G", first),
        (client, "H", first),
        (client, "G", first._replace(queue_offset=1)),
        (client, "G", first._replace(queue_id=1)),
        (client, "G", first._replace(broker_name="broker-b")),
        (client, "G", first._replace(topic_kind="1")),
    ):
        assert world.renewals.take(session, group, handle) is handle  # type: ignore[arg-type]
    assert len(world.renewals) == 1


def test_a_handle_taken_while_it_is_renewed() -> None:
    world, client = World(), Client()
    handle = world.handle()
    world.renewals.keep(client, "G", "T", handle, 0)  # type: ignore[arg-type]
    world.meanwhile.append(lambda: world.renewals.take(client, "G", handle))  # type: ignore[arg-type]
    world.pass_seconds(60 * MINUTE_S)
    assert len(world.changes) == 1 and not len(world.renewals)


def test_a_client_that_ends_gives_its_messages_back() -> None:
    world, client, other = World(), Client(), Client()
    for number in range(200):
        world.renewals.keep(client, "G", "T", world.handle(number), 0)  # type: ignore[arg-type]
    world.renewals.keep(other, "G", "T", world.handle(), 0)  # type: ignore[arg-type]
    world.fails = 10
    asyncio.run(world.renewals.release(client))  # type: ignore[arg-type]
    assert sorted(offset for _, offset, _ in world.changes) == list(range(200))
    assert {seconds for _, _, seconds in world.changes} == {VISIBLE_SOON_MS // 1000}
    assert len(world.renewals) == 1
    world.pass_seconds(50)
    assert len(world.changes) == 201


def test_looks_that_come_late_or_often() -> None:
    world = World()
    world.renewals.keep(Client(), "G", "T", world.handle(), 0)  # type: ignore[arg-type]
    world.clock.advance(70_000)
    asyncio.run(world.renewals.look())
    asyncio.run(world.renewals.look())
    assert len(world.changes) == 1
    world.renewals.keep(Client(), "G", "T", world.handle(1)._replace(invisible_ms=0), 0)  # type: ignore[arg-type]
    world.pass_seconds(1)
    assert len(world.changes) == 2, "what is due at once is not forgotten"
