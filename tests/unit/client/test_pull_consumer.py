"""The pull consumer with a scripted broker over loopback."""

from __future__ import annotations

import asyncio
import zlib
from datetime import UTC, datetime

import pytest

from rucola import MessageQueue, MessageSelector, PullConsumer, PullConsumerConfig, PullStatus
from rucola.common.message import StoreMessage
from rucola.errors import (
    BrokerError,
    ClientError,
    FormatError,
    RemotingClosedError,
    RemotingTimeoutError,
    UnreadableBodyError,
)
from rucola.formats.message import encode_message
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle

PULL = int(RequestCode.PULL_MESSAGE)
QUEUE = MessageQueue("T", "broker-a", 1)
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def record(
    queue_offset: int, body: bytes, stored_at: int = 1_700_000_000_000, sys_flag: int = 0, **properties: str
) -> bytes:
    message = StoreMessage(b"T", 1, body, encode_properties(properties), 1_699_999_999_000, HOST, sys_flag=sys_flag)
    return encode_message(message, 1000 + queue_offset, queue_offset, stored_at, HOST)


def pull_answer(code: int, next_begin_offset: int, body: bytes = b"", suggested: int = 0):
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": "2",
        "maxOffset": "9",
    }
    return lambda command: command.answer(code, ext_fields=fields, body=body)


def offset_answer(value: int, name: str = "offset"):
    return lambda command: command.answer(0, ext_fields={name: str(value)})


