"""Faults that a test starts, as clients see them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator

import pytest

from rucola import (
    Message,
    MessageModel,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    SendStatus,
)
from rucola.errors import BrokerError, RemotingError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.runtime.files import Files
from rucola.sync import Producer as BlockingProducer
from rucola.testing.rocketmq import RocketMQ

PATIENT = ProducerConfig(send_msg_timeout_ms=20_000)
ONCE = ProducerConfig(retry_times_when_send_failed=0, send_msg_timeout_ms=20_000)


@pytest.fixture(scope="module")
def module_servers() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


@pytest.fixture
def servers(module_servers: RocketMQ) -> Iterator[RocketMQ]:
    yield module_servers
    module_servers.faults.clear()


def _bodies(servers: RocketMQ, topic: str) -> list[bytes]:
    return [message.body for message in servers.messages(topic)]


def test_dropped_requests_never_arrive(servers: RocketMQ) -> None:
    with BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        producer.send(Message("dropped", b"before"))
        with servers.faults.drop("send") as fault, pytest.raises(RemotingError):
            producer.send(Message("dropped", b"lost"), timeout_ms=300)
        assert fault.hits >= 1
        producer.send(Message("dropped", b"after"))
    assert _bodies(servers, "dropped") == [b"before", b"after"]


def test_dropped_answers_leave_the_message(servers: RocketMQ) -> None:
    with BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        servers.faults.drop_answers("send", times=1)
        with pytest.raises(RemotingError):
            producer.send(Message("answers", b"stored"), timeout_ms=300)
        producer.send(Message("answers", b"after"))
    assert _bodies(servers, "answers") == [b"stored", b"after"]


def test_refused_requests_are_answered_with_the_error_and_only_so_often(servers: RocketMQ) -> None:
    with BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        servers.faults.refuse("send", code=ResponseCode.NO_PERMISSION, remark="not today", times=1)
        with pytest.raises(BrokerError, match="not today") as refusal:
            producer.send(Message("refused", b"no"))
        assert refusal.value.code == ResponseCode.NO_PERMISSION
        producer.send(Message("refused", b"yes"))
    assert _bodies(servers, "refused") == [b"yes"]


def test_a_refused_request_in_the_middle_of_a_read_concerns_no_other(servers: RocketMQ) -> None:
    servers.create_topic("middle", queues=1)

    async def work() -> list[object]:
        async with Producer("pg", servers.namesrv, ONCE) as producer:
            servers.faults.refuse("send", code=ResponseCode.MESSAGE_ILLEGAL, times=3)
            sends = [producer.submit(Message("middle", b"%d" % number)) for number in range(20)]
            return list(await asyncio.gather(*sends, return_exceptions=True))

    results = asyncio.run(work())
    assert sum(isinstance(result, BrokerError) for result in results) == 3
    assert len(_bodies(servers, "middle")) == 17


def test_delayed_requests_arrive_later(servers: RocketMQ) -> None:
    with BlockingProducer("pg", servers.namesrv, PATIENT) as producer:
        producer.send(Message("delayed", b"before"))
        servers.faults.delay(0.2, "send", times=1)
        began = time.monotonic()
        result = producer.send(Message("delayed", b"late"))
        assert time.monotonic() - began >= 0.19  # a loop's timers may end one clock tick early
        assert result.status is SendStatus.SEND_OK
    assert _bodies(servers, "delayed") == [b"before", b"late"]


def test_a_fault_of_one_kind_of_requests_leaves_the_others_alone(servers: RocketMQ) -> None:
    with servers.faults.drop("pull") as fault, BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        producer.send(Message("others", b"x"))
    assert fault.hits == 0
    assert _bodies(servers, "others") == [b"x"]


def test_wait_ends_with_the_request_that_the_fault_met(servers: RocketMQ) -> None:
    servers.create_topic("waited", queues=1)

    async def work() -> None:
        async with PullConsumer("cg", servers.namesrv, PullConsumerConfig()) as consumer:
            (queue,) = await consumer.message_queues("waited")
            fault = servers.faults.refuse(RequestCode.PULL_MESSAGE)
            with pytest.raises(AssertionError, match="after 0 s the fault has affected 0 requests, not 1"):
                fault.wait(timeout=0)
            pulling = asyncio.create_task(consumer.pull(queue, 0))
            await asyncio.to_thread(fault.wait)
            with pytest.raises(BrokerError):
                await pulling

    asyncio.run(work())


def test_unknown_requests_are_refused_with_those_there_are(servers: RocketMQ) -> None:
    with pytest.raises(ValueError, match=r"requests must be one of 'send', 'pull', .*, not 'sned'"):
        servers.faults.drop("sned")


def test_nothing_passes_a_blackhole_and_no_connection_ends_before_it(servers: RocketMQ) -> None:
    servers.create_topic("hole", queues=1)

    async def work() -> None:
        async with (
            Producer("pg", servers.namesrv, ONCE) as producer,
            PullConsumer("cg", servers.namesrv, PullConsumerConfig()) as consumer,
        ):
            (queue,) = await consumer.message_queues("hole")
            await producer.send(Message("hole", b"before"))
            waiting = asyncio.create_task(consumer.pull(queue, 1, suspend_timeout_ms=15_000))
            await asyncio.sleep(0.1)
            with servers.faults.blackhole():
                with pytest.raises(RemotingError):
                    await producer.send(Message("hole", b"lost"), timeout_ms=300)
                assert not waiting.done()
            with pytest.raises(RemotingError):
                await waiting
            await producer.send(Message("hole", b"after"))

    asyncio.run(work())
    assert _bodies(servers, "hole") == [b"before", b"after"]


def test_waiting_requests_hear_nothing_through_a_blackhole(servers: RocketMQ) -> None:
    servers.create_topic("later", queues=1)

    async def work() -> None:
        async with Producer("pg", servers.namesrv) as producer, PullConsumer("cg", servers.namesrv) as consumer:
            (queue,) = await consumer.message_queues("later")
            await producer.send(Message("later", b"x", delay_level=5))
            waiting = asyncio.create_task(consumer.pull(queue, 0, suspend_timeout_ms=15_000))
            await asyncio.sleep(0.1)
            with servers.faults.blackhole():
                await asyncio.to_thread(servers.clock.advance, minutes=2)
                assert len(servers.messages("later")) == 1
                await asyncio.sleep(0.1)
                assert not waiting.done()
            with pytest.raises(RemotingError):
                await waiting

    asyncio.run(work())


def test_a_slow_disk_makes_producers_wait_that_wait_for_it() -> None:
    with RocketMQ({"flushDiskType": "SYNC_FLUSH"}) as servers:
        with BlockingProducer("pg", servers.namesrv, PATIENT) as producer:
            producer.send(Message("slow", b"before"))
            with servers.faults.slow_disk(0.2):
                began = time.monotonic()
                producer.send(Message("slow", b"late"))
                assert time.monotonic() - began >= 0.19  # a loop's timers may end one clock tick early
        assert _bodies(servers, "slow") == [b"before", b"late"]


def test_a_full_disk_refuses_messages_until_there_is_space() -> None:
    with RocketMQ() as servers, BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        producer.send(Message("full", b"before"))
        with servers.faults.full_disk():
            with pytest.raises(BrokerError):
                producer.send(Message("full", b"no space"))
            assert _bodies(servers, "full") == [b"before"]
        producer.send(Message("full", b"after"))
        assert _bodies(servers, "full") == [b"before", b"after"]


def test_a_nearly_full_disk_of_the_computer_concerns_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "disk_usage", lambda _self, _path: (99 << 30, 1 << 30))
    with RocketMQ() as servers, BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        servers.clock.advance(minutes=2)
        producer.send(Message("nearly", b"accepted"))
        assert _bodies(servers, "nearly") == [b"accepted"]


@pytest.mark.parametrize("model", list(MessageModel))
def test_consumers_are_there_when_their_start_offsets_are_known(servers: RocketMQ, model: MessageModel) -> None:
    topic = f"started_{model.name}"
    seen = asyncio.Queue[bytes]()

    async def work(directory: str) -> bytes:
        servers.create_topic(topic, queues=2)
        config = PushConsumerConfig(message_model=model, local_offset_store_dir=directory)
        consumer = PushConsumer(topic, servers.namesrv, config)
        consumer.register_message_listener(lambda message: seen.put_nowait(message.body))
        await consumer.subscribe(topic)
        with servers.faults.delay(0.2, RequestCode.GET_MAX_OFFSET) as fault:
            starting = asyncio.ensure_future(consumer.start())
            await asyncio.to_thread(fault.wait, 2)  # the consumer requests the end of each queue, where it starts
            with pytest.raises(AssertionError, match=f"group {topic}: 1, but not every queue is read"):
                await asyncio.to_thread(servers.consumers, topic, 1, 0)
            await starting
            async with consumer, Producer("pg", servers.namesrv) as producer:
                await asyncio.to_thread(servers.consumers, topic, 1)
                await producer.send(Message(topic, b"first"))
                async with asyncio.timeout(5):
                    return await seen.get()

    with tempfile.TemporaryDirectory() as directory:
        assert asyncio.run(work(directory)) == b"first"


def test_faults_end_with_clear(servers: RocketMQ) -> None:
    servers.faults.drop()
    servers.faults.blackhole()
    servers.faults.clear()
    with BlockingProducer("pg", servers.namesrv, ONCE) as producer:
        producer.send(Message("clear", b"x"))
    assert _bodies(servers, "clear") == [b"x"]


def test_groups_and_topics_are_waited_for(servers: RocketMQ) -> None:
    with pytest.raises(AssertionError, match=r"after 0 s there is no topic made_later; topics with messages: \w"):
        servers.wait_for_topic("made_later", 0)
    with pytest.raises(
        AssertionError, match="after 0 s consumers of group none: 0, not 1; there is no group none; groups: "
    ):
        servers.consumers("none", 1, 0)
    servers.create_topic("made_later")
    servers.create_group("none")
    servers.wait_for_topic("made_later")
    assert servers.consumers("none") == []


def test_the_ids_of_a_large_batch_fit_into_the_response(servers: RocketMQ) -> None:
    """They take more bytes than the header of a request may have."""
    with BlockingProducer("pg", servers.namesrv, PATIENT) as producer:
        result = producer.send_batch([Message("large", b"x") for _ in range(10_000)])
    assert result.status is SendStatus.SEND_OK
    assert len(_bodies(servers, "large")) == 10_000
