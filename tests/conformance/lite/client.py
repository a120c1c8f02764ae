"""Plays Rucola's lite clients at the official servers and at Rucola's, and compares what they get:
``python -m tests.conformance.lite.client``.

``--peer`` plays at one of them only. Each scenario gives a few words, which must be the same at both, unless
``DIFFERENT`` says why not. Exit status: 0 if all are as expected, 1 if not, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers

from rucola import (
    BrokerError,
    ClientError,
    ConsumeResultSuspend,
    LiteConsumer,
    LiteConsumerConfig,
    LiteOffset,
    LiteQuotaError,
    Message,
    Producer,
    PullConsumer,
    RucolaError,
)
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import RemotingClient

VERSION = "5.5.0"
PARENT, WILD = "agents", "wild"
SUBSCRIPTIONS_MAX = 1_500
SETTINGS: dict[str, object] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "autoCreateSubscriptionGroup": "false",
    "maxLiteSubscriptionCount": SUBSCRIPTIONS_MAX,
}
GROUPS: dict[str, dict[str, str]] = {
    "shared": {},
    "other": {},
    "failing": {},
    "owner": {"lite.sub.model": "Exclusive"},
    "all": {"lite.bind.topic": WILD, "lite.sub.wildcard": "true"},
}
PATIENCE_S = 40.0
DIFFERENT: dict[str, str] = {
    "suspension": "5.5.0 counts the first suspension as an attempt",
    "refusals": "5.5.0 looks at an unknown group late, and takes a message with a lite topic for any topic",
}
"""Scenarios with other words at Rucola's servers than at the official ones, and why."""


@dataclass
class World:
    """Servers, a producer, and what consumers have seen."""

    servers: Servers
    producer: Producer
    seen: list[Any] = field(default_factory=list)
    behaviour: dict[bytes, Callable[[int], Any]] = field(default_factory=dict)
    """What the listener does with a body, by the number of the call, from 0 on."""

    def consumer(self, group: str = "shared", topic: str = PARENT, **options: Any) -> LiteConsumer:
        """A consumer that notes lite topic, body, lite offset and attempt."""
        calls: dict[bytes, int] = {}

        async def listen(message: Any) -> Any:
            number = calls.get(message.body, 0)
            calls[message.body] = number + 1
            text = f"{message.lite_topic}:{message.body.decode()}@{message.lite_offset}#{message.reconsume_times}"
            self.seen.append((consumer, text))
            behaviour = self.behaviour.get(message.body)
            result = behaviour(number) if behaviour is not None else None
            return await result if asyncio.iscoroutine(result) else result

        config = LiteConsumerConfig(**{"invisible_duration_ms": 10_000, "retry_delay_ms": 50, **options})
        consumer = LiteConsumer(group, self.servers.namesrv, topic, config)
        consumer.register_message_listener(listen)
        return consumer

    async def send(self, lite_topic: str, *bodies: str, parent: str = PARENT) -> None:
        """Sends, again while a broker that was killed is not there yet."""
        for body in bodies:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await self.producer.send(Message(parent, body.encode(), lite_topic=lite_topic))
                        break
                    except RucolaError:
                        await asyncio.sleep(0.5)

    async def wait(self, count: int, patience_s: float = PATIENCE_S) -> str:
        """What was seen, once there are ``count`` deliveries, or the time is over; a moment longer, for more."""
        for _ in range(int(patience_s * 20)):
            if len(self.seen) >= count:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        return self.take()

    def take(self) -> str:
        """What was seen since the last time."""
        seen, self.seen = self.seen, []
        return " ".join(text for _, text in seen) or "nothing"


async def order(world: World) -> str:
    """A group that is new gets all messages of old and young lite topics, in order."""
    await world.send("order", "0", "1", "2")
    async with world.consumer() as consumer:
        await consumer.subscribe_lite("order")
        before = await world.wait(3)
        await world.send("order", "3")
        return f"{before}; {await world.wait(1)}"


async def goes_on(world: World) -> str:
    """The group goes on where it stopped, whoever subscribes."""
    await world.send("goes-on", "0", "1")
    async with world.consumer() as consumer:
        await consumer.subscribe_lite("goes-on")
        first = await world.wait(2)
    await world.send("goes-on", "2")
    async with world.consumer() as consumer:
        await consumer.subscribe_lite("goes-on")
        return f"{first}; {await world.wait(1)}"


