"""Attacks with requests for administrators: large bodies, lists, statistics, options, topics created and deleted."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

from tests.attack.siege.consumers import filled
from tests.attack.siege.peer import Peer, attack, request, storm
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode as Code

_JSON_CODES = (
    Code.HEART_BEAT,
    Code.CHECK_CLIENT_CONFIG,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE,
    Code.BATCH_ACK_MESSAGE,
)


def _bodies(size: int) -> list[bytes]:
    """Returns bodies of about ``size`` bytes, each slow to read for a different reason."""
    ones, maps = size // 2, size // 3
    return [
        b'{"mqSet":[' + b"1," * ones + b"1]}",
        b'{"mqSet":[' + b"{}," * maps + b"{}]}",
        b"{'mqSet':[" + b"1," * ones + b"1]}",
        b"{'a':[" + b"{}," * maps + b"{}]}",
    ]


@attack("administration", "bodies of nearly 16 MiB of JSON to every request that takes JSON")
async def json_bodies(addresses: Addresses) -> None:
    bodies = itertools.cycle(_bodies(16 * 1024 * 1024 - 4096))
    codes = itertools.cycle((*_JSON_CODES, None))
    await storm(
        addresses.broker,
        (request(code, body) for code, body in zip(codes, bodies, strict=False) if code),
        connections=2,
    )


@attack("administration", "bodies of JSON as large as they are taken, to every request that takes JSON")
async def middling_json_bodies(addresses: Addresses) -> None:
    frames = [request(code, body) for body in _bodies(250_000) for code in _JSON_CODES]
    await storm(addresses.broker, itertools.cycle(frames), connections=4)


@attack("administration", "options that may be changed by request, to what hurts consumers most")
async def config_keys(addresses: Addresses) -> None:
    options = (
        b"pullThreadPoolQueueCapacity=1\n", b"longPollingEnable=false\nshortPollingTimeMills=0\n",
        b"rejectPullConsumerEnable=true\n", b"litePullMessageEnable=false\n", b"flushConsumerOffsetInterval=1\n",
        b"notifyConsumerIdsChangedEnable=false\n", b"useServerSideResetOffset=false\n",
    )  # fmt: skip
    for text in itertools.cycle(options):
        peer = await Peer.to(addresses.broker)
        peer.take_answers()
        await peer.put(request(Code.UPDATE_BROKER_CONFIG, text))
        await asyncio.sleep(0.05)
        peer.close()


@attack("administration", "lists of all topics, pipelined, from a broker with 3,000 of them")
async def topic_lists(addresses: Addresses) -> None:
    await _make_topics(addresses, 3000)
    codes = (Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_CONSUMER_OFFSET)
    frames = itertools.cycle([request(code) for code in codes])
    names = itertools.repeat(request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    await asyncio.gather(storm(addresses.broker, frames), storm(addresses.namesrv, names))


async def _make_topics(addresses: Addresses, count: int, queues: int = 1) -> None:
    peer = await Peer.to(addresses.broker)
    peer.take_answers()
    for first in range(0, count, 500):
        configs = [
            {"topicName": f"Listed{number}", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
             "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
            for number in range(first, min(first + 500, count))
        ]  # fmt: skip
        await peer.put(request(Code.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": configs}).encode()))
    await asyncio.sleep(1)
    peer.close()


@attack("administration", "topics with as many queues as there may be, their figures asked for")
async def most_queues(addresses: Addresses) -> None:
    topic = {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "defaultTopic": "TBW102"}

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            for queues in (65_536, 16_384, 1024):
                name = f"Queues{number % 100}"
                yield request(
                    Code.UPDATE_AND_CREATE_TOPIC, topic=name, readQueueNums=queues, writeQueueNums=queues, **topic
                )
                yield request(Code.GET_TOPIC_STATS_INFO, topic=name)
                yield request(Code.GET_CONSUME_STATS, consumerGroup="canary-group-0", topic=name)

    await storm(addresses.broker, frames())


@attack("administration", "figures of the broker, of topics and groups, and of their connections")
async def figures(addresses: Addresses) -> None:
    await filled(addresses, "T", 1000)
    frames = [
        request(Code.GET_BROKER_RUNTIME_INFO),
        request(Code.GET_BROKER_CONSUME_STATS, isOrder=False),
        request(Code.GET_CONSUME_STATS, consumerGroup="canary-group-0"),
        request(Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T"),
        request(Code.GET_ALL_PRODUCER_INFO),
        request(Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup="canary-group-0"),
        request(Code.QUERY_CONSUME_TIME_SPAN, topic="T", group="canary-group-0"),
        request(Code.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=0, count=1_000_000),
        request(Code.GET_TIMER_METRICS),
        request(Code.GET_TIMER_CHECK_POINT),
    ]
    await storm(addresses.broker, itertools.cycle(frames))


@attack("administration", "topics and groups that are made and deleted")
async def churn(addresses: Addresses) -> None:
    topic = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    topic |= {"order": False, "defaultTopic": "TBW102"}

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            name = f"Churn{number % 20}"
            yield request(Code.UPDATE_AND_CREATE_TOPIC, topic=name, **topic)
            yield request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode())
            yield request(Code.DELETE_TOPIC_IN_BROKER, topic=name)
            yield request(Code.DELETE_SUBSCRIPTIONGROUP, groupName=name, cleanOffset=True)

    await storm(addresses.broker, frames(), connections=2)


@attack("administration", "resets and copies of progress, and expiry, again and again")
async def resets(addresses: Addresses) -> None:
    await filled(addresses, "T", 10_000)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield request(Code.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="reset-me", timestamp=-1, isForce=True)
            yield request(Code.CLONE_GROUP_OFFSET, srcGroup="reset-me", destGroup=f"to-{number % 100}", topic="T")
            yield request(Code.DELETE_EXPIRED_COMMITLOG)
            yield request(Code.CLEAN_UNUSED_TOPIC)

    await storm(addresses.broker, frames(), connections=2)
