"""Many messages of many topics in one call."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta

import pytest
from tests.brokers import Cluster
from tests.brokers import run as run_plain

from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, SendStatus
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, ClientError, SendManyError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.admin_api import AdminApi
from rucola.testing.event_loop import run_stepped, settle

SEND, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)
PATIENT = ProducerConfig(send_msg_timeout_ms=3_600_000, retry_backoff_ms=1, retry_times_when_send_failed=0)


def members(command) -> int:
    """Returns the number of messages in a request."""
    count, body = 0, command.body
    while body:
        count, body = count + 1, body[int.from_bytes(body[:4], "big") :]
    return count


def test_against_a_broker(tmp_path):
    """Messages of two topics are sent in several batches, some alone; each result has the offset of its message."""

    async def scene() -> None:
        config = ProducerConfig(send_many_batch_bytes=4_000)
        async with Cluster(tmp_path) as cluster, Producer("pg", cluster.namesrv.address, config) as producer:
            messages = [Message(f"T{n % 2}", b"%d" % n * (20 + n % 50), tags=f"t{n}", flag=n) for n in range(300)]
            messages += [Message("T0", b"large" * 2_000), Message("T1", b"keyed", sharding_key="k")]
            results = await producer.send_many(iter(messages))
            assert [result.status for result in results] == [SendStatus.SEND_OK] * 302
            assert [result.msg_id for result in results] == [message.uniq_key for message in messages]
            assert len({(result.message_queue, result.queue_offset) for result in results}) == 302
            async with PullConsumer("cg", cluster.namesrv.address) as consumer:
                for message, result in zip(messages, results, strict=True):
                    stored = await consumer.message_by_id(result.offset_msg_id)
                    assert (stored.body, stored.tags, stored.flag) == (message.body, message.tags, message.flag)
                    assert stored.uniq_key == message.uniq_key
                    queue = MessageQueue(stored.topic, result.message_queue.broker_name, stored.queue_id)
                    assert (queue, stored.queue_offset) == (result.message_queue, result.queue_offset)

    run_plain(scene())


@pytest.mark.parametrize("one_record", [False, True])
def test_to_a_topic_that_stores_batches_as_one_record(tmp_path, one_record):
    """In a topic that stores a batch as one record, every message still has its own offset."""

    async def scene() -> None:
        config = ProducerConfig(batch_unique_key=one_record)
        async with Cluster(tmp_path) as cluster, Producer("pg", cluster.namesrv.address, config) as producer:
            api = AdminApi(cluster.client)
            await api.change_topic(cluster.broker.address, TopicConfig("B", 1, 1), "+queue.type=BatchCQ")
            messages = [Message("B", b"%d" % n) for n in range(5)]
            results = await producer.send_many(messages)
            assert [result.msg_id for result in results] == [message.uniq_key for message in messages]
            assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
            assert len({result.offset_msg_id for result in results}) == (1 if one_record else 5)
            async with PullConsumer("cg", cluster.namesrv.address) as consumer:
                assert await consumer.max_offset(results[0].message_queue) == 5

    run_plain(scene())


def test_how_messages_are_grouped_and_split(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1, "%RETRY%g": 1}) as one:
            config = ProducerConfig(send_many_batch_bytes=1_000, compress_msg_body_over_howmuch=600)
            async with Producer("pg", one.address, config) as producer:
                await producer.send_many([Message("T", b"x" * 300) for _ in range(5)])
                assert [members(command) for command in one.received if command.code == BATCH] == [2, 2]
                assert one.codes().count(SEND) == 1  # the fifth message is sent alone
                one.received.clear()
                alone = [
                    Message("T", b"x", delay_level=1),
                    Message("T", b"x", delay=timedelta(1)),
                    Message("%RETRY%g", b"x"),
                    Message("T", b"x" * 601),
                    Message("T", b"x", sharding_key="k"),
                ]
                await producer.send_many(alone)
                assert [command.code for command in one.received if command.code in (SEND, BATCH)] == [SEND] * 5
                one.received.clear()
                asleep = {"WAIT": "false"}
                await producer.send_many(
                    [Message("T", b"x", properties=asleep if n % 3 else None) for n in range(6)]
                    + [Message("U", b"x") for _ in range(3)]
                )
                batches = [command for command in one.received if command.code == BATCH]
                assert sorted((command.ext_fields["b"], members(command)) for command in batches) == [
                    ("T", 2),
                    ("T", 4),
                    ("U", 3),
                ]
                waits = {members(command): "false" in command.ext_fields["i"] for command in batches}
                assert waits == {2: False, 4: True, 3: False}
                one.received.clear()
                large = ProducerConfig(send_many_batch_bytes=4 << 20)
            async with Producer("pg", one.address, large) as producer:
                await producer.send_many([Message("T", b"x") for _ in range(2_500)])
                assert [members(command) for command in one.received if command.code == BATCH] == [1_000, 1_000, 500]
                assert await producer.send_many([]) == []

    run(scene())


def test_partial_failures_are_told_for_each_message(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 1, "U": 1}) as one:
            config = ProducerConfig(send_many_batch_bytes=700, retry_times_when_send_failed=0)
            async with Producer("pg", one.address, config) as producer:
                refused = [lambda command: command.answer(13, "no such thing")]
                one.scripts[BATCH] = refused * 1
                messages = [
                    Message("T", b"x" * 250),
                    Message("T", b""),
                    Message("T", b"x" * 250),
                    Message("bad topic", b"x"),
                    Message("U", "text"),
                    Message("T", b"y" * 250),
                    Message("T", b"y" * 250),
                    Message("U", b"x"),
                ]
                with pytest.raises(
                    SendManyError, match=r"5 of 8 messages failed; the first, number 0: .*no such thing"
                ) as caught:
                    await producer.send_many(messages)
                kinds = [type(outcome).__name__ for outcome in caught.value.outcomes]
                assert kinds == [
                    *("BrokerError", "ClientError", "BrokerError", "ClientError", "ClientError"),
                    *("SendResult", "SendResult", "SendResult"),
                ]
                assert list(caught.value.errors) == [0, 1, 2, 3, 4]
                assert caught.value.outcomes[6].queue_offset == caught.value.outcomes[5].queue_offset + 1
                assert not caught.value.retriable
                first, third = caught.value.outcomes[0], caught.value.outcomes[2]
                assert first is not third  # one error, one traceback each
                assert isinstance(first, BrokerError)
                again = pickle.loads(pickle.dumps(caught.value))
                assert str(again) == str(caught.value)
                one.scripts[BATCH] = [lambda command: command.answer(2, "busy")]
                with pytest.raises(SendManyError) as caught:
                    await producer.send_many([Message("T", b""), *messages[5:7]])
                assert [error.retriable for error in caught.value.errors.values()] == [False, True, True]
                assert caught.value.retriable
                asked = len(one.received)
                with pytest.raises(
                    SendManyError, match=r"2 of 2 messages failed; the first, number 0: topic 'bad topic'"
                ):
                    await producer.send_many([Message("bad topic", b"x"), Message("bad topic", b"y")])
                assert len(one.received) == asked
                with pytest.raises(SendManyError, match=r"1 of 2 messages failed; .* bytes, not int"):
                    await producer.send_many([Message("T", 5), Message("T", bytearray(b"z"))])
                assert one.stored[-1][1] == b"z"
                with pytest.raises(ClientError, match="timeout_ms must be at least 1"):
                    await producer.send_many(messages, timeout_ms=0)
                assert producer.in_flight == 0
            with pytest.raises(ClientError, match="shut down"):
                await producer.send_many(messages)

    run(scene())


def test_batches_are_pipelined_and_wait_for_room(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            config = ProducerConfig(
                send_many_batch_bytes=700, send_msg_timeout_ms=3_600_000, back_pressure_for_async_send_num=3
            )
            async with Producer("pg", one.address, config) as producer:
                held: list[RemotingCommand] = []
                one.scripts[BATCH] = [held.append] * 6
                sending = asyncio.gather(producer.send_many([Message("T", b"x" * 200) for _ in range(12)]))
                await one.until(lambda: len(held) == 3)
                await settle()
                assert len(held) == 3  # the other batches wait for responses to these
                for _ in range(6):
                    one.channels[-1].send(one._store(held.pop(0)).encode())
                    await settle()
                (results,) = await sending
                assert len({(result.queue_offset, result.msg_id) for result in results}) == 12

    run_stepped(scene())


def test_a_call_that_is_given_up_leaves_nothing_behind(broker):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one, Producer("pg", one.address, PATIENT) as producer:
            one.scripts[BATCH] = [lambda command: None]
            sending = asyncio.ensure_future(producer.send_many([Message("T", b"x"), Message("T", b"y")]))
            await one.until(lambda: BATCH in one.codes())
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            one.channels[-1].close()
            await producer.flush()
            assert producer.in_flight == 0

            def broken():
                yield Message("T", b"x")
                raise OSError("the input ends here")

            with pytest.raises(OSError, match="the input ends here"):
                await producer.send_many(broken())

    run_stepped(scene())