async def options(world: World) -> str:
    """Each offset option, of a group that has read nothing, and then of one that has. RocketMQ 5.5.0 now and then
    counts an attempt when the group goes back, so attempts are not compared.
    """
    found = []
    async with world.consumer() as consumer:
        for name, start, first, second in (
            ("min", LiteOffset.MIN, 3, 3), ("max", LiteOffset.MAX, 0, 0), ("at", LiteOffset.at(1), 2, 2),
            ("tail", LiteOffset.tail(1), 3, 1),
        ):  # fmt: skip
            await world.send(f"start-{name}", "0", "1", "2")
            for what, count in ((name, first), ("again", second)):
                await consumer.subscribe_lite(f"start-{name}", start)
                text = await (world.wait(count) if count else world.wait(1, 3))
                found.append(f"{what}: {' '.join(one.partition('#')[0] for one in text.split())}")
    return "; ".join(found)


async def several(world: World) -> str:
    """A thousand lite topics by one request; a message to each is delivered once."""
    names = [f"many-{number}" for number in range(1_000)]
    async with world.consumer() as consumer:
        await consumer.subscribe_lite(names)
        for first in range(0, len(names), 8):  # the official broker makes a directory for each, and is soon busy
            await asyncio.gather(*(world.send(name, "x") for name in names[first : first + 8]))
        text = await world.wait(1_000, 60)
        await consumer.unsubscribe_lite(names[10:])
        await world.send("many-5", "kept")
        await world.send("many-500", "left")
        return f"{len(text.split())} deliveries of {len(set(text.split()))}; {await world.wait(1, 5)}"


async def failures(world: World) -> str:
    """A message that fails twice, one that always fails and becomes a dead letter, and one behind them."""
    world.behaviour[b"twice"] = lambda number: None if number >= 2 else False
    world.behaviour[b"always"] = lambda number: False
    async with world.consumer("failing", max_reconsume_times=2) as consumer:
        await consumer.subscribe_lite("failures")
        await world.send("failures", "twice", "always", "behind")
        seen = await world.wait(7)
    return f"{seen}; dead: {await _dead_letters(world, 'failing')}"


async def suspension(world: World) -> str:
    """A suspended message comes again; what is behind it waits."""
    world.behaviour[b"suspended"] = lambda number: (
        ConsumeResultSuspend(timedelta(milliseconds=400)) if number < 3 else None
    )
    async with world.consumer() as consumer:
        await consumer.subscribe_lite("suspension")
        await world.send("suspension", "first", "suspended", "behind")
        return await world.wait(6, 15)


async def long_call(world: World) -> str:
    """A call that takes longer than the invisible time: the message does not come again."""
    world.behaviour[b"long"] = lambda number: asyncio.sleep(14)
    async with world.consumer() as consumer, world.consumer() as other:
        for one in (consumer, other):
            await one.subscribe_lite("long-call")
        await world.send("long-call", "long", "behind")
        return await world.wait(2, 30)


async def eviction(world: World) -> str:
    """The last subscriber of an exclusive group takes a lite topic over; the first one is told."""
    told: list[str] = []
    async with world.consumer("owner") as first, world.consumer("owner") as second:
        first.register_eviction_listener(told.append)
        await first.subscribe_lite(["owned", "kept"])
        await world.send("owned", "one")
        await world.wait(1)
        await second.subscribe_lite("owned")
        for _ in range(100):
            if told:
                break
            await asyncio.sleep(0.05)
        await world.send("owned", "two")
        await world.send("kept", "three")
        for _ in range(200):
            if len(world.seen) == 2:
                break
            await asyncio.sleep(0.05)
        by = sorted(f"{'first' if who is first else 'second'} {text}" for who, text in world.seen)
        world.take()
        return f"told {told}, has {sorted(first.lite_topics)}; {'; '.join(by)}"


async def wildcard(world: World) -> str:
    """A wildcard group gets lite topics that are made later, and subscribes to none."""
    async with world.consumer("all", WILD) as consumer:
        try:
            await consumer.subscribe_lite("later")
            refused = "taken"
        except BrokerError as error:
            refused = f"refused {error.code}"
        await world.send("later", "one", "two", parent=WILD)
        return f"{refused}; {await world.wait(2, 60)}"


async def refusals(world: World) -> str:
    """Parents, groups and lite topics that do not fit."""
    found = []
    for group, topic in (("nobody", PARENT), ("shared", "plain"), ("plain-group", PARENT), ("shared", "nowhere")):
        try:
            async with world.consumer(group, topic):
                found.append("started")
        except (BrokerError, ClientError) as error:
            found.append(f"{getattr(error, 'code', type(error).__name__)}")
    try:
        await world.producer.send(Message("plain", b"x", lite_topic="a"))
        found.append("sent")
    except BrokerError as error:
        found.append(f"{error.code}")
    return ", ".join(found)


