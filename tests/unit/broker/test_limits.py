"""Overload, the stop of a broker, and topics with special rules: every request gets its response."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, properties_text, run

from rucola.broker.pull.admission import Admission, RepeatedFields
from rucola.broker.pull.request import PullRequest, PullRequestHold
from rucola.common.topic_config import TopicConfig, TopicFilterType
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

OVERLOAD = (2, "[OVERLOAD]system busy, start flow control for a while")
HOLD = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_ms": 60_000}


def test_more_sends_than_may_wait_for_the_disk_are_refused(tmp_path, monkeypatch):
    async def scene() -> None:
        async with Cluster(tmp_path, sync_flush=True, send_thread_pool_queue_capacity=2) as cluster:
            await cluster.send("T", b"0")
            monkeypatch.setattr(type(cluster.broker.store), "flushed_offset", property(lambda _: 0))
            waiting = []
            for number in (1, 2):
                waiting.append(asyncio.ensure_future(cluster.send("T", b"%d" % number)))
                while cluster.broker.sends_waiting < number:
                    await asyncio.sleep(0)
            refused = await cluster.send("T", b"refused")
            assert (refused.code, refused.remark) == OVERLOAD
            odd = cluster.send_command("T", b"refused")
            odd.ext_fields["e"] = "+0"
            refused = await cluster.client.invoke(cluster.broker.address, odd, 5000)
            assert (refused.code, refused.remark) == OVERLOAD
            monkeypatch.undo()
            cluster.broker._serving.scheduler.flushed()
            assert [(await send).code for send in waiting] == [0, 0]
            assert await cluster.bodies() == [b"0", b"1", b"2"]

    run(scene())


def test_more_pulls_than_may_wait_are_refused(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, pull_thread_pool_queue_capacity=1) as cluster:
            await cluster.send()
            held = asyncio.ensure_future(cluster.pull("T", 0, 1, **HOLD))
            while not cluster.broker.pulls_held:
                await asyncio.sleep(0)
            refused = await cluster.pull("T", 0, 1, **HOLD)
            assert (refused.code, refused.remark) == OVERLOAD
            await cluster.send()
            assert (await held).code == 0
            assert (await cluster.pull("T", 0, 2, sys_flag=HOLD["sys_flag"], suspend_ms=10)).code == 19

    run(scene())


def test_count_of_held_pulls() -> None:
    left: list[PullRequest] = []

    clock = ManualClock()
    hold = PullRequestHold(lambda *_: 9, left.append, clock.monotonic, ManualLoop(clock).call_later)
    one, other = object(), object()
    for number, channel in enumerate([one, one, other, other, other]):
        queue_id = number % 2
        fields = RepeatedFields(b"T", b"g%d" % number, queue_id, 11, None, b"*", b"TAG")
        request = PullRequest(channel, 1, 0, fields, 5, 32, 2, 0, 1000)
        request.admission = Admission((f"g{number}", "T", queue_id), (b"T", queue_id))
        hold.hold(request, clock.monotonic() + 1, 5)
    assert len(hold) == 5
    hold.end(b"T", 0, "g0")
    assert (len(hold), [request.admission.consumer[0] for request in left]) == (4, ["g0"])
    hold.channel_closed(other)
    assert len(hold) == 1
    hold.release_all()
    assert (len(hold), [request.admission.consumer[0] for request in left]) == (0, ["g0", "g1"])


async def reply_that_waits(cluster: Cluster) -> tuple[RemotingClient, asyncio.Task[RemotingCommand]]:
    """Sends a reply that the broker pushes to the requesting client, which does not respond."""
    asker = RemotingClient()
    reached = asyncio.Event()

    async def never(_address: str, _command: RemotingCommand) -> None:
        reached.set()

    asker.register_processor(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, never)
    beat = HeartbeatData("asker", [ProducerData("g")], []).encode()
    await asker.invoke(cluster.broker.address, RemotingCommand(RequestCode.HEART_BEAT, body=beat), 5000)
    text = properties_text(REPLY_TO_CLIENT="asker")
    header = SendMessageRequestHeaderV2("g", "DefaultCluster_REPLY_TOPIC", "TBW102", 4, 0, 0, 1, 0, text)
    waiting = asyncio.ensure_future(cluster.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext_fields(), b"reply"))
    await reached.wait()
    return asker, waiting


def test_more_requests_than_may_wait_are_refused(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path, admin_broker_thread_pool_queue_capacity=1) as cluster:
            asker, waiting = await reply_that_waits(cluster)
            refused = await cluster.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            assert (refused.code, refused.remark) == OVERLOAD
            assert (await cluster.send()).code == 0
            await cluster.stop_broker()
            assert (await waiting).code == 14
            await asker.close()

    run(scene())


def test_a_stop_answers_everyone(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            asker, reply = await reply_that_waits(cluster)
            held = asyncio.ensure_future(cluster.pull("T", 0, 1, **HOLD))
            while not cluster.broker.pulls_held:
                await asyncio.sleep(0)
            await cluster.stop_broker()
            assert ((await held).code, (await reply).code) == (19, 14)
            await asker.close()

    run(scene())


@pytest.mark.parametrize(
    ("version", "code", "remark"), [(477, 1500, "please go away"), (475, 14, "the broker is stopping")]
)
def test_requests_that_come_during_the_stop(tmp_path, version, code, remark):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send()
            cluster.broker._serving.handler.stopping = True
            for command in (
                cluster.send_command(),
                cluster.pull_command("T", 0, 1, **HOLD),
                RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"}),
            ):
                command.version = version
                answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
                assert (answer.code, answer.remark) == (code, remark)
            assert cluster.broker.pulls_held == 0

    run(scene())


@pytest.mark.parametrize("batch", [False, True])
def test_topics_of_several_tags(tmp_path, batch):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.topics.update(TopicConfig("M", 1, 1, 6, TopicFilterType.MULTI_TAG))
            body = b"\x00\x00\x00\x17" + bytes(12) + b"\x00\x00\x00\x01x\x00\x00" if batch else b"x"
            assert (await cluster.send("M", body, batch=batch, sys_flag=1)).code == 0
            await cluster.send("T", body, batch=batch, sys_flag=1)
            for topic, flags in (("M", 3), ("T", 1)):
                (message,) = decode_messages_raw((await cluster.pull(topic)).body)
                assert message == flags

    run(scene())


def decode_messages_raw(records: bytes) -> list[int]:
    """Returns the sysFlag of the first record without decoding its body, which does not match the flag."""
    return [int.from_bytes(records[36:40], "big")]


def test_compaction_needs_keys(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.topics.update(TopicConfig("C", 1, 1, 6, attributes={"cleanup.policy": "COMPACTION"}))
            refused = await cluster.send("C")
            assert (refused.code, refused.remark) == (13, "Required message key is missing")
            assert (await cluster.send("C", b"kept", properties_text(UNIQ_KEY="U", KEYS="k"))).code == 0
            (message,) = decode_messages((await cluster.pull("C")).body)
            assert message.body == b"kept"

    run(scene())
