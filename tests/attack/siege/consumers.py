"""Attacks by consumers: heartbeats, pulls, pops, offsets, locks, filters, queries."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator

from tests.attack.siege.peer import Peer, attack, properties, request, send_request, storm
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode as Code
from rucola.protocol.command import decode_frame


def heartbeat(client: str, groups: list[str], topics: list[str], tags: int = 0, producers: bool = False) -> bytes:
    """Returns a heartbeat of one client."""
    body: dict[str, object] = {"clientID": client}
    if producers:
        body["producerDataSet"] = [{"groupName": group} for group in groups]
    else:
        names = [f"tag-{number}" for number in range(tags)]
        subscriptions = [
            {"topic": topic, "subString": " || ".join(names) or "*", "tagsSet": names, "codeSet": list(range(tags)),
             "subVersion": time.time_ns(), "expressionType": "TAG"}
            for topic in topics
        ]  # fmt: skip
        body["consumerDataSet"] = [
            {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
             "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions}
            for group in groups
        ]  # fmt: skip
    return request(Code.HEART_BEAT, json.dumps(body, separators=(",", ":")).encode())


def pull(topic: str, queue_id: int, offset: int, suspend_ms: int, expression: str = "*", kind: str = "TAG") -> bytes:
    """Returns a pull request that waits up to ``suspend_ms`` if there is no message."""
    return request(
        Code.PULL_MESSAGE, consumerGroup="attackers", topic=topic, queueId=queue_id, queueOffset=offset, maxMsgNums=32,
        sysFlag=6, commitOffset=0, suspendTimeoutMillis=suspend_ms, subVersion=0, subscription=expression,
        expressionType=kind,
    )  # fmt: skip


async def filled(addresses: Addresses, topic: str, count: int, text: str = "", body: bytes = b"x" * 64) -> None:
    """Fills queue 0 of a topic with ``count`` messages; returns when all responses have arrived."""
    peer = await Peer.to(addresses.broker)
    frame = send_request(topic, body, text)
    await peer.ask(decode_frame(frame))
    peer.take_answers()
    for done in range(0, count, 1000):
        await peer.put(frame * min(1000, count - done))
    await asyncio.sleep(0.5)
    peer.close()


@attack("consumers", "heartbeats of 3,000 new groups each, one after the other")
async def heartbeat_groups(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield heartbeat(f"c{number}", [f"attack-{number}-{group}" for group in range(3000)], ["T"])

    await storm(addresses.broker, frames(), connections=1)


@attack("consumers", "1,000 members of one group come and go, each heartbeat changes the subscription")
async def members_come_and_go(addresses: Addresses) -> None:
    for round_number in itertools.count():
        peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(500)))
        for number, peer in enumerate(peers):
            peer.take_answers()
            await peer.put(heartbeat(f"m{round_number}-{number}", ["come-and-go"], ["T", f"T{number % 7}"]))
        for number, peer in enumerate(peers):
            await peer.put(heartbeat(f"m{round_number}-{number}", ["come-and-go"], ["T", f"U{number % 5}"]))
        for peer in peers:
            peer.close()


@attack("consumers", "1,000 members of a group; pipelined questions for the list of its members")
async def member_lists(addresses: Addresses) -> None:
    peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(1000)))
    for number, peer in enumerate(peers):
        peer.take_answers()
        await peer.put(heartbeat(f"member-{number}-with-a-long-name-of-its-own", ["listed"], ["T"]))
    await storm(addresses.broker, itertools.repeat(request(Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="listed")))


@attack("consumers", "heartbeats with subscriptions of 3,000 tags in 50 topics, new ones each time")
async def thousands_of_tags(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        while True:
            yield heartbeat("tags", ["tag-readers"], [f"T{number}" for number in range(4)], tags=3000)

    await storm(addresses.broker, frames())


@attack("consumers", "20,000 producer groups in heartbeats, then the connection ends, again and again")
async def producer_groups(addresses: Addresses) -> None:
    for number in itertools.count():
        peer = await Peer.to(addresses.broker)
        peer.take_answers()
        for part in range(20):
            await peer.put(heartbeat(f"p{number}-{part}", [f"pg{part}-{n}" for n in range(1000)], [], producers=True))
        await asyncio.sleep(0.2)
        peer.close()


@attack("consumers", "98,304 pulls that wait, deadlines in reversed order, over 24 connections, again and again")
async def reversed_pulls(addresses: Addresses) -> None:
    await filled(addresses, "T", 1)
    while True:
        peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(24)))
        for peer in peers:
            peer.take_answers()
        waits = [b"".join(pull("T", 0, 1_000_000, 15_000 - part * 1024 - n) for n in range(1024)) for part in range(4)]
        await asyncio.gather(*(peer.put(wait) for wait in waits for peer in peers))
        await asyncio.sleep(4)
        for peer in peers:
            peer.close()


@attack("consumers", "81,920 pops that wait over 20 connections, which then end")
async def waiting_pops(addresses: Addresses) -> None:
    await filled(addresses, "T", 1)
    while True:
        peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(20)))
        frame = _pop("T", "waiting-pops", 20_000)
        for peer in peers:
            peer.take_answers()
        await asyncio.gather(*(peer.put(frame * 1024) for _ in range(4) for peer in peers))
        await asyncio.sleep(3)
        for peer in peers:
            peer.close()


def _pop(topic: str, group: str, poll_ms: int, invisible_ms: int = 60_000, queue_id: int = -1) -> bytes:
    return request(
        Code.POP_MESSAGE, consumerGroup=group, topic=topic, queueId=queue_id, maxMsgNums=32, invisibleTime=invisible_ms,
        pollTime=poll_ms, bornTime=time.time_ns() // 1_000_000, initMode=0, order=False,
    )  # fmt: skip


@attack("consumers", "pops of 20 groups that acknowledge nothing, invisible for 10 s")
async def pops_without_acknowledgement(addresses: Addresses) -> None:
    await filled(addresses, "PopT", 5000)
    groups = itertools.cycle([f"popper-{number}" for number in range(20)])
    await storm(addresses.broker, (_pop("PopT", group, 0, 10_000) for group in groups))


@attack("consumers", "acknowledgements and changes of invisible time with receipts that are made up")
async def made_up_receipts(addresses: Addresses) -> None:
    await filled(addresses, "PopT", 100)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            receipt = f"{number} {time.time_ns() // 1_000_000} 60000 {number % 8} 0 siege 0 {number}"
            fields = {"consumerGroup": "ackers", "topic": "PopT", "queueId": 0, "extraInfo": receipt, "offset": number}
            yield request(Code.ACK_MESSAGE, **fields)
            yield request(Code.CHANGE_MESSAGE_INVISIBLETIME, **fields, invisibleTime=30_000)

    await storm(addresses.broker, frames())


@attack("consumers", "peeks, questions for messages and for waiting pops")
async def peeks(addresses: Addresses) -> None:
    await filled(addresses, "PopT", 5000)

    def frames() -> Iterator[bytes]:
        while True:
            fields = {"consumerGroup": "peekers", "topic": "PopT", "queueId": -1}
            yield request(Code.PEEK_MESSAGE, **fields, maxMsgNums=32)
            yield request(Code.NOTIFICATION, **fields, pollTime=0, bornTime=time.time_ns() // 1_000_000)
            yield request(Code.POLLING_INFO, **fields)

    await storm(addresses.broker, frames())


@attack("consumers", "progress of queues and groups that do not exist")
async def queue_ids(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield request(
                Code.UPDATE_CONSUMER_OFFSET, consumerGroup=f"g{number % 50}", topic="T", queueId=number, commitOffset=1
            )

    await filled(addresses, "T", 1)
    await storm(addresses.broker, frames())


@attack("consumers", "locks of queues that do not exist, 2,000 a request")
async def locks(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            queues = [{"topic": "T", "brokerName": "b", "queueId": number * 2000 + n} for n in range(2000)]
            body = {"consumerGroup": f"lock-{number}", "clientId": "c", "mqSet": queues}
            yield request(Code.LOCK_BATCH_MQ, json.dumps(body, separators=(",", ":")).encode())

    await storm(addresses.broker, frames())


@attack("consumers", "SQL filters with CONTAINS that let nothing through, over 30,000 messages of long properties")
async def sql_contains(addresses: Addresses) -> None:
    await filled(addresses, "SqlT", 30_000, properties(a="ab" * 400))
    expression = " OR ".join(f"a CONTAINS 'abababababababababababababababac{number}'" for number in range(8))
    await storm(addresses.broker, itertools.repeat(pull("SqlT", 0, 0, 0, expression, "SQL92")))


@attack("consumers", "expressions that are checked: 4,000 terms of SQL, and tags by the megabyte")
async def expressions(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        while True:
            sql = " OR ".join(f"a = {time.time_ns() % 1000 + n}" for n in range(4000))
            for kind, text in (("SQL92", sql), ("TAG", " || ".join(f"t{n}" for n in range(20_000)))):
                subscription = {"topic": "T", "subString": text, "expressionType": kind}
                body = {"clientId": "c", "group": "g", "subscriptionData": subscription}
                yield request(Code.CHECK_CLIENT_CONFIG, json.dumps(body).encode())

    await storm(addresses.broker, frames())


@attack("consumers", "pulls with a new tag expression of 2,000 tags each time")
async def new_expressions(addresses: Addresses) -> None:
    await filled(addresses, "T", 1000)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield pull("T", 0, 0, 0, " || ".join(f"t{number}-{n}" for n in range(2000)))

    await storm(addresses.broker, frames())


@attack("consumers", "pulls of 32 messages of 64 KB whose answers nobody takes, over 300 connections")
async def slow_readers(addresses: Addresses) -> None:
    await filled(addresses, "LargeT", 200, body=bytes(65_536))
    peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(300)))
    for peer in peers:
        peer.writer.write(pull("LargeT", 0, 0, 0) * 200)
    await asyncio.sleep(3600)


@attack("consumers", "queries by a key that 20,000 messages have")
async def query_chains(addresses: Addresses) -> None:
    await filled(addresses, "KeyT", 20_000, properties(KEYS="the-one-key", UNIQ_KEY="the-one-id"))
    fields = {"topic": "KeyT", "key": "the-one-key", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": (1 << 62)}
    other = fields | {"key": "none-such"}
    await storm(
        addresses.broker, itertools.cycle([request(Code.QUERY_MESSAGE, **fields), request(Code.QUERY_MESSAGE, **other)])
    )


@attack("consumers", "searches for the offset of a time, views by position, first and last times")
async def offset_searches(addresses: Addresses) -> None:
    await filled(addresses, "TimeT", 50_000)
    began = time.time_ns() // 1_000_000

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield request(
                Code.SEARCH_OFFSET_BY_TIMESTAMP, topic="TimeT", queueId=0, timestamp=began - 2000 + number % 4000
            )
            yield request(Code.VIEW_MESSAGE_BY_ID, offset=number * 37)
            yield request(Code.GET_EARLIEST_MSG_STORETIME, topic="TimeT", queueId=0)

    await storm(addresses.broker, frames())


@attack("consumers", "messages sent back by the thousand: retry topics of new groups")
async def sent_back(addresses: Addresses) -> None:
    await filled(addresses, "T", 10)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield request(
                Code.CONSUMER_SEND_MSG_BACK, offset=0, group=f"back-{number % 500}", delayLevel=1, originTopic="T"
            )

    await storm(addresses.broker, frames())


@attack("consumers", "questions for assignments of a topic with many queues, for groups of many members")
async def assignments(addresses: Addresses) -> None:
    peers = await asyncio.gather(*(Peer.to(addresses.broker) for _ in range(300)))
    for number, peer in enumerate(peers):
        peer.take_answers()
        await peer.put(heartbeat(f"assigned-{number}", ["assigned"], ["T"]))
    await filled(addresses, "T", 1)
    body = {"topic": "T", "consumerGroup": "assigned", "clientId": "assigned-7", "strategyName": "AVG"}
    body["messageModel"] = "CLUSTERING"
    await storm(addresses.broker, itertools.repeat(request(Code.QUERY_ASSIGNMENT, json.dumps(body).encode())))