def test_a_body_that_cannot_be_unpacked_raises_when_it_is_read(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            packed = zlib.compress(b"three" * 10)
            body = record(3, packed, sys_flag=1) + record(4, b"junk", sys_flag=1) + record(5, b"five")
            one.scripts[PULL] = [pull_answer(0, 6, body)]
            found = (await consumer.pull(QUEUE, 3)).messages
            assert [found[0].body, found[2].body] == [b"three" * 10, b"five"]
            with pytest.raises(UnreadableBodyError, match="body of message 4 of T, queue 1"):
                found[1].body  # noqa: B018

    run(scene())


def test_pull(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            assert await consumer.message_queues("T") == [MessageQueue("T", "broker-a", n) for n in range(4)]
            body = record(3, b"three", TAGS="A", KEYS="k", UNIQ_KEY="U3") + record(4, b"four", TAGS="B")
            one.scripts[PULL] = [pull_answer(0, 5, body)]
            result = await consumer.pull(QUEUE, 3)
            assert result[:4] == (PullStatus.FOUND, 5, 2, 9)
            first, second = result.messages
            assert (first.body, first.tags, first.keys, first.queue_offset, first.physical_offset) == (
                b"three",
                "A",
                "k",
                3,
                1003,
            )
            assert (first.msg_id, second.offset_msg_id) == ("U3", "7F00000100002A9F00000000000003EC")
            assert (first.broker_name, first.queue_id) == ("broker-a", 1)
            request = next(command for command in one.received if command.code == PULL)
            assert request.ext_fields == {
                "consumerGroup": "cg",
                "topic": "T",
                "queueId": "1",
                "queueOffset": "3",
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
                "subscription": "*",
                "expressionType": "TAG",
                "bname": "broker-a",
            }

    run(scene())


def test_pull_raw_gives_the_records_as_they_are(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            body = record(3, b"three")
            one.scripts[PULL] = [pull_answer(0, 4, body), pull_answer(0, 4, b"\0not a record")]
            assert (await consumer.pull_raw(QUEUE, 3)).body == body
            with pytest.raises(FormatError):
                await consumer.pull(QUEUE, 3)

    run(scene())


@pytest.mark.parametrize(
    ("code", "status"),
    [(19, PullStatus.NO_NEW_MSG), (20, PullStatus.NO_MATCHED_MSG), (21, PullStatus.OFFSET_ILLEGAL)],
)
def test_outcomes_without_messages(run, broker, code, status):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[PULL] = [pull_answer(code, 7)]
            assert await consumer.pull(QUEUE, 3) == (status, 7, 2, 9, [])

    run(scene())


def test_tags_with_equal_hashes_are_told_apart(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            body = record(3, b"1", TAGS="AaAa") + record(4, b"2", TAGS="BBBB") + record(5, b"3")
            one.scripts[PULL] = [pull_answer(0, 6, body)] * 2
            result = await consumer.pull(QUEUE, 3, 16, "BBBB || C")
            assert [message.body for message in result.messages] == [b"2"]
            assert result.next_begin_offset == 6
            request = next(command for command in one.received if command.code == PULL)
            assert (request.ext_fields["subscription"], request.ext_fields["maxMsgNums"]) == ("BBBB || C", "16")
            assert len((await consumer.pull_raw(QUEUE, 3, expression="BBBB")).body) == len(body)

    run(scene())


@pytest.mark.parametrize("code", [16, 17, 23, 26, 1])
def test_refused_pulls(run, broker, code):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[PULL] = [lambda command: command.answer(code, "no")]
            with pytest.raises(BrokerError, match="no") as caught:
                await consumer.pull(QUEUE, 3)
            assert (caught.value.code, caught.value.address) == (code, one.address)

    run(scene())


def test_a_held_pull_may_take_its_time(broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            held: list[RemotingCommand] = []
            one.scripts[PULL] = [held.append] * 3
            pulling = asyncio.ensure_future(consumer.pull(QUEUE, 3, suspend_timeout_ms=20_000))
            await one.until(lambda: len(held) == 1)
            assert (held[0].ext_fields["sysFlag"], held[0].ext_fields["suspendTimeoutMillis"]) == ("6", "20000")
            advance(25)
            await settle()
            one.channels[-1].send(pull_answer(19, 3)(held[0]).encode())
            assert (await pulling).status is PullStatus.NO_NEW_MSG
            for suspend_timeout_ms, patience_s in ((0, 10), (60_000, 70)):
                late = asyncio.ensure_future(consumer.pull(QUEUE, 3, suspend_timeout_ms=suspend_timeout_ms))
                await settle()
                advance(patience_s - 1)
                await settle()
                assert not late.done()
                advance(2)
                with pytest.raises(RemotingTimeoutError):
                    await late

    run_stepped(scene())


def test_slow_queues_are_read_where_the_broker_says(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[PULL] = [pull_answer(19, 3, suggested=1)] * 2
            await consumer.pull(QUEUE, 3)
            # There is no slave, so the master continues to serve.
            assert (await consumer.pull(QUEUE, 3)).status is PullStatus.NO_NEW_MSG

    run(scene())


def test_offsets(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts = {
                int(RequestCode.GET_MIN_OFFSET): [offset_answer(2)],
                int(RequestCode.GET_MAX_OFFSET): [offset_answer(9)],
                int(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP): [offset_answer(5)],
                int(RequestCode.GET_EARLIEST_MSG_STORETIME): [offset_answer(1_700_000_000_000, "timestamp")],
                int(RequestCode.QUERY_CONSUMER_OFFSET): [
                    offset_answer(7),
                    lambda command: command.answer(
                        22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                    ),
                ],
            }
            assert await consumer.min_offset(QUEUE) == 2
            assert await consumer.max_offset(QUEUE) == 9
            assert await consumer.offset_for_time(QUEUE, 1_700_000_000_123) == 5
            assert await consumer.earliest_store_time(QUEUE) == 1_700_000_000_000
            assert await consumer.committed(QUEUE) == 7
            assert await consumer.committed(QUEUE) is None
            await consumer.commit(QUEUE, 8)
            update = next(one for one in one.received if one.code == RequestCode.UPDATE_CONSUMER_OFFSET)
            assert update.ext_fields["commitOffset"] == "8"
            assert not update.is_oneway

    run(scene())


def test_message_by_id(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[int(RequestCode.VIEW_MESSAGE_BY_ID)] = [
                lambda command: command.answer(0, body=record(int(command.ext_fields["offset"]) - 1000, b"found"))
            ]
            offset_msg_id = f"7F000001{one.server.port:08X}{1003:016X}"
            message = await consumer.message_by_id(offset_msg_id)
            assert (message.body, message.physical_offset) == (b"found", 1003)
            for wrong in ("", "7F", "no hex at all, but thirty-two char", "00" * 20):
                with pytest.raises(ClientError, match="not an offset message id"):
                    await consumer.message_by_id(wrong)

    run(scene())


def test_query_by_key_compares_the_key_itself(run, broker):
    async def scene() -> None:
        async with broker("broker-a", {"T": 1}) as one, broker("broker-b", {"T": 1}) as other:
            one.peers = [other]
            query = int(RequestCode.QUERY_MESSAGE)
            one.scripts[query] = [
                lambda command: command.answer(
                    0, body=record(3, b"late", 1_700_000_000_900, KEYS="a k") + record(4, b"hash only", KEYS="kk")
                )
            ]
            other.scripts[query] = [
                lambda command: command.answer(0, body=record(1, b"early", 1_700_000_000_100, KEYS="k"))
            ]
            async with PullConsumer("cg", one.address) as consumer:
                found = await consumer.query_by_key("T", "k", 10, begin_timestamp_ms=5, end_timestamp_ms=6)
                assert [(message.body, message.broker_name) for message in found] == [
                    (b"early", "broker-b"),
                    (b"late", "broker-a"),
                ]
                fields = next(command.ext_fields for command in one.received if command.code == query)
                assert (fields["key"], fields["maxNum"], fields["_UNIQUE_KEY_QUERY"]) == ("k", "10", "false")
                assert (fields["beginTimestamp"], fields["endTimestamp"]) == ("5", "6")
                one.scripts[query] = [lambda command: command.answer(22, "can not find message")]
                other.scripts[query] = [
                    lambda command: command.answer(
                        0, body=record(1, b"x", UNIQ_KEY="U1") + record(2, b"y", UNIQ_KEY="U2")
                    )
                ]
                assert [message.body for message in await consumer.query_by_unique_key("T", "U2")] == [b"y"]

    run(scene())


def test_unknown_topic_is_not_created(run, broker):
    async def scene() -> None:
        async with broker() as one, PullConsumer("cg", one.address) as consumer:
            with pytest.raises(ClientError, match="no route to topic T"):
                await consumer.message_queues("T")
            with pytest.raises(ClientError, match="no route"):
                await consumer.pull(QUEUE, 0)

    run(scene())


def test_topics(run, broker):
    async def scene() -> None:
        async with broker() as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)] = [
                lambda command: command.answer(0, body=b'{"topicList":["T","U"]}')
            ]
            assert await consumer.topics() == ["T", "U"]

    run(scene())


def test_broker_comes_back_under_another_address(run, broker):
    async def scene() -> None:
        async with broker("names", {}) as names, PullConsumer("cg", names.address) as consumer:
            async with broker("broker-a", {"T": 2}) as old:
                names.peers = [old]
                old.scripts[PULL] = [pull_answer(19, 3), lambda command: old.channels[-1].abort()]
                await consumer.pull(QUEUE, 3)
                with pytest.raises(RemotingClosedError):
                    await consumer.pull(QUEUE, 3)
            async with broker("broker-a", {"T": 2}) as new:
                names.peers = [new]
                new.scripts[PULL] = [pull_answer(19, 3)]
                await consumer.message_queues("T")
                assert (await consumer.pull(QUEUE, 3)).status is PullStatus.NO_NEW_MSG

    run(scene())


def test_registers_as_a_consumer_that_pulls(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one:
            async with PullConsumer("cg", one.address) as consumer:
                await consumer.message_queues("T")
                await one.until(lambda: bool(one.heartbeats()))
                group = one.heartbeats()[0].consumer_data_set[0]
                assert (group.group_name, group.consume_type, group.message_model) == (
                    "cg",
                    "CONSUME_ACTIVELY",
                    "CLUSTERING",
                )
            assert one.received[-1].ext_fields == {"clientID": consumer.client_id, "consumerGroup": "cg"}
            with pytest.raises(ClientError, match="not started"):
                await consumer.pull(QUEUE, 0)

    run(scene())


def test_a_group_that_needs_no_registration_is_in_no_heartbeat(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one:
            async with PullConsumer("cg", one.address, registers=False) as consumer:
                await consumer.message_queues("T")
                await consumer._instance.heartbeat()
                assert not any(beat.consumer_data_set for beat in one.heartbeats())
            # A broker that hangs would delay the end of the client.
            assert RequestCode.UNREGISTER_CLIENT not in [command.code for command in one.received]

    run(scene())


def test_settings():
    with pytest.raises(ClientError, match="group"):
        PullConsumer("", "127.0.0.1:1")
    assert PullConsumerConfig().consumer_pull_timeout_ms == 10_000


def test_an_expression_has_a_kind(run, broker):
    """An SQL92 expression is sent as SQL92, and the messages found are not compared with tags."""

    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            body = record(3, b"1", TAGS="A") + record(4, b"2", TAGS="a > 3")
            for selector, kind, bodies in (
                (MessageSelector.by_sql("a > 3"), "SQL92", [b"1", b"2"]),
                (MessageSelector.by_tag("a > 3"), "TAG", [b"2"]),
                (MessageSelector.by_tag("A || a > 3"), "TAG", [b"1", b"2"]),
                (MessageSelector.by_tag("*"), "TAG", [b"1", b"2"]),
                ("A", "TAG", [b"1"]),
                ("not a", "TAG", []),
            ):
                one.scripts[PULL] = [pull_answer(0, 5, body)]
                result = await consumer.pull(QUEUE, 3, expression=selector)
                assert [message.body for message in result.messages] == bodies
                fields = one.received[-1].ext_fields
                text = selector if isinstance(selector, str) else selector.expression
                assert (fields["expressionType"], fields["subscription"]) == (kind, text)

    run(scene())


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda c: c.pull(QUEUE, 3, expression="a > 3"), r"'a > 3' looks like SQL92.*MessageSelector.by_sql"),
        (lambda c: c.pull(QUEUE, 3, expression="a in ('x')"), "looks like SQL92"),
        (lambda c: c.pull_raw(QUEUE, 3, expression="a is not null"), "looks like SQL92"),
        (lambda c: c.pull(QUEUE, 3, expression=None), "must be a str or a MessageSelector, not None"),
        (lambda c: c.pull(QUEUE, 3, expression=" || "), "at least one tag"),
        (lambda c: c.pull(QUEUE, 3, expression=MessageSelector.by_sql(" ")), "must not be empty"),
        (lambda c: c.pull("T", 3), "queue must be a MessageQueue, not 'T'"),
        (lambda c: c.pull(QUEUE, "x"), "queue_offset must be a whole number, not 'x'"),
        (lambda c: c.pull(QUEUE, -1), "queue_offset must be at least 0, not -1"),
        (lambda c: c.pull(QUEUE, 1 << 63), "queue_offset must be at most"),
        (lambda c: c.pull(QUEUE, 3, 0), "max_messages must be at least 1, not 0"),
        (lambda c: c.pull(QUEUE, 3, suspend_timeout_ms=-1), "suspend_timeout_ms must be at least 0"),
        (lambda c: c.commit(QUEUE, "x"), "consumer_offset must be a whole number, not 'x'"),
        (lambda c: c.commit(QUEUE, True), "consumer_offset must be a whole number, not True"),
        (lambda c: c.commit(QUEUE, -1), "consumer_offset must be at least 0"),
        (lambda c: c.commit("T", 1), "queue must be a MessageQueue"),
        (lambda c: c.committed("T"), "queue must be a MessageQueue"),
        (lambda c: c.max_offset("T"), "queue must be a MessageQueue"),
        (lambda c: c.offset_for_time(QUEUE, "x"), "timestamp_ms must be a whole number, not 'x'"),
        (lambda c: c.offset_for_time(QUEUE, datetime.now(UTC)), "timestamp_ms must be a whole number, not datetime"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_the_call(run, broker, call, problem):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            with pytest.raises(ClientError, match=problem):
                await call(consumer)
            assert not one.received  # no request was sent

    run(scene())


def test_a_refusal_names_code_broker_remark_and_whether_to_try_again(run, broker):
    async def scene() -> None:
        async with broker(topics={"T": 4}) as one, PullConsumer("cg", one.address) as consumer:
            one.scripts[PULL] = [lambda command: command.answer(26, "no such group")]
            with pytest.raises(BrokerError) as caught:
                await consumer.pull(QUEUE, 3)
            place = f"broker-a ({one.address})"
            code = "code 26 SUBSCRIPTION_GROUP_NOT_EXIST"
            assert str(caught.value) == f"{place} answered {code}: no such group (another try will not help)"

    run(scene())
