"""Components common to all consumers with a group, each tested alone: progress, queue allocation, pulls, shutdown."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.consuming import QUEUE, ignore, messages
from tests.unit.client.test_lite_pull_consumer import scripted as assigned
from tests.unit.client.test_push_consumer import FIRST, scripted

from rucola import AllocateMessageQueueAveragely, MessageModel, MessageQueue, PushConsumerConfig
from rucola.client.offset_store import OffsetStore
from rucola.client.process_queue import OrderlyProcessQueue, ProcessQueue
from rucola.client.pulling import Puller
from rucola.client.push_service import PushService
from rucola.client.rebalance import Rebalance
from rucola.client.subscription import subscription_data
from rucola.errors import ConfigError
from rucola.protocol.headers.pull import PullMessageResponseHeader
from rucola.remoting.api import PullAnswer
from rucola.testing.event_loop import advance, run_stepped, settle


class MemoryOffsets(OffsetStore):
    """Offsets that are only in memory."""

    async def stored(self, queue: MessageQueue) -> int | None:
        return self.known(queue)

    async def persist(self, queues: Collection[MessageQueue], *, forward_only: bool = False) -> None:
        """Does nothing: the offsets are not stored."""


def test_progress_in_memory():
    store = MemoryOffsets()
    assert store.known(QUEUE) is None
    store.update(QUEUE, 5, increase_only=True)
    store.update(QUEUE, 3, increase_only=True)
    assert store.known(QUEUE) == 5
    store.update(QUEUE, 3, increase_only=False)
    assert (store.known(QUEUE), store.snapshot("T"), store.snapshot("U")) == (3, {QUEUE: 3}, {})
    store.update_and_freeze(QUEUE, 1)
    store.update(QUEUE, 9, increase_only=True)
    assert store.known(QUEUE) == 1
    store.remove(QUEUE)
    store.update(QUEUE, 9, increase_only=True)
    assert store.known(QUEUE) == 9
    store.retain([])
    assert store.known(QUEUE) is None


class Owner:
    """Accepts queues when ``ready`` is set, and records each call."""

    def __init__(self) -> None:
        self.ready = False
        self.asked: list[float] = []
        self.queues: set[MessageQueue] = set()

    def topics(self) -> list[str]:
        return ["T"]

    def owned(self) -> set[MessageQueue]:
        return self.queues

    def leaving(self) -> tuple[MessageQueue, ...]:
        return ()

    async def add_queue(self, queue: MessageQueue, alone: bool) -> bool:
        self.asked.append(asyncio.get_running_loop().time())
        if self.ready:
            self.queues.add(queue)
        return self.ready

    async def remove_queue(self, queue: MessageQueue) -> bool:
        self.queues.discard(queue)
        return True

    async def queues_changed(self, *_: Any) -> None:
        """Does nothing: this test does not need to know of changed queues."""


def test_undivided_topics_are_tried_again_after_a_second_and_the_rest_after_20():
    async def scene() -> None:
        async def route(topic: str) -> Any:
            return SimpleNamespace(subscribe_queues=(QUEUE,))

        instance: Any = SimpleNamespace(client_id="c", routes=SimpleNamespace(route=route))
        owner = Owner()
        strategy = AllocateMessageQueueAveragely()
        one = Rebalance(instance, "cg", MessageModel.BROADCASTING, strategy, owner, 20_000)
        one.soon()
        running = asyncio.ensure_future(one.run())
        await settle()
        for count in (2, 3):
            advance(1.01)
            await settle()
            assert len(owner.asked) == count
        owner.ready = True
        advance(1.01)
        await settle()
        assert owner.queues == {QUEUE}
        owner.queues.clear()
        advance(19)
        await settle()
        assert not owner.queues
        advance(1.01)
        await settle()
        assert owner.queues == {QUEUE}
        running.cancel()

    run_stepped(scene())


@pytest.mark.parametrize(("suggested", "sys_flag"), [(0, 3), (1, 2)])
def test_a_slave_is_told_no_progress(suggested, sys_flag):
    async def scene() -> None:
        asked: list[Any] = []

        async def pull_message(address: str, header: Any, timeout_ms: int, lite: bool) -> PullAnswer:
            asked.append((address, header.sys_flag, header.commit_offset))
            return PullAnswer(19, PullMessageResponseHeader(suggested, 5, 0, 9), b"")

        async def route(topic: str) -> None:
            """Does nothing: the route is already known."""

        addresses = {0: "master", 1: "slave"}
        routes = SimpleNamespace(
            route=route, broker=lambda name, number: addresses[number], brokers={QUEUE.broker_name: addresses}
        )
        instance: Any = SimpleNamespace(routes=routes)
        api: Any = SimpleNamespace(pull_message=pull_message)
        puller = Puller(instance, api, "cg", 32, 1, 2)
        for _ in range(2):
            await puller.pull(QUEUE, 5, subscription_data("T", "*", 1), 4)
        assert asked[0] == ("master", 3, 4)
        assert asked[1] == (addresses[suggested], sys_flag, 4 if sys_flag & 1 else 0)

    run_stepped(scene())


def test_a_seek_is_progress(broker):
    async def scene() -> None:
        async with assigned(broker) as it:
            it.broker.scripts[31] = [lambda command: command.answer(0, ext_fields={"offset": "0"})]
            await it.consumer.start()
            await it.pulled(1)
            await it.consumer.seek(MessageQueue("T", "broker-a", 0), 4)
            await it.pulled(2)
            assert it.pulls[1]["queueOffset"] == "4"
            await it.consumer.shutdown()
            assert it.commits == [4]

    run_stepped(scene())


def test_a_message_sent_anew_waits_longer_each_time(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.broker.topics["%RETRY%cg"] = 1
            await it.consumer.start()
            (message,) = messages(3)
            for times in (0, 2):
                message.reconsume_times = times
                assert await it.consumer._send_back.send_anew(message)
            levels = [header.properties.partition("DELAY\x01")[2][0] for header, _ in it.broker.stored]
            assert levels == ["3", "5"]

    run_stepped(scene())


def test_brokers_hear_of_every_division(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.start()
            await it.pulled(1)
            await settle(50)
            versions = [
                one.sub_version
                for beat in it.broker.heartbeats()
                for group in beat.consumer_data_set
                for one in group.subscription_data_set
                if one.topic == "T"
            ]
            assert versions[-1] > versions[0]

    run_stepped(scene())


@pytest.mark.parametrize("reason", ["lock lost", "reset", "unsubscribed", "divided"])
def test_a_queue_is_given_up_in_one_way_whatever_the_reason(reason):
    """It is dropped at once, and forgotten when no orderly call handles its messages any more."""

    async def scene() -> None:
        divided, persisted, unlocked = [], [], []

        async def persist(queues: list[MessageQueue], *, forward_only: bool = False) -> None:
            persisted.extend((queue, known) for queue in queues if (known := store.known(queue)) is not None)

        async def unlock(queue: OrderlyProcessQueue) -> None:
            unlocked.append(queue)

        async def remove(queue: OrderlyProcessQueue) -> bool:
            return not busy

        store: Any = MemoryOffsets()
        store.persist = persist
        member: Any = SimpleNamespace(group="cg", offsets=store, rebalance_soon=lambda: divided.append(1))
        puller: Any = SimpleNamespace(forget=lambda _queue: None)
        consumption: Any = SimpleNamespace(locked=lambda: None, remove=remove)
        service = PushService(member, PushConsumerConfig(consume_orderly=True), puller, consumption)
        service.locks = SimpleNamespace(unlock=unlock)  # type: ignore[assignment]
        held, busy = OrderlyProcessQueue(QUEUE, 0), True
        service.queues[QUEUE] = held
        store.update(QUEUE, 5, increase_only=True)
        if reason == "lock lost":
            service._lock_lost(held)
        elif reason == "reset":
            await service.reset("T", {QUEUE: 7})
        elif reason == "unsubscribed":
            service.drop_topic("T")
        assert (held.dropped, list(service.leaving())) == ((True, [QUEUE]) if reason != "divided" else (False, []))
        assert not await service.remove_queue(QUEUE)
        assert (held.dropped, list(service.leaving()), unlocked) == (True, [QUEUE], [])
        busy = False
        assert await service.remove_queue(QUEUE)
        assert await service.remove_queue(QUEUE)  # nothing is left to do
        assert (service.queues, unlocked, store.known(QUEUE)) == ({}, [held], None)
        offsets = {"lock lost": set(), "reset": {7}, "unsubscribed": {5}, "divided": {5}}
        assert {offset for _, offset in persisted} == offsets[reason]
        assert bool(divided) == (reason in ("lock lost", "reset"))

    run_stepped(scene())


def test_a_restart_of_a_queue_that_was_added_again_changes_nothing():
    async def scene() -> None:
        store: Any = MemoryOffsets()
        member: Any = SimpleNamespace(group="cg", offsets=store, rebalance_soon=lambda: None)
        service = PushService(member, PushConsumerConfig(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        newer = service.queues[QUEUE] = ProcessQueue(QUEUE, 0)
        await service._restart(ProcessQueue(QUEUE, 0), 8)
        assert (newer.dropped, service.queues, store.known(QUEUE)) == (False, {QUEUE: newer}, None)

    run_stepped(scene())


@pytest.mark.parametrize("face", ["rucola", "rucola.sync"])
def test_a_config_of_another_class_is_refused_by_every_client(face):
    made = importlib.import_module(face)
    for name in ("Producer", "PushConsumer", "LitePullConsumer", "SimpleConsumer", "PullConsumer"):
        for wrong in ({"instance_name": "me"}, object()):
            with pytest.raises(ConfigError, match=f"a {name}Config"):
                getattr(made, name)("cg", "127.0.0.1:9876", wrong)
