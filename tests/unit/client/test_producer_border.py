"""What a producer refuses at its border, whichever method the application sends with, and what it forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.client.producing import PATIENT, sent_properties

from rucola import LocalTransactionState, Message, MessageExt, Producer, TransactionListener, TransactionProducer
from rucola.common.system_properties import RESERVED
from rucola.errors import ClientError, SendManyError
from rucola.protocol.codes import RequestCode
from rucola.testing.rocketmq import RocketMQ


class Committing(TransactionListener):
    def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def submit(producer: TransactionProducer, message: Message) -> object:
    return await producer.submit(message)


async def send_many(producer: TransactionProducer, message: Message) -> None:
    with pytest.raises(SendManyError) as failed:
        await producer.send_many([Message("T", b"fine"), message])
    assert list(failed.value.errors) == [1]
    raise failed.value.errors[1]


async def send_batch(producer: TransactionProducer, message: Message) -> object:
    return await producer.send_batch([Message("T", b"fine"), message])


WAYS: dict[str, Callable[[TransactionProducer, Message], Awaitable[object]]] = {
    "send": lambda producer, message: producer.send(message),
    "send to a queue": lambda producer, message: producer.send(message, selector=lambda queues, _: queues[0]),
    "submit": submit,
    "send_oneway": lambda producer, message: producer.send_oneway(message),
    "send_batch": send_batch,
    "send_many": send_many,
    "request": lambda producer, message: producer.request(message),
    "transaction": lambda producer, message: producer.send_message_in_transaction(message),
}


@pytest.mark.parametrize("way", WAYS)
def test_properties_that_no_application_may_send(run, broker, way):
    cases = [
        *((name, "x", f"property '{name}' is used by the system: it ") for name in sorted(RESERVED)),
        ("middle-name", "", "property 'middle-name': its value is empty"),
        ("", "x", "property '': its name is empty"),
        ("age", 3, r"property 'age': its value must be a str, not int \(3\)"),
        ("a", "\ud800", r"property 'a': its value is not valid text.*lone surrogate: '\\ud800'"),
        ("a\udfff", "x", "its name is not valid text"),
        ("a", "b\x01c", r"its value must not hold U\+0001 or U\+0002: 'b\\x01c'"),
    ]

    async def scene() -> None:
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, Committing(), PATIENT) as producer,
        ):
            for name, value, problem in cases:
                late = Message("T", b"x", properties={"h": "1"})
                late.properties[name] = value
                early = late if name == "__CRC32#" else Message("T", b"x", properties={"h": "1", name: value})
                for message in (early, late):
                    with pytest.raises(ClientError, match=problem):
                        await WAYS[way](producer, message)
            assert len(one.stored) == (len(cases) * 2 if way == "send_many" else 0)
            assert all(body == b"fine" for _, body in one.stored)
            assert producer.in_flight == 0

    run(scene())


@pytest.mark.parametrize("field", ["tags", "keys", "sharding_key"])
def test_text_with_a_lone_surrogate_is_refused_by_name(run, broker, field):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            with pytest.raises(ClientError, match=r"its value is not valid text.*: 'a\\udc80'"):
                await producer.send(Message("T", b"x", **{field: "a\udc80"}))
            for topic in ("T\udc80", 5, b"T", None):
                with pytest.raises(ClientError, match=r"topic .* must be"):
                    await producer.send(Message(topic, b"x"))
            assert not one.stored

    run(scene())


def test_a_received_message_itself_is_not_sent_by_mistake(run, broker):
    """Its place in the old queue and its delay would travel with it."""

    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            message = Message("T", b"x")
            message.properties |= {"UNIQ_KEY": "7F", "MIN_OFFSET": "0", "MAX_OFFSET": "3"}
            with pytest.raises(ClientError, match=r"'MIN_OFFSET' is used by the system.*received.properties"):
                await producer.send(message)
            assert not one.stored

    run(scene())


def test_the_client_itself_may_set_what_is_reserved(run, broker):
    async def scene() -> None:
        async with (
            broker(topics={"T": 1}) as one,
            TransactionProducer("pg", one.address, Committing(), PATIENT) as producer,
        ):
            await producer.send_message_in_transaction(Message("T", b"x"))
            waiting = asyncio.ensure_future(producer.request(Message("T", b"x")))
            await one.until(lambda: len(one.stored) == 2)
            waiting.cancel()
            half, request = [sent_properties(one) for one in one.received if one.code == RequestCode.SEND_MESSAGE_V2]
            assert (half["TRAN_MSG"], half["PGROUP"]) == ("true", "pg")
            assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"} <= set(request)

    run(scene())


def test_a_forwarded_message_is_a_new_message():
    """Whatever the life of the received message was, a consumer sees the one that forwards it."""
    topics = ("transactional", "level", "delay", "deliver_at", "batch")

    async def fill(mq: RocketMQ) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        async with TransactionProducer("TP", mq.namesrv, Committing()) as producer:
            given = {"tags": "A", "keys": ["k1", "k2"], "properties": {"h": "1"}}
            await producer.send_message_in_transaction(Message("transactional", b"x", **given))
            await producer.send(Message("level", b"x", delay_level=5, **given))
            await producer.send(Message("delay", b"x", delay=timedelta(hours=1), **given))
            await producer.send(Message("deliver_at", b"x", deliver_at=later, **given))
            await producer.send_batch([Message("batch", b"x", **given)])

    async def forward(namesrv: str, sources: dict[str, MessageExt]) -> None:
        async with Producer("P", namesrv) as producer:
            for topic, source in sources.items():
                await producer.send(Message("T", topic.encode(), properties=source.properties))

    with RocketMQ() as mq:
        for topic in ("T", *topics):
            mq.create_topic(topic, queues=1)
        asyncio.run(fill(mq))
        mq.clock.advance(hours=2)
        sources = {topic: mq.wait_for_messages(topic, 1)[0] for topic in topics}
        asyncio.run(forward(mq.namesrv, sources))
        found = mq.wait_for_messages("T", len(topics))
    assert [message.body.decode() for message in found] == list(topics)
    for message in found:
        assert (message.tags, message.keys, message.user_properties) == ("A", "k1 k2", {"h": "1"})
        assert message.msg_id != sources[message.body.decode()].msg_id
