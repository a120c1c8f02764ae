"""Requests and their replies through our broker, and their form on the wire."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from tests.brokers import Cluster
from tests.brokers import run as run_plain

from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer
from rucola.errors import BrokerError, ClientError, RequestTimeoutError
from rucola.formats.compression import compress
from rucola.protocol.bodies.route import BrokerData, ClusterInfo
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import ReplyMessageRequestHeader
from rucola.testing.event_loop import advance, run_stepped, settle

SEND, INFO = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.GET_BROKER_CLUSTER_INFO)
PATIENT = ProducerConfig(send_msg_timeout_ms=3_600_000)


async def serve(namesrv: str, topic: str, count: int) -> None:
    """Replies to ``count`` requests, each with the request's text in capitals."""
    async with Producer("repliers", namesrv) as producer, PullConsumer("cg", namesrv) as consumer:
        offsets: dict[MessageQueue, int] = {}
        while count:
            for queue in await consumer.message_queues(topic):
                result = await consumer.pull(queue, offsets.get(queue, 0))
                offsets[queue] = result.next_begin_offset
                for message in result.messages:
                    await producer.reply(message, message.body.upper())
                    count -= 1
            await asyncio.sleep(0.005)


def test_over_a_broker(tmp_path):
    """Each of several concurrent requests gets its own reply through a broker. The messages keep no request properties,
    so they may be sent again.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            namesrv = cluster.namesrv.address
            async with Producer("askers", namesrv) as producer:
                await producer.send(Message("Other", b"x"))
                messages = [Message("T", b"question %d" % n, tags="A") for n in range(5)]
                asking = [asyncio.ensure_future(producer.request(one, timeout_ms=20_000)) for one in messages]
                while not await has_route(namesrv, "T"):
                    await asyncio.sleep(0.005)
                await serve(namesrv, "T", 5)
                replies = await asyncio.gather(*asking)
                assert [reply.body for reply in replies] == [b"QUESTION %d" % n for n in range(5)]
                assert {reply.topic for reply in replies} == {"DefaultCluster_REPLY_TOPIC"}
                assert [set(message.properties) for message in messages] == [{"TAGS", "UNIQ_KEY"}] * 5

    run_plain(scene())


async def has_route(namesrv: str, topic: str) -> bool:
    async with PullConsumer("look", namesrv) as consumer:
        return topic in await consumer.topics()


def test_nobody_replies(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster, Producer("askers", cluster.namesrv.address) as producer:
            message = Message("T", b"x")
            with pytest.raises(RequestTimeoutError, match="of topic T within 600 ms") as caught:
                await producer.request(message, timeout_ms=600)
            assert caught.value.msg_id == message.uniq_key
            assert caught.value.retriable
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
            with pytest.raises(ClientError, match="timeout_ms must be at least 1"):
                await producer.request(message, timeout_ms=0)
            with pytest.raises(ClientError, match="no property CORRELATION_ID"):
                await producer.reply(message, b"x")

    run_plain(scene())


def test_a_reply_to_somebody_who_is_gone_is_refused(tmp_path):
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            namesrv = cluster.namesrv.address
            async with Producer("askers", namesrv) as producer:
                with pytest.raises(RequestTimeoutError):
                    await producer.request(Message("T", b"x"), timeout_ms=600)
            with pytest.raises(BrokerError, match=r"channel of <.*> not found"):
                await serve(namesrv, "T", 1)

    run_plain(scene())


def test_frames_of_request_and_reply_are_these(broker):
    """The client sends a heartbeat to all brokers before the request. It accepts compressed replies, and also late
    replies and replies to unknown requests.
    """

    async def scene() -> None:
        async with broker("a", {"T": 1}) as one, broker("b", {}) as other:
            brokers = {each.name: BrokerData("c", each.name, {0: each.address}) for each in (one, other)}
            one.scripts[INFO] = [lambda command: command.answer(0, body=ClusterInfo(brokers, {}).encode())]
            beats: list[RemotingCommand] = []
            other.scripts[RequestCode.HEART_BEAT] = [beats.append] * 2
            async with Producer("pg", one.address, PATIENT) as producer:
                asking = asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_ms=10_000))
                await other.until(lambda: len(beats) > 0)
                await settle()
                assert not one.stored
                for beat in beats:
                    other.channels[-1].send(beat.answer(0).encode())
                other.scripts.clear()
                await one.until(lambda: bool(one.stored))
                assert one.heartbeats()
                assert other.heartbeats()
                assert one.codes().index(RequestCode.HEART_BEAT) < one.codes().index(SEND)
                sent = next(command for command in one.received if command.code == SEND)
                properties = dict(pair.split("\x01") for pair in sent.ext_fields["i"].split("\x02") if pair)
                assert properties["REPLY_TO_CLIENT"] == producer.client_id
                assert properties["TTL"] == "10000"

                def push(correlation_id: str, body: bytes, sys_flag: int = 0) -> bytes:
                    header = ReplyMessageRequestHeader(
                        *("rg", "c_REPLY_TOPIC", "TBW102", 4, 2, sys_flag, 11, 3),
                        *("/127.0.0.1:5", "127.0.0.1:6", 12, f"CORRELATION_ID\x01{correlation_id}\x02own\x01yes\x02"),
                    )
                    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
                    return RemotingCommand(code, ext_fields=header.to_ext_fields(), body=body, opaque=77).encode()

                answers = []
                other.frames_received = lambda channel, batch: answers.extend(
                    batch.command(row) for row in range(batch.count)
                )
                for channel in other.channels:
                    channel.inbound._frames_received = other.frames_received
                other.channels[-1].send(push("nobody's", b"?"))
                other.channels[-1].send(push(properties["CORRELATION_ID"], *compress(b"reply" * 99)))
                reply = await asking
                other.channels[-1].send(push(properties["CORRELATION_ID"], b"late"))
                await settle()
                assert [(answer.code, answer.is_response) for answer in answers] == [(0, True)] * 3
                assert (reply.body, reply.topic, reply.queue_id, reply.flag) == (b"reply" * 99, "c_REPLY_TOPIC", 2, 3)
                assert (reply.born_timestamp_ms, reply.store_timestamp_ms, reply.properties["own"]) == (11, 12, "yes")
                assert reply.born_host == bytes([127, 0, 0, 1, 0, 0, 0, 5])

                asking = asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_ms=10_000))
                await one.until(lambda: len(one.stored) == 2)
                assert one.codes().count(INFO) == 1  # the brokers know the client
                advance(10.001)
                with pytest.raises(RequestTimeoutError):
                    await asking
                assert len(producer._requests) == 0
                one.scripts[INFO] = [lambda command: command.answer(0, body=ClusterInfo(brokers, {}).encode())]
                asking = asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_ms=10_000))
                await one.until(lambda: one.codes().count(INFO) == 2)
                await settle()
                advance(5.001)  # the other broker no longer responds
                await one.until(lambda: len(one.stored) == 3)
                assert one.codes().count(INFO) == 2  # the reply may have gone to a new broker
                asking.cancel()
                for channel in other.channels:
                    channel.close()
                await settle()

    run_stepped(scene())


def test_a_shutdown_ends_who_waits_for_a_reply(broker):
    async def scene() -> None:
        async with broker("a", {"T": 1}) as one:
            brokers = {"a": BrokerData("c", "a", {0: one.address})}
            one.scripts[INFO] = [lambda command: command.answer(0, body=ClusterInfo(brokers, {}).encode())]
            producer = Producer("pg", one.address, PATIENT)
            await producer.start()
            asking = asyncio.ensure_future(producer.request(Message("T", b"x")))
            await one.until(lambda: bool(one.stored))
            await settle()
            await producer.shutdown()
            with pytest.raises(ClientError, match="shut down before the reply came"):
                await asking
            with pytest.raises(ClientError, match="shut down"):
                await producer.request(Message("T", b"x"))

    run_stepped(scene())


def test_a_broker_that_does_not_answer_holds_up_a_request_for_half_its_time(broker):
    async def scene() -> None:
        async with broker("a", {"T": 1}) as one, broker("b", {}) as other:
            brokers = {each.name: BrokerData("c", each.name, {0: each.address}) for each in (one, other)}
            one.scripts[INFO] = [lambda command: command.answer(0, body=ClusterInfo(brokers, {}).encode())]
            other.scripts[RequestCode.HEART_BEAT] = [lambda command: None] * 9
            config = ProducerConfig(mq_client_api_timeout_ms=3_600_000)
            async with Producer("pg", one.address, config) as producer:
                asking = asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_ms=10_000))
                await other.until(lambda: RequestCode.HEART_BEAT in other.codes())
                advance(4.9)
                await settle()
                assert not one.stored
                advance(0.2)
                await one.until(lambda: bool(one.stored))
                await settle()
                advance(4.8)
                await settle()
                assert not asking.done()
                advance(0.2)
                with pytest.raises(RequestTimeoutError):
                    await asking
                for channel in other.channels:
                    channel.close()

    run_stepped(scene())
