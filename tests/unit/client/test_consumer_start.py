"""What ``start`` of a group's consumer checks, waits for and refuses."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
from pathlib import Path

import pytest
from tests.unit.client.consuming import cluster, ignore, send
from tests.unit.client.test_push_consumer import QUERY, QUEUE, Script, scripted

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageModel,
    MessageSelector,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
)
from rucola.client.consumer_config import START_LIMIT_S
from rucola.client.joined_groups import Membership
from rucola.errors import BrokerError, ClientError, ConfigError, DiskError, FormatError, RucolaError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.testing.event_loop import advance, run_stepped, settle

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
FINAL = "[signature] AclException: Check signature failed for accessKey=reader"


async def pass_time(seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        advance(0.1)
        await settle()


def texts(caplog, level: int = logging.WARNING) -> list[str]:
    return [record.rucola_event for record in caplog.records if record.levelno >= level]


# where a new group starts


def lite(script: Script) -> LitePullConsumer:
    consumer = LitePullConsumer("cg", script.broker.address)
    script.members = [consumer.client_id]
    return consumer


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_start_waits_until_it_is_known_and_stored_where_each_queue_starts(broker, kind):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            consumer = it.consumer
            if kind == "lite":
                consumer = lite(it)
                await consumer.subscribe("T")
            answers = []
            it.broker.scripts[RequestCode.GET_MAX_OFFSET] = [answers.append]
            starting = asyncio.ensure_future(consumer.start())
            await it.broker.until(lambda: bool(answers))
            await settle()
            assert not starting.done()
            (command,) = answers
            it.broker.channels[-1].send(command.answer(0, ext_fields={"offset": "7"}).encode())
            await starting
            assert it.commits == [7]  # whoever gets the queue later begins here
            await consumer.shutdown()

    run_stepped(scene())


def test_a_consumer_that_gets_a_queue_later_begins_where_the_group_began(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"old")
            queues = list(await producer.message_queues("T"))
            got = []

            async def listener(message):
                got.append(message.body)

            first = PushConsumer("G", servers.namesrv.address)
            await first.subscribe("T")
            first.register_message_listener(listener)
            await first.start()
            first.suspend()
            for queue in queues:
                await producer.send(Message("T", b"new"), queue)
            await first.shutdown()
            second = PushConsumer("G", servers.namesrv.address)
            await second.subscribe("T")
            second.register_message_listener(listener)
            async with second:
                while len(got) < len(queues):
                    await asyncio.sleep(0.01)
            assert sorted(got) in ([b"new"] * len(queues), [b"new"] * len(queues) + [b"old"])

    run_stepped(scene())


def test_start_does_not_wait_for_ever_and_a_queue_starts_when_its_broker_is_back(broker, caplog):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.broker.scripts[QUERY] = [lambda command: command.answer(1, "busy")] * 20
            starting = asyncio.ensure_future(it.consumer.start())
            await it.broker.until(lambda: QUERY in it.broker.codes())
            await pass_time(START_LIMIT_S - 0.5)
            assert not starting.done()
            await pass_time(1)
            assert starting.done()
            await starting
            assert it.consumer.assignment == []
            it.broker.scripts.clear()
            it.max_offset = 9
            await pass_time(1.5)
            assert it.consumer.assignment == [QUEUE]
            assert set(it.commits) == {5}  # the first message since the start, not the end of the queue

    run_stepped(scene())
    (record,) = [each for each in caplog.records if each.rucola_event == "starts of queues not known yet"]
    assert record.rucola_fields == {"topics": [], "queues": [QUEUE], "group": "cg"}


def test_start_does_not_wait_for_a_topic_that_does_not_exist_yet(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.subscribe("Later")
            await it.consumer.start()
            assert it.consumer.assignment == [QUEUE]

    run_stepped(scene())


def test_start_does_not_wait_for_the_lock_of_another_member(broker):
    async def scene() -> None:
        async with scripted(broker, ignore, consume_orderly=True) as it:
            it.offset = 3
            it.broker.scripts[RequestCode.LOCK_BATCH_MQ] = [lambda command: command.answer(0, body=b"{}")] * 20
            began = asyncio.get_running_loop().time()
            await it.consumer.start()
            assert asyncio.get_running_loop().time() - began < 2
            assert it.consumer.assignment == []

    run_stepped(scene())


def test_a_topic_subscribed_later_skips_nothing_either(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.start()
            it.broker.topics["U"] = 1
            subscribing = asyncio.ensure_future(it.consumer.subscribe("U"))
            await pass_time(1)
            await subscribing
            assert {queue.topic for queue in it.consumer.assignment} == {"T", "U"}
            assert it.commits == [7, 7]

    run_stepped(scene())


def test_a_shutdown_during_start_ends_both(broker):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            it.broker.scripts[QUERY] = [lambda command: None]
            starting = asyncio.ensure_future(it.consumer.start())
            await it.broker.until(lambda: QUERY in it.broker.codes())
            ending = asyncio.ensure_future(it.consumer.shutdown())
            await pass_time(START_LIMIT_S + 0.5)
            await asyncio.gather(starting, ending)
            assert 35 in it.broker.codes()

    run_stepped(scene())


# who is refused


@pytest.mark.parametrize("request_code", [RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP])
@pytest.mark.parametrize("kind", ["push", "lite"])
def test_a_refused_account_is_an_error_of_start(broker, kind, request_code):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            consumer = it.consumer
            if kind == "lite":
                consumer = lite(it)
                await consumer.subscribe("T")
            refuse = [lambda command: command.answer(ResponseCode.NO_PERMISSION, FINAL)] * 50
            it.broker.scripts[request_code] = refuse
            with pytest.raises(BrokerError, match="signature") as refused:
                await consumer.start()
            assert not refused.value.retriable
            assert len(asyncio.all_tasks()) < 4  # those of the servers

    run_stepped(scene())


def test_an_account_that_is_refused_later_is_logged_at_each_heartbeat(broker, caplog):
    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.start()
            it.broker.scripts[RequestCode.HEART_BEAT] = [
                lambda command: command.answer(ResponseCode.NO_PERMISSION, FINAL)
            ] * 2
            await pass_time(61)
            await it.broker.until(lambda: not it.broker.scripts[RequestCode.HEART_BEAT])
            await settle()

    run_stepped(scene())
    records = [record for record in caplog.records if record.rucola_event == "broker refuses the client"]
    assert len(records) == 2
    assert "Check signature failed" in records[0].getMessage()


def join(address: str, group: str = "G", **options: object) -> PushConsumer:
    consumer = PushConsumer(group, address, PushConsumerConfig(**{"instance_name": "same", **options}))
    consumer.register_message_listener(ignore)
    return consumer


def test_two_consumers_of_a_group_with_one_client_id_are_refused(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            address = servers.namesrv.address
            await send(producer, b"1")
            first = join(address)
            await first.subscribe("T")
            await first.start()
            second = join(address)
            with pytest.raises(ClientError, match="give each consumer an instance_name of its own"):
                await second.start()
            members = servers.broker.services.consumers.group("G")
            assert members is not None
            assert members.client_ids() == [first.client_id]  # the failed start did not unregister the first
            with pytest.raises(ClientError, match="joined group"):
                await LitePullConsumer("G", address, LitePullConsumerConfig(instance_name="same")).start()
            others = [join(address, "H"), join(address, instance_name="other"), join(address, unit_name="unit")]
            for other in others:
                await other.start()
            await first.shutdown()
            third = join(address)
            await third.start()
            for consumer in (*others, third):
                await consumer.shutdown()

    run_stepped(scene())


def test_a_start_that_failed_leaves_the_place_free():
    async def scene() -> None:
        for _ in range(2):
            consumer = join("127.0.0.1:1")
            await consumer.subscribe("T")
            with pytest.raises(RucolaError, match="cannot connect"):
                await consumer.start()

    run_stepped(scene())


async def joined() -> Membership:
    return Membership(["b:1", "a:1"], "id", "G")


def test_members_that_are_gone_keep_nobody_out():
    first = asyncio.run(joined())  # its loop is closed, so its consumer cannot go on
    second = asyncio.run(joined())
    first.end()  # too late: it is not the member any more

    async def scene() -> None:
        third = await joined()
        with pytest.raises(ClientError, match="client id id"):
            Membership(["a:1", "b:1"], "id", "G")
        Membership(["a:1"], "id", "G")
        del third
        gc.collect()
        Membership(["a:1", "b:1"], "id", "G")

    run_stepped(scene())
    second.end()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_may_join_again():
    loop = asyncio.new_event_loop()
    member = loop.run_until_complete(joined())
    child = os.fork()
    if not child:
        try:
            asyncio.new_event_loop().run_until_complete(joined())
        except ClientError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    member.end()
    loop.close()


# offset files

DAMAGED = [
    b'{"offsetTable":{',
    b"[]",
    b"3",
    b"null",
    b'{"offsetTable":3}',
    b'{"offsetTable":[1]}',
    b'{"offsetTable":{"x":1}}',
    b'{"offsetTable":{{"brokerName":"b","queueId":"one","topic":"T"}:1}}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"x"}}',
    b'{"offsetTable":{{"brokerName":"b","topic":"T"}:1}}',
    b'{"offsetTable":{{"brokerName":3,"queueId":0,"topic":null}:1}}',
    b"\x00" * 40,
    b"\xff\xfe",
]


def broadcasting(address: str, directory: Path) -> PushConsumer:
    config = PushConsumerConfig(
        message_model=MessageModel.BROADCASTING,
        local_offset_store_dir=str(directory),
        instance_name="me",
        consume_from_where=FIRST,
    )
    consumer = PushConsumer("G", address, config)
    consumer.register_message_listener(ignore)
    return consumer


@pytest.mark.parametrize("content", DAMAGED, ids=repr)
def test_a_damaged_offset_file_without_a_copy_fails_the_start_and_is_named(content, broker, tmp_path):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            consumer = broadcasting(one.address, tmp_path)
            folder = tmp_path / consumer.client_id / "G"
            folder.mkdir(parents=True)
            for name in "offsets.json", "offsets.json.bak":
                (folder / name).write_bytes(content)
            await consumer.subscribe("T")
            with pytest.raises(FormatError, match=r"offsets\.json"):
                await consumer.start()
            assert one.received == []  # the consumer has not joined the group
            assert (folder / "offsets.json").read_bytes() == content

            key = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
            good = b'{"offsetTable":{' + json.dumps(key).encode() + b":1}}"
            (folder / "offsets.json.bak").write_bytes(good)
            again = broadcasting(one.address, tmp_path)
            await again.start()  # the copy is good
            await again.shutdown()

    run_stepped(scene())


def test_an_offset_file_that_cannot_be_read_fails_the_start(broker, tmp_path):
    async def scene() -> None:
        async with broker(topics={"T": 1}) as one:
            consumer = broadcasting(one.address, tmp_path)
            (tmp_path / consumer.client_id / "G" / "offsets.json").mkdir(parents=True)
            await consumer.subscribe("T")
            with pytest.raises(DiskError, match=r"offsets\.json"):
                await consumer.start()

    run_stepped(scene())


# texts that cannot be sent

SURROGATE = "from-the-environment-\udcff"
ADDRESS = "127.0.0.1:9876"


@pytest.mark.parametrize("expression", [SURROGATE, f"A || {SURROGATE}", MessageSelector(SURROGATE), None, 3])
@pytest.mark.parametrize("make", [PushConsumer, LitePullConsumer])
def test_an_expression_that_is_no_text_is_refused(make, expression):
    async def scene() -> None:
        consumer = make("G", ADDRESS)
        with pytest.raises(ClientError, match="expression"):
            await consumer.subscribe("T", expression)

    run_stepped(scene())


def test_an_sql_expression_that_is_no_text_is_refused():
    with pytest.raises(ClientError, match="lone surrogate"):
        MessageSelector.by_sql(f"a = '{SURROGATE}'")


@pytest.mark.parametrize("name", [SURROGATE, None, 3, b"T", "", "a b", "a\n"])
def test_a_name_that_is_no_text_is_refused(name):
    async def scene() -> None:
        with pytest.raises(ClientError, match="topic"):
            await PushConsumer("G", ADDRESS).subscribe(name)

    run_stepped(scene())
    for make in PushConsumer, LitePullConsumer, PullConsumer, Producer:
        with pytest.raises(ClientError, match="group"):
            make(name, ADDRESS)


@pytest.mark.parametrize("option", ["instance_name", "unit_name", "access_key", "consume_timestamp"])
def test_an_option_that_is_no_text_is_refused(option):
    with pytest.raises(ConfigError, match=option):
        PushConsumerConfig(**{option: SURROGATE})


@pytest.mark.parametrize("name", ["x" * 250, "\N{GRINNING FACE}" * 62])
def test_an_instance_name_that_is_too_long_is_refused_at_construction(name):
    for make, config in ((PushConsumer, PushConsumerConfig), (Producer, ProducerConfig)):
        with pytest.raises(ConfigError, match="at most 255 bytes") as refused:
            make("G", ADDRESS, config(instance_name=name))
        assert (refused.value.argument, refused.value.value) == ("instance_name", name)
    broadcast = PushConsumerConfig(message_model=MessageModel.BROADCASTING, instance_name="x" * 245)
    assert len(PushConsumer("G", ADDRESS, broadcast).client_id) == 255
