"""A clock that tests advance: when ``advance`` returns, everything due by the new time has happened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from rucola import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
    TransactionProducer,
)
from rucola.common.key_builder import retry_topic
from rucola.runtime.clock import SystemClock
from rucola.sync import Producer as BlockingProducer
from rucola.sync import PushConsumer as BlockingPushConsumer
from rucola.testing.rocketmq import RocketMQ
from rucola.testing.virtual_clock import UnmovedClock


@pytest.fixture
def servers() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


def _send(servers: RocketMQ, *messages: Message) -> None:
    with BlockingProducer("pg", servers.namesrv, ProducerConfig(send_msg_timeout_ms=60_000)) as producer:
        producer.send_many(list(messages))


def _bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


def test_delays_of_both_kinds_are_over_when_it_returns(servers: RocketMQ) -> None:
    by_level = [Message("later", b"level %d" % number, delay_level=16) for number in range(100)]  # 30 minutes
    by_time = [Message("later", b"time %d" % number, delay=timedelta(minutes=30)) for number in range(100)]
    _send(servers, *by_level, *by_time)
    servers.clock.advance(minutes=29)
    assert servers.messages("later") == []
    assert len(servers.delayed("later", count=200)) == 200
    servers.clock.advance(minutes=1, seconds=2)
    assert sorted(_bodies(servers.messages("later"))) == sorted(message.body for message in by_level + by_time)
    assert servers.delayed("later") == []


def test_waiting_messages_are_told_under_their_own_topic_and_not_after_a_withdrawal() -> None:
    with RocketMQ({"recallMessageEnable": "true"}) as servers:
        _send(servers, Message("other", b"other", delay_level=3))
        with BlockingProducer("pg", servers.namesrv) as producer:
            producer.send(Message("later", b"kept", delay=timedelta(hours=1)))
            recalled = producer.send(Message("later", b"recalled", delay=timedelta(hours=1)))
            assert [(message.topic, message.body) for message in servers.delayed("later", count=2)] == [
                ("later", b"kept"),
                ("later", b"recalled"),
            ]
            assert recalled.recall_handle is not None
            producer.recall("later", recalled.recall_handle)
        assert _bodies(servers.delayed("later")) == [b"kept"]


def test_a_failed_message_comes_again_until_it_is_a_dead_letter(servers: RocketMQ) -> None:
    seen: list[int] = []

    def fail(message: MessageExt) -> None:
        seen.append(message.reconsume_times)
        raise RuntimeError("no")

    async def work() -> None:
        servers.create_topic("poison")
        config = PushConsumerConfig(max_reconsume_times=2)
        consumer = PushConsumer("failing", servers.namesrv, config)
        consumer.register_message_listener(fail)
        await consumer.subscribe("poison")
        async with consumer, Producer("pg", servers.namesrv) as producer:
            await asyncio.to_thread(servers.consumers, "failing", 1)
            await producer.send(Message("poison", b"pill"))
            for times in range(1, 3):
                (waiting,) = await asyncio.to_thread(servers.delayed, retry_topic("failing"), 1)
                assert (waiting.body, waiting.reconsume_times) == (b"pill", times)
                assert _bodies(servers.retries("failing")) == [b"pill"]
                await asyncio.to_thread(servers.clock.advance, minutes=30)
            assert _bodies(await asyncio.to_thread(servers.dead_letters, "failing", 1)) == [b"pill"]

    asyncio.run(work())
    assert seen == [0, 1, 2]


@contextmanager
def _failing(
    servers: RocketMQ, fail: Callable[[MessageExt], None], retries_max: int, commit_ms: int = 60_000
) -> Iterator[BlockingProducer]:
    """A consumer of group ``failing`` that is ready for topic ``poison``, and a producer."""
    servers.create_topic("poison")
    config = PushConsumerConfig(max_reconsume_times=retries_max, auto_commit_interval_ms=commit_ms)
    consumer = BlockingPushConsumer("failing", servers.namesrv, config)
    consumer.register_message_listener(fail)
    consumer.subscribe("poison")
    with consumer, BlockingProducer("pg", servers.namesrv) as producer:
        servers.consumers("failing", count=1)
        yield producer


def test_the_obvious_test_of_a_dead_letter_holds(servers: RocketMQ) -> None:
    """The consumer takes its time: when ``retries`` is called, the delivered retry is not consumed yet."""
    seen: list[int] = []

    def fail(message: MessageExt) -> None:
        seen.append(message.reconsume_times)
        time.sleep(0.05)
        raise RuntimeError("no")

    with _failing(servers, fail, 3) as producer:
        producer.send(Message("poison", b"pill"))
        for _ in range(3):
            servers.retries("failing", count=1)
            servers.clock.advance(minutes=1)
        assert _bodies(servers.dead_letters("failing", count=1)) == [b"pill"]
    assert seen == [0, 1, 2, 3]


def test_a_retry_that_is_due_waits_no_more(servers: RocketMQ) -> None:
    entered, go = threading.Semaphore(0), threading.Semaphore(0)

    def fail(message: MessageExt) -> None:
        entered.release()
        assert go.acquire(timeout=30)
        raise RuntimeError("no")

    with _failing(servers, fail, 3) as producer:
        producer.send(Message("poison", b"pill"))
        assert entered.acquire(timeout=10)
        go.release()
        servers.retries("failing", count=1)
        servers.clock.advance(minutes=1)
        assert entered.acquire(timeout=10)
        assert servers.retries("failing") == []
        with pytest.raises(AssertionError, match=r"not consumed 1 again that were delivered$"):
            servers.exhaust_retries("failing", timeout=0.05)
        go.release()
        assert servers.retries("failing", count=1)[0].reconsume_times == 2


def test_retries_are_exhausted_in_one_call(servers: RocketMQ) -> None:
    tries: list[bytes] = []

    def fail(message: MessageExt) -> None:
        tries.append(message.body)
        if message.body == b"cured" and message.reconsume_times == 1:
            return
        raise RuntimeError("no")

    with _failing(servers, fail, -1, commit_ms=100) as producer:
        producer.send_many([Message("poison", body) for body in (b"one", b"two", b"cured")])
        letters = servers.exhaust_retries("failing", count=3)
        assert sorted(_bodies(letters)) == [b"one", b"two"]
        assert servers.retries("failing") == []
    assert sorted(tries) == [b"cured"] * 2 + [b"one"] * 17 + [b"two"] * 17
    assert servers.clock.ahead < timedelta(hours=5), "as long as the pauses take: 4 h 46 min"


def test_retries_with_levels_of_another_length_are_exhausted() -> None:
    def fail(message: MessageExt) -> None:
        raise RuntimeError("no")

    with RocketMQ({"messageDelayLevel": "1s 3s 5h"}) as servers, _failing(servers, fail, 2) as producer:
        producer.send(Message("poison", b"pill"))
        assert _bodies(servers.exhaust_retries("failing")) == [b"pill"]
        assert timedelta(hours=10) < servers.clock.ahead < timedelta(hours=11)


def test_a_time_without_a_unit_is_refused(servers: RocketMQ) -> None:
    with pytest.raises(TypeError, match=r"advance takes a timedelta or a unit, as in advance\(seconds=90\), not 90"):
        servers.clock.advance(90)  # type: ignore[arg-type]


def test_producers_are_asked_about_their_transactions(servers: RocketMQ) -> None:
    asked = threading.Event()

    class Undecided:
        def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
            return LocalTransactionState.UNKNOWN

        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            asked.set()
            return LocalTransactionState.COMMIT_MESSAGE

    async def work() -> None:
        servers.create_topic("paid")
        async with TransactionProducer("payers", servers.namesrv, Undecided()) as producer:
            servers.clock.advance(hours=1)
            await producer.send_message_in_transaction(Message("paid", b"espresso"), None)
            servers.clock.advance(seconds=1)
            assert not asked.is_set()  # too young for a check: broker and producer share the clock
            servers.clock.advance(minutes=1)
            await asyncio.to_thread(servers.wait_for_messages, "paid", 1)

    asyncio.run(work())
    assert asked.is_set()


def test_a_popped_message_comes_again_when_its_invisible_time_is_over(servers: RocketMQ) -> None:
    async def work() -> list[int]:
        servers.create_topic("popped", queues=1)
        config = SimpleConsumerConfig(invisible_duration_ms=600_000, await_duration_ms=3_000)
        consumer = SimpleConsumer("poppers", servers.namesrv, config)
        await consumer.subscribe("popped")
        async with consumer, Producer("pg", servers.namesrv) as producer:
            await producer.send(Message("popped", b"bubble"))
            times = []
            for _ in range(2):
                (message,) = await consumer.receive(1)
                times.append(message.reconsume_times)
                await asyncio.to_thread(servers.clock.advance, minutes=11)
            return times

    assert asyncio.run(work()) == [0, 1]


def test_files_that_are_too_old_go(servers: RocketMQ) -> None:
    body = os.urandom(1 << 20)
    _send(servers, *[Message("big", body) for _ in range(17)])
    log = Path(servers.store) / "commitlog"
    oldest = min(log.iterdir())
    servers.clock.advance(hours=1)
    assert oldest.exists()
    servers.clock.advance(hours=72)
    for _ in range(6_000):  # the keeper removes the segment one or two passes later
        if not oldest.exists():
            break
        threading.Event().wait(0.01)
    assert not oldest.exists()


def test_clients_of_other_processes_go_on_with_their_own_time(servers: RocketMQ) -> None:
    servers.create_topic("popped", queues=1)
    servers.clock.advance(hours=5)
    _send(servers, Message("popped", b"bubble"))
    code = """
