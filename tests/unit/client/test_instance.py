"""Events that a client instance passes to its registered consumers, and heartbeats about them to brokers."""

from __future__ import annotations

import asyncio
import os

import pytest

from rucola.client.config import PullConsumerConfig
from rucola.client.instance import ClientInstance, ConsumerRegistration, client_id
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from rucola.protocol.bodies.route import BrokerData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import NotifyConsumerIdsChangedRequestHeader
from rucola.runtime.clock import SystemClock
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import advance, run_stepped, settle

RARE = PullConsumerConfig(heartbeat_broker_interval_ms=36_000_000, poll_name_server_interval_ms=36_000_000)


class Consumer:
    """Keeps the events that it gets."""

    def __init__(self, group: str) -> None:
        self.data = ConsumerData(group)
        self.told: list[tuple[str, ...]] = []
        self.registration = ConsumerRegistration(
            consumer_data=lambda: self.data,
            group_changed=lambda: self.told.append(("group",)),
            route_changed=lambda topic: self.told.append(("route", topic)),
            connected=lambda address: self.told.append(("connected", address)),
        )


def group_changed(group: str) -> bytes:
    fields = NotifyConsumerIdsChangedRequestHeader(group).to_ext_fields()
    return RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=fields, flag=2, opaque=7).encode()


def test_the_name_of_an_instance():
    clock = ManualClock()
    clock.advance(12_500_000)
    own = f"10.0.0.1@{os.getpid()}#12500000000000"
    assert client_id("10.0.0.1", PullConsumerConfig(), clock) == own
    assert client_id("10.0.0.1", PullConsumerConfig(unit_name="unit"), clock) == f"{own}@unit"
    assert client_id("10.0.0.1", PullConsumerConfig(), clock, keeps_name=True) == "10.0.0.1@DEFAULT"
    assert client_id("10.0.0.1", PullConsumerConfig(instance_name="mine"), clock) == "10.0.0.1@mine"


def test_callers_that_want_a_route_at_the_same_time_share_one_request(broker):
    async def scene() -> None:
        async with broker(topics={"T": 2, "U": 1}) as one, broker("names", {}) as names:
            names.peers = [one]
            instance = ClientInstance(names.address, RARE, SystemClock())
            instance.start()

            def asked() -> list[str]:
                return [command.ext_fields["topic"] for command in names.received if command.code == 105]

            routes = instance.routes
            found = await asyncio.gather(routes.route("T"), routes.refresh("T"), routes.route("U"), routes.route("T"))
            assert [len(route.publish_queues) for route in found] == [2, 2, 1, 2]
            assert sorted(asked()) == ["T", "U"]
            assert routes.refresh_wanted("T") is False
            await routes.refresh("T")
            assert sorted(asked()) == ["T", "T", "U"]
            await instance.shutdown()

    run_stepped(scene())


def test_consumers_are_told_what_happens(broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as one, broker("names", {}) as names:
            names.peers = [one]
            instance = ClientInstance(names.address, RARE, SystemClock())
            first, second = Consumer("g1"), Consumer("g2")
            instance.register_consumer("g1", first.registration)
            instance.register_consumer("g2", second.registration)
            with pytest.raises(ClientError, match="g1 is registered already"):
                instance.register_consumer("g1", second.registration)
            instance.start()
            await instance.routes.route("T")
            await one.until(lambda: len(one.heartbeats()) == 1)
            assert [data.group_name for data in one.heartbeats()[0].consumer_data_set] == ["g1", "g2"]
            assert first.told == second.told == [("route", "T"), ("connected", one.address)]

            one.channels[0].send(group_changed("g2"))
            one.channels[0].send(group_changed("unknown"))
            await settle()
            assert (first.told[2:], second.told[2:]) == ([], [("group",)])

            await instance.routes.refresh("T")
            await settle()
            assert first.told[2:] == []  # nothing is new
            one.topics["T"] = 4
            await instance.routes.refresh("T")
            await settle()
            assert first.told[2:] == [("route", "T")]

            await instance.heartbeat()
            assert [data.group_name for data in one.heartbeats()[-1].consumer_data_set] == ["g1", "g2"]
            await instance.shutdown()
            told = [command.ext_fields for command in one.received[-2:]]
            assert told == [{"clientID": instance.client_id, "consumerGroup": group} for group in ("g1", "g2")]

    run_stepped(scene())


def test_a_heartbeat_tells_the_subscriptions_of_its_time(broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as one:
            instance = ClientInstance(one.address, RARE, SystemClock())
            consumer = Consumer("g")
            instance.start()
            await instance.routes.route("T")
            await one.until(lambda: len(one.heartbeats()) == 1)
            instance.register_consumer("g", consumer.registration)
            await settle()
            assert len(one.heartbeats()) == 2  # at once
            consumer.data.subscription_data_set.append(SubscriptionData("T", "A"))
            instance.heartbeat_soon()
            await settle()
            said = [[data.subscription_data_set for data in beat.consumer_data_set] for beat in one.heartbeats()]
            assert [[[one.sub_string for one in each] for each in sets] for sets in said] == [[], [[]], [["A"]]]
            advance(35_999)
            await settle()
            assert len(one.heartbeats()) == 3
            advance(2)
            await settle()
            assert len(one.heartbeats()) == 4
            await instance.shutdown()

    run_stepped(scene())


def test_a_consumer_hears_of_a_connection_that_came_back_after_the_heartbeat_has_left(broker):
    async def scene() -> None:
        async with broker(topics={"T": 2}) as one:
            instance = ClientInstance(one.address, RARE, SystemClock())
            consumer = Consumer("g")
            instance.register_consumer("g", consumer.registration)
            instance.start()
            await instance.routes.route("T")
            await one.until(lambda: len(one.heartbeats()) == 1)
            one.channels[-1].abort()
            await settle()
            consumer.told.clear()
            received = len(one.received)
            await instance.routes.refresh("T")
            await settle()
            assert consumer.told == [("connected", one.address)]
            assert [command.code for command in one.received[received:]].count(RequestCode.HEART_BEAT) == 1
            await instance.shutdown()

    run_stepped(scene())


def test_slaves_hear_of_consumers_only(broker):
    async def scene() -> None:
        async with broker() as master, broker() as slave:
            instance = ClientInstance(master.address, RARE, SystemClock(), producer_group="pg")
            instance.start()
            instance.routes.learn([BrokerData("c", "a", {0: master.address, 1: slave.address})])
            await instance.heartbeat()
            assert master.heartbeats()
            assert not slave.heartbeats()
            instance.register_consumer("g", Consumer("g").registration)
            await instance.heartbeat()
            assert [data.group_name for data in slave.heartbeats()[-1].consumer_data_set] == ["g"]
            await instance.shutdown()
            assert slave.received[-1].code == RequestCode.UNREGISTER_CLIENT

    run_stepped(scene())
