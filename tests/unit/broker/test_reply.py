"""Request/reply through the broker, compared with messages that were recorded from RocketMQ's broker."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers import Cluster, properties_text, run

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.producer_manager import ProducerManager
from rucola.formats.message import decode_messages
from rucola.formats.properties import decode_properties
from rucola.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient

TOPIC = "DefaultCluster_REPLY_TOPIC"
RECORDED = {
    "MSG_TYPE": "reply",
    "REPLY_TO_CLIENT": "192.0.2.2@25587#1776545041214",
    "UNIQ_KEY": "FD00000000000000000000000000000263F34E0E2F2A68B3843F0001",
    "TTL": "6000",
    "CORRELATION_ID": "ef4ed1f2-e841-4594-a6ef-4b5320afab50",
}
"""Properties of a reply of the 5.3.3 client."""


def reply(
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2, body: bytes = b"reply to question", **changes: str
) -> RemotingCommand:
    header_class = SendMessageRequestHeader if code == RequestCode.SEND_REPLY_MESSAGE else SendMessageRequestHeaderV2
    properties = {name: value for name, value in (RECORDED | changes).items() if value}
    header = header_class("G_R", TOPIC, "TBW102", 4, 0, 0, 1795247795263, 0, properties_text(**properties), 0, False)
    return RemotingCommand(code, ext_fields=header.to_ext_fields(), body=body)


async def asker(cluster: Cluster, told: list[RemotingCommand], code: int = 0) -> RemotingClient:
    """Connects a client that sent a request and waits for the reply."""
    client = RemotingClient()

    def take(_address: str, command: RemotingCommand) -> RemotingCommand:
        told.append(command)
        return command.answer(code)

    client.register_processor(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
    beat = HeartbeatData(RECORDED["REPLY_TO_CLIENT"], [ProducerData("G_P")], []).encode()
    await client.invoke(cluster.broker.address, RemotingCommand(RequestCode.HEART_BEAT, body=beat), 5000)
    return client


@pytest.mark.parametrize("code", [324, 325])
def test_the_reply_reaches_who_asked_and_is_stored(tmp_path, code):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            told: list[RemotingCommand] = []
            client = await asker(cluster, told)
            answer = await cluster.client.invoke(cluster.broker.address, reply(code), 5000)
            port = int(cluster.broker.address.rpartition(":")[2])
            assert (answer.code, answer.ext_fields) == (0, {
                "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "queueId": "0", "queueOffset": "0",
                "msgId": f"7F000001{port:08X}{0:016X}",
            })  # fmt: skip
            (pushed,) = told
            fields = pushed.ext_fields
            assert fields.keys() == {
                "queueId", "flag", "sysFlag", "reconsumeTimes", "storeTimestamp", "unitMode", "defaultTopic",
                "bornHost", "defaultTopicQueueNums", "producerGroup", "topic", "bornTimestamp", "storeHost",
                "properties",
            }  # fmt: skip
            assert (fields["storeHost"], fields["bornTimestamp"]) == (f"127.0.0.1:{port}", "1795247795263")
            assert fields["bornHost"].startswith("127.0.0.1:")
            names = list(decode_properties(fields["properties"].encode()))
            assert names == [
                "PUSH_REPLY_TIME", "MSG_REGION", "UNIQ_KEY", "CORRELATION_ID", "MSG_TYPE", "TTL", "REPLY_TO_CLIENT",
                "TRACE_ON",
            ]  # fmt: skip
            assert bytes(pushed.body) == b"reply to question"
            (stored,) = decode_messages((await cluster.pull(TOPIC)).body)
            assert stored.body == b"reply to question"
            stored.properties.pop("__CRC32#", None)
            assert stored.properties == RECORDED | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
            await client.close()

    run(scene())


def test_why_a_reply_does_not_arrive(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:

            async def answer_to(command: RemotingCommand) -> tuple[int, str, bool]:
                answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
                return answer.code, answer.remark, "msgId" in answer.ext_fields

            gone = f"push reply message fail, channel of <{RECORDED['REPLY_TO_CLIENT']}> not found."
            assert await answer_to(reply()) == (1, gone, True)
            nobody = "reply message properties[REPLY_TO_CLIENT] is null"
            assert await answer_to(reply(REPLY_TO_CLIENT="")) == (1, nobody, True)
            assert (await answer_to(reply(body=b"")))[0] == 1
            client = await asker(cluster, [], ResponseCode.SYSTEM_ERROR)
            refused = f"push reply message to {RECORDED['REPLY_TO_CLIENT']}fail."
            assert await answer_to(reply()) == (1, refused, True)
            await client.close()
            wrong = reply()
            wrong.ext_fields["e"] = "9"
            assert (await answer_to(wrong))[0] == 29

    run(scene())


def test_replies_need_not_be_stored(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, store_reply_message_enable=False) as cluster:
            client = await asker(cluster, [])
            answer = await cluster.client.invoke(cluster.broker.address, reply(), 5000)
            assert (answer.code, answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == (0, "0", "0")
            assert (await cluster.pull(TOPIC)).code == 19
            await client.close()
            answer = await cluster.client.invoke(cluster.broker.address, reply(REPLY_TO_CLIENT="other"), 5000)
            assert (answer.code, "msgId" in answer.ext_fields) == (1, False)

    run(scene())


def test_a_slow_asker_holds_nobody_else_up(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            released = asyncio.Event()

            async def take(_address: str, command: RemotingCommand) -> RemotingCommand:
                await released.wait()
                return command.answer(0)

            client = await asker(cluster, [])
            client.register_processor(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
            waiting = asyncio.ensure_future(cluster.client.invoke(cluster.broker.address, reply(), 10_000))
            assert (await cluster.send()).code == 0
            assert not waiting.done()
            released.set()
            assert (await waiting).code == 0
            await client.close()

    run(scene())


def test_where_a_client_is_found() -> None:
    producers = ProducerManager()
    old, new = object(), object()
    for channel in (old, new):
        for group in ("g1", "g2"):
            producers.register(group, ClientChannel(channel, "c", "JAVA", 479, 0.0))
    assert producers.find_channel("c") is new
    producers.channel_closed(old)
    assert producers.find_channel("c") is new
    producers.unregister("g1", new)
    assert producers.find_channel("c") is new
    producers.unregister("g2", new)
    assert producers.find_channel("c") is None
