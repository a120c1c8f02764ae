"""The push consumer: its requests to a scripted broker on a stepped clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.client.consuming import ignore, record

from rucola import (
    ConsumeFromWhere,
    MessageQueue,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
)
from rucola.errors import ClientError, ConfigError, RemotingError
from rucola.protocol.bodies.consumer_list import GetConsumerListByGroupResponseBody
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, run_stepped, settle

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
PULL, QUERY, COMMIT, MEMBERS = 11, 14, 15, 38
QUEUE = MessageQueue("T", "broker-a", 0)


def pulled(code: int, next_begin_offset: int, body: bytes = b"") -> Callable[[RemotingCommand], Any]:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": "0",
        "maxOffset": "9",
    }
    return lambda command: command.answer(code, ext_fields=fields, body=body)


class Script:
    """A scripted broker that knows one consumer and records its requests."""

    def __init__(self, broker: Any, consumer: PushConsumer) -> None:
        self.broker = broker
        self.consumer = consumer
        self.members = [consumer.client_id]
        self.pulls: list[dict[str, str]] = []
        self.commits: list[int] = []
        self.offset: int | None = None
        self.max_offset = 7
        self.answers: list[Callable[[RemotingCommand], Any]] = []
        ordinary = broker._ordinary

        def answer(command: RemotingCommand) -> RemotingCommand | None:
            ours = getattr(self, f"_on_{command.code}", None)
            return ours(command) if ours else ordinary(command)

        broker._ordinary = answer

    def _on_38(self, command: RemotingCommand) -> RemotingCommand:
        return command.answer(0, body=GetConsumerListByGroupResponseBody(self.members).encode())

    def _on_14(self, command: RemotingCommand) -> RemotingCommand:
        if self.offset is None:
            return command.answer(22, "not found")
        return command.answer(0, ext_fields={"offset": str(self.offset)})

    def _on_15(self, command: RemotingCommand) -> RemotingCommand:
        self.commits.append(int(command.ext_fields["commitOffset"]))
        return command.answer(0)

    def _on_30(self, command: RemotingCommand) -> RemotingCommand:
        return command.answer(0, ext_fields={"offset": str(self.max_offset)})

    def _on_29(self, command: RemotingCommand) -> RemotingCommand:
        return command.answer(0, ext_fields={"offset": "5"})

    def _on_41(self, command: RemotingCommand) -> RemotingCommand:
        wanted = LockBatchRequestBody.decode(command.body).mq_set
        return command.answer(0, body=LockBatchResponseBody(wanted).encode())

    def _on_11(self, command: RemotingCommand) -> RemotingCommand | None:
        self.pulls.append(command.ext_fields)
        return self.answers.pop(0)(command) if self.answers else None

    async def pulled(self, count: int) -> None:
        await self.broker.until(lambda: len(self.pulls) >= count)


@asynccontextmanager
async def scripted(broker: Any, listener: Any = None, /, **options: Any) -> AsyncIterator[Script]:
    """Returns a consumer of one topic with one queue, not started yet."""
    async with broker(topics={"T": 1}) as one:
        consumer = PushConsumer("cg", one.address, PushConsumerConfig(**options))
        if listener is not None:
            consumer.register_message_listener(listener)
        await consumer.subscribe("T")
        try:
            yield Script(one, consumer)
        finally:
            await consumer.shutdown()


def test_requests_from_start_to_end_are_these(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4))]
            await it.consumer.start()
            await it.pulled(2)
            first, second = it.pulls
            version = int(first["subVersion"])
            assert version > 0
            assert first == {
                "consumerGroup": "cg",
                "topic": "T",
                "queueId": "0",
                "queueOffset": "3",
                "maxMsgNums": "32",
                "sysFlag": "3",  # commit the offset, and suspend
                "commitOffset": "3",
                "suspendTimeoutMillis": "15000",
                "subVersion": str(version),
                "expressionType": "TAG",
                "bname": "broker-a",
            }
            assert (second["queueOffset"], second["sysFlag"], second["commitOffset"]) == ("5", "3", "3")
            beat = it.broker.heartbeats()[0]
            (group,) = beat.consumer_data_set
            assert (group.group_name, group.consume_type, group.message_model, group.consume_from_where) == (
                "cg",
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                "CONSUME_FROM_LAST_OFFSET",
            )
            topics = {one.topic: one.sub_string for one in group.subscription_data_set}
            assert topics == {"T": "*", "%RETRY%cg": "*"}
            assert it.consumer.assignment == [QUEUE]
            await it.consumer.shutdown()
            assert it.commits == [5]
            codes = it.broker.codes()
            assert codes.index(34) < codes.index(38) < codes.index(14) < codes.index(11)
            assert codes[-2:] == [15, 35]

    run_stepped(scene())


@pytest.mark.parametrize(
    ("where", "begins_at"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 7),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 5),
        (ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET, 7),
    ],
)
def test_where_a_group_without_progress_begins(broker, where, begins_at):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=where, consume_timestamp="20260102030405") as it:
            await it.consumer.start()
            await it.pulled(1)
            stored = [] if where is FIRST else [begins_at]  # so that whoever gets the queue later begins there, too
            assert it.commits == stored
            assert (it.pulls[0]["queueOffset"], it.pulls[0]["sysFlag"]) == (str(begins_at), "3" if stored else "2")
            if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                (search,) = [one for one in it.broker.received if one.code == 29]
                assert int(search.ext_fields["timestamp"]) % 1000 == 0

    run_stepped(scene())


def test_a_stored_progress_wins(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.offset = 4
            await it.consumer.start()
            await it.pulled(1)
            assert it.pulls[0]["queueOffset"] == "4"

    run_stepped(scene())


def test_a_queue_whose_progress_cannot_be_asked_for_is_begun_later(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.broker.scripts[QUERY] = [lambda command: command.answer(1, "busy")]
            starting = asyncio.ensure_future(it.consumer.start())
            await it.broker.until(lambda: QUERY in it.broker.codes())
            await settle()
            assert it.consumer.assignment == []
            assert not starting.done()
            advance(1.1)
            await starting
            assert it.consumer.assignment == [QUEUE]
            await it.pulled(1)

    run_stepped(scene())


def test_in_company_the_first_pull_waits_half_a_second(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.members = [it.consumer.client_id, "~"]
            await it.consumer.start()
            await it.broker.until(lambda: 30 in it.broker.codes())
            await settle(50)
            assert it.pulls == []
            advance(0.51)
            await it.pulled(1)

    run_stepped(scene())


def test_progress_is_stored_every_5_s_and_goes_with_pulls(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 1, record(0)), pulled(0, 2, record(1))]
            await it.consumer.start()
            await it.pulled(3)
            assert [(one["sysFlag"], one["commitOffset"]) for one in it.pulls] == [("2", "0"), ("2", "0"), ("3", "1")]
            await settle()
            advance(5.1)
            await it.broker.until(lambda: bool(it.commits))
            assert it.commits == [2]

    run_stepped(scene())


def test_an_end_without_messages_is_progress_too(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.answers = [pulled(20, 6), pulled(19, 6)]
            await it.consumer.start()
            await it.pulled(3)
            assert [one["queueOffset"] for one in it.pulls] == ["0", "6", "6"]
            assert it.pulls[1]["commitOffset"] == "6"

    run_stepped(scene())


def test_progress_does_not_pass_a_message_in_hand(broker):
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            await gate.wait()

        async with scripted(broker, listener, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 1, record(0)), pulled(20, 6)]
            await it.consumer.start()
            await it.pulled(3)
            assert it.pulls[2]["commitOffset"] == "0"
            gate.set()
            await it.consumer.shutdown()
            assert it.commits == [1]

    run_stepped(scene())


@pytest.mark.parametrize(
    "limits", [{"pull_threshold_for_queue": 2}, {"consume_concurrently_max_span": 2}, {"pull_threshold_for_topic": 4}]
)
def test_pulling_waits_for_room(broker, limits):
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            await gate.wait()

        async with scripted(broker, listener, consume_from_where=FIRST, **limits) as it:
            count = 5 if "pull_threshold_for_topic" in limits else 4
            it.answers = [pulled(0, count, b"".join(record(n) for n in range(count)))]
            await it.consumer.start()
            await it.pulled(1)
            await settle(100)
            assert len(it.pulls) == 1
            gate.set()
            await it.pulled(2)

    run_stepped(scene())


@pytest.mark.parametrize("limits", [{"pull_threshold_size_for_queue": 1}, {"pull_threshold_size_for_topic": 1}])
def test_pulling_waits_for_room_in_bytes(broker, limits):
    async def scene() -> None:
        gate = asyncio.Event()

        async def listener(message):
            await gate.wait()

        async with scripted(broker, listener, consume_from_where=FIRST, **limits) as it:
            it.answers = [pulled(0, 1, record(0, bytes(1 << 20)))]
            await it.consumer.start()
            await it.pulled(1)
            await settle(100)
            assert len(it.pulls) == 1
            gate.set()
            await it.pulled(2)

    run_stepped(scene())


@pytest.mark.parametrize(("code", "delay_s"), [(1, 3), (215, 0.02), (24, 0.5), (25, 0.5)])
def test_pauses_after_failed_pulls(broker, code, delay_s):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.answers = [lambda command: command.answer(code, "no")] * 2
            await it.consumer.start()
            await it.pulled(1)
            await settle(50)
            beats = len(it.broker.heartbeats())
            if delay_s > 0.1:
                advance(delay_s - 0.2)
                await settle(50)
                assert len(it.pulls) == 1
            advance(0.3)
            await it.pulled(2)
            await settle(50)
            assert (len(it.broker.heartbeats()) > beats) is (code in (24, 25))

    run_stepped(scene())


def test_records_that_are_none_are_asked_for_again(broker, caplog):
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.body)

        async with scripted(broker, listener, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 1, record(0)[:-1]), pulled(0, 1, record(0))]
            await it.consumer.start()
            await it.pulled(1)
            await settle(50)
            advance(3.1)
            await it.pulled(3)
            assert (got, it.pulls[1]["queueOffset"]) == ([b"body"], "0")

    run_stepped(scene())
    assert "pull failed" in caplog.text


def test_an_illegal_offset_begins_the_queue_again_where_the_broker_says(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.offset = 99
            it.answers = [pulled(21, 9)]
            await it.consumer.start()
            await it.broker.until(lambda: bool(it.commits))
            assert it.commits == [9]
            it.offset = 9
            await settle(50)
            advance(1.1)
            await it.pulled(2)
            assert it.pulls[1]["queueOffset"] == "9"

    run_stepped(scene())


def test_an_offset_that_has_expired_keeps_what_is_fetched(broker):
    got, may_end = [], asyncio.Event()

    async def listener(message: Any) -> None:
        await may_end.wait()
        got.append(message.queue_offset)

    async def scene() -> None:
        async with scripted(broker, listener) as it:
            it.offset = 3
            it.answers = [pulled(0, 5, record(3) + record(4)), pulled(21, 20)]
            await it.consumer.start()
            await it.pulled(3)
            assert it.pulls[2]["queueOffset"] == "20"
            may_end.set()
            await settle(50)
            assert got == [3, 4]
            await it.consumer.shutdown()
            assert it.commits[-1] in (5, 20)

    run_stepped(scene())


def test_queues_come_and_go_with_the_members(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 4, record(3))]
            await it.consumer.start()
            await it.pulled(2)
            it.members = ["!", it.consumer.client_id]  # the other member sorts first, so it gets the only queue
            channel = it.broker.channels[0]
            channel.invoke_oneway(
                RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields={"consumerGroup": "cg"})
            )
            await settle(50)
            advance(1.1)
            await it.broker.until(lambda: bool(it.commits))
            await settle(50)
            assert (it.commits, it.consumer.assignment) == ([4, 4], [])  # at the notification, and when the queue goes
            it.members = [it.consumer.client_id]
            it.offset = 4
            advance(20.1)
            await it.pulled(3)
            assert it.pulls[2]["queueOffset"] == "4"

    run_stepped(scene())


def test_a_list_of_members_that_cannot_be_had_changes_nothing(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.start()
            await it.pulled(1)
            it.broker.scripts[MEMBERS] = [lambda command: command.answer(1, "no consumer for this group")]
            advance(20.1)
            await it.broker.until(lambda: not it.broker.scripts[MEMBERS])
            await settle(50)
            assert it.consumer.assignment == [QUEUE]

    run_stepped(scene())


def test_suspend_and_resume(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            await it.consumer.start()
            await it.broker.until(lambda: 14 in it.broker.codes())
            it.consumer.suspend()
            await settle(100)
            before = len(it.pulls)
            assert before <= 1
            advance(30)
            await settle(100)
            assert len(it.pulls) == before
            it.consumer.resume()
            await it.pulled(before + 1)

    run_stepped(scene())


def test_an_orderly_queue_is_locked_before_its_progress_is_asked_for(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_orderly=True) as it:
            await it.consumer.start()
            await it.pulled(1)
            codes = it.broker.codes()
            assert codes.index(41) < codes.index(14) < codes.index(11)
            (locked,) = [LockBatchRequestBody.decode(one.body) for one in it.broker.received if one.code == 41]
            assert (locked.consumer_group, locked.client_id, locked.mq_set) == ("cg", it.consumer.client_id, [QUEUE])
            advance(20.1)
            await it.broker.until(lambda: it.broker.codes().count(41) > 1)
            await it.consumer.shutdown()
            assert it.broker.codes()[-2:] == [42, 35]

    run_stepped(scene())


def test_a_queue_that_another_has_locked_is_tried_again(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_orderly=True) as it:
            it.broker.scripts[41] = [lambda command: command.answer(0, body=LockBatchResponseBody([]).encode())]
            await it.consumer.start()
            await it.broker.until(lambda: 41 in it.broker.codes())
            await settle(50)
            assert it.consumer.assignment == []
            for _ in range(3):
                advance(1.1)
                await settle(50)
            await it.pulled(1)

    run_stepped(scene())


def test_a_lost_lock_gives_the_queue_up_without_touching_progress(broker):
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append(message.queue_offset)

        async with scripted(broker, listener, consume_orderly=True, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 1, record(0))]
            await it.consumer.start()
            await it.pulled(2)
            await settle()
            it.broker.scripts[41] = [lambda command: command.answer(0, body=LockBatchResponseBody([]).encode())]
            it.offset = 6  # locked by its former owner
            it.consumer._service.locks.confirm_soon()
            await it.broker.until(lambda: not it.broker.scripts[41])
            for _ in range(3):
                await settle(50)
                advance(1.1)
            await it.pulled(3)
            assert (it.pulls[2]["queueOffset"], it.commits) == ("6", [])

    run_stepped(scene())


def test_a_reset_begins_the_queue_where_the_administrator_says(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_from_where=FIRST) as it:
            it.offset = 3
            await it.consumer.start()
            await it.pulled(1)
            body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
            fields = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"}
            it.broker.channels[0].invoke_oneway(RemotingCommand(220, ext_fields=fields, body=body))
            await it.broker.until(lambda: bool(it.commits))
            assert it.commits == [1]
            it.offset = 1
            for _ in range(2):
                await settle(50)
                advance(1.1)
            await it.pulled(2)
            assert it.pulls[1]["queueOffset"] == "1"

    run_stepped(scene())


def test_requests_of_administrators_are_answered(broker):
    async def scene() -> None:
        async def listener(message):
            if message.body == b"bad":
                raise ValueError("no")

        async with scripted(broker, listener, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 4, record(3))]
            await it.consumer.start()
            await it.pulled(2)
            channel = it.broker.channels[0]

            async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
                return await channel.invoke(RemotingCommand(code, ext_fields=fields, body=body), 3_000)

            group = {"consumerGroup": "cg", "clientId": it.consumer.client_id}
            info = await ask(307, group | {"jstackEnable": "true"})
            assert b'"cachedMsgCount":0' in info.body
            assert b'"PROP_CONSUMEORDERLY":"false"' in info.body
            assert b"test_push_consumer" in info.body
            offsets = await ask(221, {"topic": "T", "group": "cg"})
            assert offsets.body.endswith(b'"topic":"T"}:4}}')
            good = await ask(309, group, record(9))
            assert b'"consumeResult":"CR_SUCCESS"' in good.body
            bad = await ask(309, group, record(9, b"bad"))
            assert b'"consumeResult":"CR_THROW_EXCEPTION"' in bad.body
            assert b"ValueError: no" in bad.body
            for code in (307, 309):
                assert (await ask(code, group | {"consumerGroup": "other"}, record(9))).code == 1

    run_stepped(scene())


def test_a_message_goes_back_to_the_broker_that_has_it(broker):
    async def scene() -> None:
        async def listener(message):
            raise ReconsumeLater(4)

        async with scripted(broker, listener, consume_from_where=FIRST) as it:
            it.answers = [pulled(0, 4, record(3))]
            await it.consumer.start()
            await it.broker.until(lambda: 36 in it.broker.codes())
            (back,) = [one for one in it.broker.received if one.code == 36]
            assert back.ext_fields == {
                "offset": "1003",
                "group": "cg",
                "delayLevel": "4",
                "originMsgId": "7F00000100002A9F00000000000003EB",
                "originTopic": "T",
                "unitMode": "false",
                "maxReconsumeTimes": "16",
                "bname": "broker-a",
            }

    run_stepped(scene())


@pytest.mark.parametrize(("configured", "told"), [(-1, "16"), (0, "0"), (1, "1")])
def test_how_often_a_message_may_come_is_told_with_it(broker, configured, told):
    async def scene() -> None:
        async def listener(message):
            raise ReconsumeLater

        async with scripted(broker, listener, consume_from_where=FIRST, max_reconsume_times=configured) as it:
            it.answers = [pulled(0, 4, record(3))]
            await it.consumer.start()
            await it.broker.until(lambda: 36 in it.broker.codes())
            (back,) = [one for one in it.broker.received if one.code == 36]
            assert back.ext_fields["maxReconsumeTimes"] == told

    run_stepped(scene())


def test_a_message_that_the_broker_does_not_take_back_is_sent_anew(broker):
    async def scene() -> None:
        async def listener(message):
            raise ReconsumeLater

        async with scripted(broker, listener, consume_from_where=FIRST, max_reconsume_times=5) as it:
            it.broker.topics |= {"%RETRY%cg": 1}
            it.broker.scripts[36] = [lambda command: command.answer(1, "look message by offset failed")]
            it.answers = [pulled(0, 4, record(3, b"three", KEYS="k"))]
            await it.consumer.start()
            await it.broker.until(lambda: bool(it.broker.stored))
            ((header, body),) = it.broker.stored
            properties = dict(pair.split("\x01") for pair in header.properties.rstrip("\x02").split("\x02"))
            del properties["UNIQ_KEY"]
            assert (header.topic, body) == ("%RETRY%cg", b"three")
            assert (header.reconsume_times, header.max_reconsume_times) == (1, 5)
            assert properties == {
                "KEYS": "k",
                "ORIGIN_MESSAGE_ID": "U3",
                "RETRY_TOPIC": "T",
                "DELAY": "3",
                "WAIT": "true",
            }
            await settle(50)
            await it.consumer.shutdown()
            assert it.commits[-1] == 4

    run_stepped(scene())


def test_retried_messages_come_under_their_topic(broker):
    async def scene() -> None:
        got = []

        async def listener(message):
            got.append((message.topic, message.queue_offset))

        async with scripted(broker, listener, consume_from_where=FIRST) as it:
            it.broker.topics["%RETRY%cg"] = 1
            again = pulled(0, 9, record(8, topic="%RETRY%cg", RETRY_TOPIC="T"))
            it.answers = [lambda command: None if command.ext_fields["topic"] == "T" else again(command)] * 2
            await it.consumer.start()
            await it.pulled(3)
            await settle()
            assert got == [("T", 8)]

    run_stepped(scene())


def test_a_name_server_that_is_not_there_is_told_at_the_start():
    async def scene() -> None:
        consumer = PushConsumer("cg", "127.0.0.1:1")
        await consumer.subscribe("T")
        with pytest.raises(RemotingError):
            await consumer.start()
        with pytest.raises(ClientError, match="cannot be started again"):
            await consumer.start()

    run_stepped(scene())


def test_wrong_uses(broker):
    async def scene() -> None:
        with pytest.raises(ClientError, match="group"):
            PushConsumer("", "127.0.0.1:1")
        with pytest.raises(ConfigError, match="consumeTimestamp"):
            PushConsumerConfig(consume_timestamp="yesterday")
        with pytest.raises(ClientError, match="20261399000000"):
            PushConsumer("cg", "127.0.0.1:1", PushConsumerConfig(consume_timestamp="20261399000000"))
        with pytest.raises(ConfigError, match="consumerTimeoutMillisWhenSuspend"):
            PushConsumerConfig(broker_suspend_max_time_ms=30_000)
        async with scripted(broker, ignore) as it:
            with pytest.raises(ClientError, match="not started"):
                it.consumer.suspend()
            with pytest.raises(ClientError, match="topic"):
                await it.consumer.subscribe("not a topic")
            with pytest.raises(ClientError, match="without a listener"):
                await anext(aiter(it.consumer))
            await it.consumer.start()
            with pytest.raises(ClientError, match="before the consumer is started"):
                it.consumer.register_message_listener(ignore)
            with pytest.raises(ClientError, match="without a listener"):
                await anext(aiter(it.consumer))

    run_stepped(scene())