import asyncio, os
from rucola import SimpleConsumer
async def work():
    consumer = SimpleConsumer("poppers", os.environ["NAMESRV_ADDR"])
    await consumer.subscribe("popped")
    async with consumer:
        (message,) = await consumer.receive(1)
        await consumer.ack(message)
        print(message.body)
asyncio.run(work())
"""
    env = {**os.environ, **servers.env}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert ran.stdout == "b'bubble'\n"


def test_all_of_a_process_share_one_time_and_it_ends_with_the_last() -> None:
    system, moved = UnmovedClock(), SystemClock()
    with RocketMQ() as first:
        with RocketMQ() as second:
            _send(second, Message("later", b"x", delay_level=16))
            first.clock.advance(minutes=31)
            assert _bodies(second.messages("later")) == [b"x"]
            assert second.clock.ahead == timedelta(minutes=31)
        assert abs(moved.wall_ms() - system.wall_ms() - 31 * 60_000) < 1_000
        assert abs(first.clock.now().timestamp() * 1000 - moved.wall_ms()) < 1_000
    assert abs(SystemClock().wall_ms() - system.wall_ms()) < 1_000


def test_time_does_not_go_back(servers: RocketMQ) -> None:
    with pytest.raises(ValueError, match="time cannot go back by 0:00:01"):
        servers.clock.advance(seconds=-1)


def test_time_passes_while_the_broker_is_away(servers: RocketMQ) -> None:
    _send(servers, Message("later", b"x", delay_level=16))
    servers.stop()
    servers.clock.advance(minutes=31)
    servers.start()
    assert _bodies(servers.wait_for_messages("later", 1)) == [b"x"]
