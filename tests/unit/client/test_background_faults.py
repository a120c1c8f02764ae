"""A fault in each background task of a consumer: it is logged with the task's name, and the task runs again in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.consuming import ignore, record
from tests.unit.client.test_instance import RARE
from tests.unit.client.test_push_consumer import Script, pulled, scripted

from rucola.client.instance import ClientInstance
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.route import BrokerData
from rucola.runtime.clock import SystemClock
from rucola.testing.event_loop import advance, run_stepped, settle


class Fault:
    """Replaces a method: its next call raises an exception; later calls do what the method does.

    Attributes:
        times: the loop's times of the calls; without those for retry topics.
    """

    def __init__(self, owner: object, name: str, error: BaseException) -> None:
        self.times: list[float] = []
        self._error: BaseException | None = error
        self._method: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *arguments: object, **options: object) -> Any:
        if arguments == ("%RETRY%cg",):
            return self._method(*arguments, **options)
        self.times.append(asyncio.get_running_loop().time())
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._method(*arguments, **options)

    async def seen(self, count: int, within_s: float) -> None:
        """Lets time pass until there were ``count`` calls, at most ``within_s`` seconds."""
        for _ in range(round(within_s / 0.25)):
            if len(self.times) >= count:
                return
            advance(0.25)
            await settle(30)
        raise AssertionError(f"{len(self.times)} calls in {within_s} s")


def heartbeats(it: Script) -> tuple[object, str]:
    return it.consumer._member.instance.api, "heartbeat"


def routes(it: Script) -> tuple[object, str]:
    return it.consumer._member.instance.name_servers, "route_info"


def storage(it: Script) -> tuple[object, str]:
    return it.consumer._member.offsets, "retain"


def rebalance(it: Script) -> tuple[object, str]:
    return it.consumer._service, "topics"


def locks(it: Script) -> tuple[object, str]:
    return it.consumer._service.locks, "_queues"


def expiry(it: Script) -> tuple[object, str]:
    return it.consumer._service._consumption, "_send_back"


FAULTS = {
    "heartbeats": (heartbeats, 30),
    "refresh of routes": (routes, 30),
    "storage of consumer offsets": (storage, 5),
    "rebalance": (rebalance, 20),
    "confirmation of locks": (locks, 20),
}


@pytest.mark.parametrize("error", [ValueError("a defect"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("task", FAULTS)
def test_a_background_task_runs_again_a_second_after_its_fault(broker, task, error, caplog):
    place, interval_s = FAULTS[task]

    async def scene() -> None:
        async with scripted(broker, ignore, consume_orderly=True) as it:
            it.offset = 3
            await it.consumer.start()
            await settle()
            fault = Fault(*place(it), error)
            began = asyncio.get_running_loop().time()
            await fault.seen(1, interval_s + 1)
            assert fault.times[0] - began == pytest.approx(interval_s, abs=2)
            await fault.seen(2, 2)
            assert fault.times[1] - fault.times[0] == pytest.approx(1, abs=0.8)

    run_stepped(scene())
    failed = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.rucola_event for each in failed] == ["background task failed"]
    assert failed[0].rucola_fields["task"] == task
    assert failed[0].rucola_fields["owner"]
    assert isinstance(failed[0].exc_info[1], type(error))


def test_the_expiry_of_slow_listeners_survives_a_fault(broker, caplog):
    async def scene() -> None:
        forever = asyncio.Event()

        async def listener(message):
            await forever.wait()

        async with scripted(broker, listener, consume_timeout_min=1, await_termination_ms=0) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3))]
            await it.consumer.start()
            await it.pulled(2)
            await settle()
            fault = Fault(*expiry(it), ValueError("a defect"))
            await fault.seen(1, 121)
            await fault.seen(2, 2)
            assert fault.times[1] - fault.times[0] == pytest.approx(1, abs=0.8)

    run_stepped(scene())
    assert 'background task failed task="expiry of slow listeners"' in caplog.text


def test_work_that_a_client_keeps_is_logged_by_its_name(broker, caplog):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.start()

            async def work() -> None:
                raise ValueError("a defect")

            it.consumer._member.instance.keep(work())
            await settle()

    run_stepped(scene())
    (failed,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert failed.rucola_fields["task"].endswith("work")


def test_a_route_that_cannot_be_handled_keeps_no_other_from_being_fetched(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.broker.topics["U"] = 1
            await it.consumer.subscribe("U")
            await it.consumer.start()
            names = it.consumer._member.instance.name_servers
            asked, route_info = [], names.route_info

            async def fails_for_t(topic: str) -> object:
                asked.append(topic)
                if topic == "T":
                    raise ValueError("a defect")
                return await route_info(topic)

            names.route_info = fails_for_t
            advance(30.5)
            await it.broker.until(lambda: "U" in asked)
            assert "T" in asked

    run_stepped(scene())


def test_brokers_that_left_the_cluster_get_no_heartbeat(broker):
    async def scene() -> None:
        async with broker("a", {"T": 1}) as stays, broker("b", {"T": 1}) as leaves:
            stays.peers = [leaves]
            instance = ClientInstance(stays.address, RARE, SystemClock(), producer_group="P")
            instance.start()
            await instance.routes.route("T")
            await instance.heartbeat()
            before = len(leaves.heartbeats())
            assert before
            stays.peers = []
            await instance.routes.refresh("T")
            await instance.heartbeat()
            assert len(leaves.heartbeats()) == before
            assert instance.routes.master("b") == leaves.address  # offsets of its queues can still be stored
            instance.routes.learn([BrokerData("c", "b", {0: leaves.address})])  # it is in the cluster after all
            await instance.heartbeat()
            assert len(leaves.heartbeats()) == before + 1
            instance.routes.learn([])
            await instance.heartbeat()
            assert len(leaves.heartbeats()) == before + 1
            await instance.shutdown()

    run_stepped(scene())


def test_a_queue_of_a_broker_that_left_is_given_up_and_its_offset_stored(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.offset = 3
            it.answers = [pulled(0, 4, record(3))]
            await it.consumer.start()
            await it.pulled(2)
            await settle()
            it.broker.topics.pop("T")
            async with broker("b", {"T": 1}) as other:
                other._ordinary = it.broker._ordinary
                it.broker.peers = [other]
                await it.consumer._member.instance.routes.refresh("T")
                while MessageQueue("T", "broker-a", 0) in it.consumer.assignment:
                    advance(0.25)
                    await settle(30)
                assert 4 in it.commits

    run_stepped(scene())
