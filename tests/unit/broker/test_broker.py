"""The broker over loopback TCP and real files, with one request after another."""

from __future__ import annotations

import asyncio
import struct

import orjson
import pytest
from tests.brokers import COMMIT, SUBSCRIPTION, SUSPEND, Cluster, properties_text, run

from rucola.errors import StoreLockedError
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData
from rucola.protocol.bodies.route import TopicRouteData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

both_flush_modes = pytest.mark.parametrize("sync_flush", [False, True], ids=["async", "sync"])


def batch_body(*members: tuple[bytes, str]) -> bytes:
    items = b""
    for body, properties in members:
        text = properties.encode()
        items += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 5, len(body)) + body
        items += struct.pack(">h", len(text)) + text
    return items


@both_flush_modes
def test_a_send_is_answered_stored_and_pulled(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            text = properties_text(UNIQ_KEY="ID1", WAIT="true", TAGS="TagA", KEYS="k1")
            first = await cluster.send("T", b"hello", text, 1)
            assert (first.code, first.flag) == (0, 1)
            fields = first.ext_fields
            port = int(cluster.broker.address.rpartition(":")[2])
            assert fields["msgId"] == f"7F000001{port:08X}{0:016X}"
            assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("1", "0", "ID1")
            assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
            answer = await cluster.pull("T", 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=10_000)
            assert (answer.code, answer.remark) == (0, "FOUND")
            assert answer.ext_fields["nextBeginOffset"] == "1"
            (message,) = decode_messages(answer.body)
            assert message.body == b"hello"
            assert message.properties == {
                "UNIQ_KEY": "ID1", "WAIT": "true", "TAGS": "TagA", "KEYS": "k1",
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
                **{name: value for name, value in message.properties.items() if name == "__CRC32#"},
            }  # fmt: skip
            found = await cluster.ask(
                12, {"topic": "T", "key": "k1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
            )
            assert (found.code, found.body) == (0, answer.body)
            assert (await cluster.ask(33, {"offset": "0"})).body == answer.body
            assert (await cluster.ask(33, {"offset": "7"})).code == 1

    run(scene())


@both_flush_modes
def test_pipelined_sends_keep_their_order(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            await cluster.send("T", b"first")
            sends = [cluster.send("T", b"%d" % i, properties_text(UNIQ_KEY=f"U{i}"), i % 2) for i in range(200)]
            answers = await asyncio.gather(*sends)
            assert {answer.code for answer in answers} == {0}
            assert [answer.ext_fields["transactionId"] for answer in answers] == [f"U{i}" for i in range(200)]
            assert await cluster.bodies("T", 0) == [b"first", *[b"%d" % i for i in range(0, 200, 2)]]
            assert await cluster.bodies("T", 1) == [b"%d" % i for i in range(1, 200, 2)]

    run(scene())


def test_topics_that_alternate_in_one_read_keep_their_messages(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, False) as cluster:
            topics = [name for length in (1, 2, 3, 5) for name in ("A", "B") for _ in range(length)]
            for name in ("A", "B"):
                await cluster.send(name, b"first", queues=1)
            sends = [cluster.send(name, b"%d" % i, properties_text(UNIQ_KEY=f"U{i}")) for i, name in enumerate(topics)]
            answers = await asyncio.gather(*sends)
            assert [answer.ext_fields["transactionId"] for answer in answers] == [f"U{i}" for i in range(len(topics))]
            for name in ("A", "B"):
                expected = [b"%d" % i for i, one in enumerate(topics) if one == name]
                assert await cluster.bodies(name, 0) == [b"first", *expected]

    run(scene())


@both_flush_modes
def test_a_run_with_odd_messages_in_it_keeps_its_order(tmp_path, sync_flush):
    """Some messages of a run are unusual: without UNIQ_KEY, with properties that a different broker set, with
    WAIT=false, or without a given queue.
    """

    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            await cluster.send("T", b"0", queues=1)
            resent = properties_text(UNIQ_KEY="R", MSG_REGION="elsewhere", TRACE_ON="false", CLUSTER="other", a="b")
            texts = [None, "", None, resent, properties_text(UNIQ_KEY="N", WAIT="false"), None]
            queue_ids = [0, 0, 0, 0, 0, -1]
            answers = await asyncio.gather(
                *[
                    cluster.send("T", b"%d" % number, text, queue_id)
                    for number, text, queue_id in zip(range(1, 7), texts, queue_ids, strict=True)
                ]
            )
            assert [answer.code for answer in answers] == [0] * 6
            assert [answer.ext_fields["queueOffset"] for answer in answers] == ["1", "2", "3", "4", "5", "6"]
            assert len(answers[1].ext_fields["transactionId"]) == 32
            found = decode_messages((await cluster.pull()).body)
            assert [message.body for message in found] == [b"%d" % i for i in range(7)]
            assert found[2].properties["UNIQ_KEY"] == answers[1].ext_fields["transactionId"]
            kept = found[4].properties
            assert (kept["UNIQ_KEY"], kept["a"], kept["MSG_REGION"]) == ("R", "b", "DefaultRegion")
            assert (kept["TRACE_ON"], kept["CLUSTER"]) == ("true", "DefaultCluster")

    run(scene())


@pytest.mark.parametrize(
    ("options", "code", "remark"),
    [
        ({"topic": "bad topic!"}, 29, "illegal characters"),
        ({"topic": ""}, 29, "blank"),
        ({"topic": "T" * 128}, 29, "longer"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ({"topic": "T2", "default_topic": "none"}, 17, "topic[T2] not exist, apply first please!"),
        ({"queue_id": 99}, 29, "request queueId[99] is illegal, TopicConfig [topicName=T,"),
        ({"body": b""}, 1, ""),
        ({"body": b"x" * 1001}, 13, "the message is illegal"),
        ({"properties": properties_text(UNIQ_KEY="U", big="v" * 32_760)}, 13, "the message is illegal"),
        ({"properties": properties_text(UNIQ_KEY="U", TIMER_DELAY_SEC="soon")}, 13, "TIMER_DELAY_SEC is not a number"),
        ({"properties": properties_text(UNIQ_KEY="U", TIMER_DELAY_SEC="259201")}, 13, "longer than 259200 s"),
        (
            {"properties": properties_text(UNIQ_KEY="U", TIMER_DELIVER_MS="1", TIMER_DEL_UNIQKEY="T+V")},
            13,
            "before that message is due",
        ),
        ({"properties": properties_text(UNIQ_KEY="U"), "sys_flag": 4}, 13, "transaction"),
        ({"batch": True, "body": b"garbage that is no batch"}, 1, "not a sequence of messages"),
        ({"batch": True, "body": batch_body((b"x" * 1001, ""))}, 13, "the message is illegal"),
    ],
)
def test_refused_sends_say_why_and_store_nothing(tmp_path, options, code, remark):
    async def scene() -> None:
        async with Cluster(tmp_path, max_body=1000) as cluster:
            await cluster.send("T", b"0")
            answers = await asyncio.gather(cluster.send("T", b"1"), cluster.send(**options), cluster.send("T", b"2"))
            assert [answer.code for answer in answers] == [0, code, 0]
            assert remark in answers[1].remark
            assert (answers[1].ext_fields["MSG_REGION"], answers[1].ext_fields["TRACE_ON"]) == ("DefaultRegion", "true")
            assert await cluster.bodies() == [b"0", b"1", b"2"]
            assert cluster.broker.topics.get("T2") is None

    run(scene())


@both_flush_modes
def test_a_batch_is_one_answer(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            body = batch_body((b"a", properties_text(TAGS="x")), (b"b", ""), (b"c", properties_text(KEYS="k")))
            answer = await cluster.send("T", body, batch=True)
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
            ids = answer.ext_fields["msgId"].split(",")
            assert len(ids) == 3
            assert answer.ext_fields["transactionId"] == "U"
            found = decode_messages((await cluster.pull()).body)
            assert [message.body for message in found] == [b"a", b"b", b"c"]
            assert found[0].properties.keys() <= {"TAGS", "__CRC32#"}
            assert [f"{message.physical_offset:016X}" for message in found] == [text[-16:] for text in ids]

    run(scene())


@pytest.mark.parametrize("messages", [64, 65, 500])
def test_a_batch_of_many_is_stored_whole(tmp_path, messages):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            body = batch_body(*((b"%d" % number, "") for number in range(messages)))
            answer = await cluster.send("T", body, batch=True)
            assert (answer.code, len(answer.ext_fields["msgId"].split(","))) == (0, messages)
            end = await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            assert end.ext_fields["offset"] == str(messages)

    run(scene())


def test_sends_by_the_old_names_and_with_unusual_headers(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {
                "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                "queueId": "2", "sysFlag": "0", "bornTimestamp": "1", "flag": "7", "properties": "",
                "reconsumeTimes": "0",
            }  # fmt: skip
            answer = await cluster.ask(RequestCode.SEND_MESSAGE, fields, b"old")
            assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
            # The header's keys are escaped in JSON, so no kernel reads it.
            command = RemotingCommand(
                310, ext_fields=cluster.send_command("T", b"odd", queue_id=2).ext_fields, body=b"odd"
            )
            command.opaque = cluster.client.next_opaque()
            header = command.encode_header().replace(b'"a":', b'"\\u0061":')
            frame = struct.pack(">ii", 4 + len(header) + 3, len(header)) + header + b"odd"
            answer = await cluster.client.submit(cluster.broker.address, frame, command.opaque)
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
            assert await cluster.bodies("T", 2) == [b"old", b"odd"]
            answer = await cluster.ask(RequestCode.SEND_MESSAGE, {**fields, "queueId": "x"}, b"old")
            assert answer.code == 1

    run(scene())


def test_a_topic_made_by_a_send_is_known_to_the_name_server_when_the_answer_comes(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (
                await cluster.client.invoke(cluster.namesrv.address, RemotingCommand(105, ext_fields={"topic": "New"}))
            ).code == 17
            assert (await cluster.send("New", queues=3)).code == 0
            command = RemotingCommand(105, ext_fields={"topic": "New"})
            route = TopicRouteData.decode((await cluster.client.invoke(cluster.namesrv.address, command)).body)
            assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [("broker-a", 3)]
            assert route.broker_datas[0].broker_addrs == {0: cluster.broker.address}

    run(scene())


def test_sends_to_a_new_topic_wait_for_its_registration(tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            registered = asyncio.Event()

            async def register_topics(*_: object) -> bool:
                return await registered.wait() is None

            monkeypatch.setattr(cluster.broker.running.outer_api, "register_topics", register_topics)
            sends = [asyncio.ensure_future(cluster.send("New", b"%d" % i)) for i in range(3)]
            for _ in range(3):  # responses that do not wait come first
                assert (await cluster.send("TBW102", b"x")).code == 0
            assert not any(send.done() for send in sends)
            assert await cluster.bodies("New") == [b"0", b"1", b"2"]
            registered.set()
            assert [(await send).ext_fields["queueOffset"] for send in sends] == ["0", "1", "2"]

    run(scene())


def test_a_held_pull_is_woken_by_its_tag_only(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0", properties_text(UNIQ_KEY="0", TAGS="A"))
            held = asyncio.ensure_future(
                cluster.pull("T", 0, 1, expression="B || C", sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=30_000)
            )
            while not cluster.broker.pulls_held:
                await asyncio.sleep(0)
            await cluster.send("T", b"1", properties_text(UNIQ_KEY="1", TAGS="A"))
            assert cluster.broker.pulls_held == 1
            await cluster.send("T", b"2", properties_text(UNIQ_KEY="2", TAGS="C"))
            answer = await held
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "3")
            assert [message.body for message in decode_messages(answer.body)] == [b"2"]
            none = await cluster.pull("T", 0, 0, expression="D")
            assert (none.code, none.remark, none.ext_fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "3")

    run(scene())


def test_a_hold_ends_at_its_time_and_with_the_broker(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            flags = SUBSCRIPTION | SUSPEND
            answer = await cluster.pull("T", 0, 1, sys_flag=flags, suspend_ms=20)
            assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (
                19,
                "OFFSET_OVERFLOW_ONE",
                "1",
            )
            held = asyncio.ensure_future(cluster.pull("T", 0, 1, sys_flag=flags, suspend_ms=60_000))
            while not cluster.broker.pulls_held:
                await asyncio.sleep(0)
            await cluster.stop_broker()
            assert (await held).code == 19

    run(scene())


@pytest.mark.parametrize(
    ("options", "code", "remark", "next_offset"),
    [
        ({"queue_offset": 9}, 21, "OFFSET_OVERFLOW_BADLY", "1"),
        ({"queue_offset": -1}, 21, "OFFSET_TOO_SMALL", "0"),
        ({"queue_id": 1}, 19, "NO_MESSAGE_IN_QUEUE", "0"),
        ({"queue_id": 1, "queue_offset": 5}, 21, "NO_MESSAGE_IN_QUEUE", "0"),
        ({"queue_id": 99}, 29, "queueId[99] is illegal", None),
        ({"topic": "none"}, 17, "topic[none] not exist, apply first please!", None),
        ({"group": "bad group!"}, 26, "subscription group [bad group!] does not exist", None),
        ({"expression": "||"}, 23, "parse the consumer's subscription failed", None),
        ({"expression_type": "SQL92"}, 1, "does not support consumer to filter message by SQL92", None),
        ({"sys_flag": 0}, 24, "the consumer's group info not exist", None),
    ],
)
def test_pulls_that_find_nothing_or_are_refused(tmp_path, options, code, remark, next_offset):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            await cluster.bodies()
            answer = await cluster.pull(**options)
            assert answer.code == code
            assert remark in answer.remark
            assert bytes(answer.body) == b""
            assert answer.ext_fields.get("nextBeginOffset") == next_offset
            four = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}
            assert four & answer.ext_fields.keys() == (set() if next_offset is None else four)

    run(scene())


def heartbeat(client_id: str, topic: str = "T", version: int = 1, tags: set[int] | None = None) -> bytes:
    subscription = SubscriptionData(
        topic, "*" if tags is None else "x", code_set=frozenset(tags or ()), sub_version=version
    )
    consumer = ConsumerData("cg", message_model=MessageModel.CLUSTERING, subscription_data_set=[subscription])
    return HeartbeatData(client_id, [ProducerData("pg")], [consumer]).encode()


def test_heartbeats_make_members_and_pulls_follow_their_subscription(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0", properties_text(UNIQ_KEY="0", TAGS="A"))
            code_of_a = ord("A")
            beat = heartbeat("c1", tags={code_of_a + 1})
            answers = [await cluster.ask(RequestCode.HEART_BEAT, body=beat) for _ in range(2)]
            assert [answer.code for answer in answers] == [0, 0]
            assert answers[1].ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
            members = await cluster.ask(38, {"consumerGroup": "cg"})
            assert orjson.loads(members.body) == {"consumerIdList": ["c1"]}
            assert cluster.broker.topics.get("%RETRY%cg").read_queue_nums == 1
            assert (await cluster.pull(sys_flag=0)).code == 20
            await cluster.ask(RequestCode.HEART_BEAT, body=heartbeat("c1", version=2, tags={code_of_a}))
            assert (await cluster.pull(sys_flag=0)).code == 0
            command = cluster.pull_command(sys_flag=0)
            command.ext_fields["subVersion"] = "3"
            assert (await cluster.client.invoke(cluster.broker.address, command)).code == 25
            await cluster.ask(
                RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "cg", "producerGroup": "pg"}
            )
            gone = await cluster.ask(38, {"consumerGroup": "cg"})
            assert (gone.code, gone.remark) == (1, "no consumer for this group, cg")
            assert (await cluster.ask(RequestCode.HEART_BEAT, body=b"new")).code == 1

    run(scene())


def test_members_hear_of_each_other(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster, Cluster(tmp_path / "unused") as other:
            told: asyncio.Queue[str] = asyncio.Queue()
            cluster.client.register_processor(
                40, lambda _, command: told.put_nowait(command.ext_fields["consumerGroup"])
            )
            await cluster.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
            assert await told.get() == "cg"
            command = RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat("c2"))
            await other.client.invoke(cluster.broker.address, command)
            assert await told.get() == "cg"
            other.client._connections.pop(cluster.broker.address).close()
            assert await told.get() == "cg"
            members = await cluster.ask(38, {"consumerGroup": "cg"})
            assert orjson.loads(members.body) == {"consumerIdList": ["c1"]}

    run(scene())


def test_offsets_are_committed_asked_for_and_kept_over_a_restart(tmp_path):
    async def scene() -> None:
        queue = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            await cluster.bodies()
            assert (await cluster.ask(14, queue)).ext_fields == {"offset": "0"}
            assert (await cluster.ask(14, {**queue, "setZeroIfNotFound": "false"})).code == 22
            assert (await cluster.ask(14, {**queue, "queueId": "1"})).code == 22
            assert (await cluster.ask(15, {**queue, "commitOffset": "5"})).code == 0
            assert (await cluster.ask(14, queue)).ext_fields == {"offset": "5"}
            await cluster.pull(sys_flag=SUBSCRIPTION | COMMIT, commit_offset=7)
            assert (await cluster.ask(15, {**queue, "commitOffset": "5", "topic": "none"})).code == 17
            assert (await cluster.ask(15, {**queue, "commitOffset": "5", "consumerGroup": "bad group!"})).code == 26
            assert (await cluster.ask(15, {"consumerGroup": "cg", "topic": "T", "commitOffset": "5"})).code == 29
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.ask(14, queue)).ext_fields == {"offset": "7"}

    run(scene())


def test_queue_offsets_by_place_and_by_time(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for i in range(3):
                await cluster.send("T", b"%d" % i)
            queue = {"topic": "T", "queueId": "0"}
            assert (await cluster.ask(30, queue)).ext_fields == {"offset": "3"}
            assert (await cluster.ask(31, queue)).ext_fields == {"offset": "0"}
            assert (await cluster.ask(30, {**queue, "topic": "none"})).ext_fields == {"offset": "0"}
            first = decode_messages((await cluster.pull()).body)[0].store_timestamp_ms
            assert (await cluster.ask(32, queue)).ext_fields == {"timestamp": str(first)}
            assert (await cluster.ask(32, {**queue, "queueId": "1"})).ext_fields == {"timestamp": "-1"}
            assert (await cluster.ask(29, {**queue, "timestamp": "0"})).ext_fields == {"offset": "0"}
            late = {**queue, "timestamp": "9999999999999", "boundaryType": "upper"}
            assert (await cluster.ask(29, late)).ext_fields == {"offset": "2"}

    run(scene())


def test_topics_and_groups_by_request(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {
                "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "3", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+message.type=NORMAL",
            }  # fmt: skip
            assert (await cluster.ask(17, fields)).code == 0
            made = cluster.broker.topics.get("Made")
            assert (made.read_queue_nums, made.write_queue_nums, made.attributes) == (2, 3, {"message.type": "NORMAL"})
            assert "Made" in cluster.namesrv.routes.topics()
            assert (await cluster.ask(17, {**fields, "topic": "TBW102"})).remark == (
                "The topic[TBW102] is conflict with system topic."
            )
            assert (await cluster.ask(17, {**fields, "topic": "broker-a"})).code == 29
            assert (await cluster.ask(17, {**fields, "topic": "a b"})).code == 29
            assert (await cluster.ask(17, {**fields, "perm": "99"})).code == 29
            assert (await cluster.ask(17, {**fields, "attributes": "nonsense"})).code == 29
            assert "Made" in orjson.loads((await cluster.ask(21)).body)["topicConfigTable"]
            await cluster.send("Made", b"x")
            assert (await cluster.ask(215, {"topic": "Made"})).code == 0
            assert (await cluster.ask(215, {"topic": "TBW102"})).code == 29
            assert (await cluster.send("Made", b"x", default_topic="none")).code == 17
            assert (await cluster.ask(200, body=b'{"groupName":"g1","consumeEnable":false}')).code == 0
            assert (await cluster.pull(group="g1", topic="TBW102")).code == 16
            assert (await cluster.ask(207, {"groupName": "g1"})).code == 0
            assert (await cluster.pull(group="g1", topic="TBW102")).code == 19
            assert (await cluster.ask(28)).code == 0
            unknown = await cluster.ask(12345)
            assert (unknown.code, unknown.remark) == (3, " request type 12345 not supported")

    run(scene())


def test_queues_are_locked_for_one_client(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}

            await cluster.send("T", queues=1)

            async def ask(client: RemotingClient, code: int, client_id: str, queues: list[object]) -> RemotingCommand:
                body = orjson.dumps({"consumerGroup": "cg", "clientId": client_id, "mqSet": queues})
                return await client.invoke(cluster.broker.address, RemotingCommand(code, body=body), 5000)

            async def locked(client: RemotingClient, client_id: str, *queues: object) -> object:
                return orjson.loads((await ask(client, 41, client_id, list(queues))).body)["lockOKMQSet"]

            other = RemotingClient()
            for client, client_id in ((cluster.client, "a"), (other, "b")):
                assert (await ask(client, 41, client_id, [queue])).code == 2, "without a heartbeat, nothing is locked"
                consumer = {"groupName": "cg", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
                consumer |= {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": []}
                beat = orjson.dumps({"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]})
                assert (await client.invoke(cluster.broker.address, RemotingCommand(34, body=beat), 5000)).code == 0
            absent = [{**queue, "queueId": 1}, {**queue, "queueId": -1}, {**queue, "topic": "none"}]
            assert await locked(cluster.client, "a", queue, *absent) == [queue]
            assert await locked(other, "b", queue) == []
            assert await locked(other, "b", {**queue, "brokerName": "another name of this broker"}) == []
            for code in (41, 42):
                assert (await ask(other, code, "a", [queue])).code == 2, "only the client itself says that it is a"
            assert await locked(other, "b", queue) == []
            assert (await ask(cluster.client, 42, "a", [queue])).code == 0
            assert await locked(other, "b", queue) == [queue]
            await other.close()

    run(scene())


@both_flush_modes
def test_messages_topics_and_groups_outlive_a_restart(tmp_path, sync_flush):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush) as cluster:
            await asyncio.gather(*[cluster.send("T", b"%d" % i * 500) for i in range(100)])
            await cluster.pull(group="cg")
        async with Cluster(tmp_path, sync_flush, auto_create_topic_enable=False) as cluster:
            assert cluster.broker.groups.table["cg"].group_name == "cg"
            assert (await cluster.send("T", b"more")).ext_fields["queueOffset"] == "100"
            assert await cluster.bodies() == [*[b"%d" % i * 500 for i in range(100)], b"more"]

    run(scene())


def test_one_failing_handler_costs_nobody_else_anything(tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()

            def fail(*_: object, **__: object) -> None:
                raise ZeroDivisionError("planted")

            monkeypatch.setattr(cluster.broker.store, "first_queue_offset", fail)
            monkeypatch.setattr(cluster.broker.store, "get_message", fail)
            answers = await asyncio.gather(
                cluster.send(), cluster.ask(31, {"topic": "T", "queueId": "0"}), cluster.pull(), cluster.send()
            )
            assert [answer.code for answer in answers] == [0, 1, 1, 0]
            assert [answer.remark for answer in answers[1:3]] == ["ZeroDivisionError: planted"] * 2

    run(scene())


def test_a_oneway_request_gets_no_answer_not_even_a_refusal(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"0")
            raw = await cluster.connect()
            for options in ({"body": b"1"}, {"topic": "bad topic!"}, {"queue_id": 99}, {"batch": True}):
                raw.send(cluster.send_command(**options), opaque=1, flag=2)
            raw.send(cluster.pull_command(), opaque=1, flag=2)
            raw.send(RemotingCommand(12345), opaque=1, flag=2)
            raw.send(cluster.send_command("T", b"2"), opaque=2)
            answer = await raw.receive()
            assert (answer.opaque, answer.ext_fields["queueOffset"]) == (2, "2")
            raw.close()

    run(scene())


def test_the_store_is_left_alone_while_another_broker_has_it(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            with pytest.raises(StoreLockedError):
                async with Cluster(tmp_path):
                    pass
            assert (await cluster.send()).code == 0

    run(scene())