async def quota(world: World) -> str:
    """The quotas of the client and of the broker."""
    async with world.consumer(lite_subscription_quota=SUBSCRIPTIONS_MAX + 1) as consumer:
        await consumer.subscribe_lite([f"quota-{number}" for number in range(SUBSCRIPTIONS_MAX)])
        found = []
        for names in ("one", ["one", "two"]):
            try:
                await consumer.subscribe_lite(names)
                found.append("taken")
            except LiteQuotaError as error:
                found.append("client's" if "consumer may have" in str(error) else "broker's")
        return f"{', '.join(found)}; has {len(consumer.lite_topics)}"


async def farewell(world: World) -> str:
    """What a consumer has popped and not passed on is there for the next one at once."""
    world.behaviour[b"handled"] = lambda number: asyncio.sleep(1)
    first = world.consumer(consume_thread_max=1)
    async with first:
        await first.subscribe_lite("farewell")
        await world.send("farewell", "handled", "returned")
        while not world.seen:
            await asyncio.sleep(0.02)
    began = asyncio.get_running_loop().time()
    async with world.consumer() as second:
        await second.subscribe_lite("farewell")
        text = await world.wait(2, 15)
        took_s = asyncio.get_running_loop().time() - began
    return f"{text.split('#')[0]}; then {text.split()[-1].split('#')[0]} {'at once' if took_s < 5 else 'late'}"


async def restart(world: World) -> str:
    """Servers are killed and started: the consumer goes on by itself, and gets nothing acknowledged again."""
    async with world.consumer() as consumer:
        await consumer.subscribe_lite("restart")
        await world.send("restart", "before")
        before = await world.wait(1)
        await asyncio.sleep(6)  # brokers write offsets every 5 s
        await asyncio.to_thread(world.servers.restart)
        await world.send("restart", "after")
        return f"{before}; {await world.wait(1, 60)}"


SCENARIOS: dict[str, Callable[[World], Awaitable[str]]] = {
    step.__name__: step
    for step in (
        order, goes_on, options, several, failures, suspension, long_call, eviction, wildcard, refusals, quota,
        farewell, restart,
    )
}  # fmt: skip


class _admin:  # noqa: N801 - used as a function
    """Requests of administrators."""

    async def __aenter__(self) -> AdminApi:
        self._client = RemotingClient()
        return AdminApi(self._client)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()


async def _dead_letters(world: World, group: str) -> str:
    found = []
    async with PullConsumer("reader", world.servers.namesrv) as reader:
        for queue in await reader.message_queues(f"%DLQ%{group}"):
            offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
            if end > offset:
                found += (await reader.pull(queue, offset)).messages
    return " ".join(f"{message.lite_topic}:{message.body.decode()}" for message in found) or "none"


async def _set_up(servers: Servers) -> None:
    async with _admin() as admin:
        for parent in (PARENT, WILD):
            await admin.change_topic(servers.broker, TopicConfig(parent, 4, 4), "+message.type=LITE")
        await admin.change_topic(servers.broker, TopicConfig("plain", 1, 1), "")
        for name, attributes in GROUPS.items():
            bound = {"lite.bind.topic": PARENT} | attributes
            config = SubscriptionGroupConfig(name, attributes={f"+{key}": value for key, value in bound.items()})
            await admin.change_group(servers.broker, config)
        for name in ("plain-group", "reader"):
            await admin.change_group(servers.broker, SubscriptionGroupConfig(name))


async def _play(servers: Servers, names: Sequence[str]) -> dict[str, str]:
    await _set_up(servers)
    outcomes = {}
    for name in names:
        async with Producer("sender", servers.namesrv) as producer:
            try:
                outcomes[name] = await SCENARIOS[name](World(servers, producer))
            except Exception as error:  # noqa: BLE001 - whatever it is, the other scenarios are played
                traceback.print_exc()
                outcomes[name] = f"{type(error).__name__}: {error}"
        print(f"{servers.name}: {name}: {outcomes[name]}", flush=True)
    return outcomes


def main(arguments: list[str]) -> int:
    """Plays the scenarios and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.lite.client", description=__doc__)
    parser.add_argument("--peer", action="append", choices=("official", "rucola"), help="both by default")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=[*SCENARIOS], help="only these")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, str]] = {}
    try:
        for peer in options.peer or ("official", "rucola"):
            servers: Servers = (
                JavaServers(version=VERSION, settings=SETTINGS)
                if peer == "official"
                else RucolaServers(settings=SETTINGS)
            )
            with servers:
                found[peer] = asyncio.run(_play(servers, options.scenarios))
    except PeerError as error:
        print(f"lite: {error}", file=sys.stderr)
        return 2
    wrong = 0
    print("\n| scenario | both | | \n|---|---|---|")
    for name in options.scenarios:
        words = [outcomes[name] for outcomes in found.values()]
        is_same = len(set(words)) == 1
        wrong += not is_same and name not in DIFFERENT
        print(
            f"| {name} | {' <> '.join(words) if not is_same else words[0]} | {'' if is_same else DIFFERENT.get(name)} |"
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
