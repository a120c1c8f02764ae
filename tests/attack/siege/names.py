"""Attacks on the name server: routes, registrations, key-values."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections.abc import Iterator

from tests.attack.siege.peer import Peer, attack, request, storm
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode as Code


def _registration(address: str, topics: Iterator[str], version: int, queues: int = 4, broker: str = "fake") -> bytes:
    table = {
        name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        for name in topics
    }  # fmt: skip
    wrapper = {"topicConfigTable": table, "dataVersion": {"stateVersion": 0, "timestamp": version, "counter": version}}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}, separators=(",", ":")).encode()
    return request(
        Code.REGISTER_BROKER, body, brokerName=broker, brokerAddr=address, clusterName="DefaultCluster",
        haServerAddr="127.0.0.1:1", brokerId=0, compressed=False, bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF,
    )  # fmt: skip


@attack("names", "a broker that does not exist registers 30,000 topics, leaves, and registers again")
async def fake_registrations(addresses: Addresses) -> None:
    frames = [
        _registration("127.0.0.1:1", (f"Fake{number}" for number in range(30_000)), version) for version in (1, 2, 3)
    ]
    gone = request(
        Code.UNREGISTER_BROKER, brokerName="fake", brokerAddr="127.0.0.1:1", clusterName="DefaultCluster", brokerId=0
    )
    await storm(addresses.namesrv, itertools.cycle([*frames, gone]), connections=2)


@attack("names", "brokers that do not exist register by the thousand, with 100 topics each")
async def many_brokers(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            topics = (f"Of{number}-{topic}" for topic in range(100))
            yield _registration(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:1", topics, 1,
                                broker=f"fake{number}")  # fmt: skip

    await storm(addresses.namesrv, frames(), connections=20)


@attack("names", "a fake broker registers the canary's topic, without an account", guarded=True)
async def fake_route(addresses: Addresses) -> None:
    frames = (
        _registration("127.0.0.1:1", iter(["Canary0"]), version, broker="siege") for version in itertools.count(1 << 42)
    )
    await storm(addresses.namesrv, frames)


@attack("names", "deflated registrations that become large")
async def deflated_registrations(addresses: Addresses) -> None:
    bomb = zlib.compress(bytes(60 * 1024 * 1024))
    version = b'{"stateVersion":0,"timestamp":1,"counter":1}'
    topics = b"".join(
        len(text).to_bytes(4, "big") + text for text in (f"Z{n} 1 1 6 SINGLE_TAG".encode() for n in range(100_000))
    )
    many = zlib.compress(len(version).to_bytes(4, "big") + version + (100_000).to_bytes(4, "big") + topics)
    fields = {"brokerName": "z", "brokerAddr": "127.0.0.1:2", "clusterName": "c", "haServerAddr": "", "brokerId": 0}
    frames = [request(Code.REGISTER_BROKER, body, **fields, compressed=True) for body in (bomb, many)]
    await storm(addresses.namesrv, itertools.cycle(frames), connections=2)


@attack("names", "key-values of 100 KB, then lists of them, pipelined, whose answers are not read")
async def key_value_lists(addresses: Addresses) -> None:
    peer = await Peer.to(addresses.namesrv)
    for number in range(20):
        await peer.put(request(Code.PUT_KV_CONFIG, namespace="n", key=f"k{number}", value="v" * 100_000))
    lists = itertools.repeat(request(Code.GET_KVLIST_BY_NAMESPACE, namespace="n"))
    await asyncio.gather(
        storm(addresses.namesrv, lists, connections=30, take=False), storm(addresses.namesrv, lists, connections=4)
    )


@attack("names", "new namespaces of key-values")
async def namespaces(addresses: Addresses) -> None:
    frames = (
        request(Code.PUT_KV_CONFIG, namespace=f"namespace-{number}", key="k", value="v" * 500)
        for number in itertools.count()
    )
    await storm(addresses.namesrv, frames)


@attack("names", "1,000 clients of the name server ask for routes without a pause")
async def many_route_clients(addresses: Addresses) -> None:
    frame = request(Code.GET_ROUTEINFO_BY_TOPIC, topic="Canary0") + request(Code.GET_BROKER_CLUSTER_INFO)

    async def one() -> None:
        peer = await Peer.to(addresses.namesrv)
        peer.take_answers()
        while True:
            await peer.put(frame)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(1000)))


@attack("names", "all requests of the name server's administration, pipelined")
async def name_administration(addresses: Addresses) -> None:
    frames = [
        request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        request(Code.GET_TOPICS_BY_CLUSTER, cluster="DefaultCluster"),
        request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS),
        request(Code.REGISTER_TOPIC_IN_NAMESRV, b'{"queueDatas":[]}', topic="R"),
        request(Code.DELETE_TOPIC_IN_NAMESRV, topic="R"),
        request(Code.UPDATE_NAMESRV_CONFIG, b"scanNotActiveBrokerInterval=10\n"),
        request(Code.QUERY_DATA_VERSION, b"[" * 1000, brokerName="b", brokerAddr="a", clusterName="c", brokerId=0),
    ]
    await storm(addresses.namesrv, itertools.cycle(frames))
