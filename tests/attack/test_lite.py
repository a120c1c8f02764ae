"""Attacks on lite topics: names, floods, sets, wars and lies. In each, somebody else is served on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ADMIN, ALICE, BOB, Guarded, signed
from tests.brokers import properties_text, run, run_virtual
from tests.unit.broker.lite.lite_cluster import (
    ACK,
    CHANGE,
    GROUP,
    NOTIFY,
    PARENT,
    POLLING_FULL,
    POLLING_TIMEOUT,
    POP_LITE,
    SUBSCRIBE,
    SUCCESS,
    LiteCluster,
    bodies,
    counts,
    receipt_fields,
)

from rucola.broker.lite import pop as lite_pop
from rucola.broker.lite.attributes import BIND_TOPIC
from rucola.common.lite_topics import LITE_ENTRIES_MAX
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.protocol import fastjson
from rucola.protocol.body_limits import body_bytes_max
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.runtime.clock import SystemClock

OTHERS = "others"
BAD_NAMES = [
    "../../../etc/passwd",
    "/",
    "a/b",
    "\0",
    "a\nb",
    "\x1b[2J",
    "a$b",
    "",
    " ",
    "é",
    "n" * 65,
    "n" * 65_000,
]
LIES = [-1, 2**31, 2**63 - 1, 2**63, 2**80]


class LiteGuarded(Guarded):
    """A broker with accounts: Alice attacks in ``GA`` and parent ``A``, Bob reads ``B`` in ``GB``, or both the same."""

    def __init__(self, folder: Path, **broker: Any) -> None:
        super().__init__(folder, stores={"enable_lmq": True, "enable_multi_dispatch": True}, **broker)

    async def __aenter__(self) -> LiteGuarded:
        await super().__aenter__()
        for topic, group in (("A", "GA"), ("B", "GB")):
            self.broker.topics.update_all([TopicConfig(topic, 4, 4, attributes={MESSAGE_TYPE: "LITE"})])
            self.broker.groups.update(SubscriptionGroupConfig(group, attributes={BIND_TOPIC: topic}))
        return self

    async def send_lite(self, account: tuple[str, str], topic: str, lite: str, body: bytes = b"x") -> int:
        text = properties_text(UNIQ_KEY="U", __LITE_TOPIC=lite)
        header = SendMessageRequestHeaderV2("pg", topic, "TBW102", 4, 0, 0, 1, 0, text)
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=header.to_ext_fields(), body=body)
        return await self.code(account, command)


def entries(*lites: str, count: int = 1, **more: Any) -> bytes:
    entry = {"action": "PARTIAL_ADD", "clientId": "c", "group": GROUP, "topic": PARENT, "liteTopicSet": lites} | more
    return fastjson.dumps({"subscriptionSet": [entry] * count})


@asynccontextmanager
async def served(cluster: LiteCluster) -> AsyncIterator[None]:
    """Another group reads what arrives, before and after the attack."""
    if cluster.broker.groups.table.get(OTHERS) is None:
        cluster.group(OTHERS)
    await cluster.add("theirs", client="theirs", group=OTHERS)
    for _ in range(2):
        cluster.put("theirs", "0")
        answer = await cluster.pop("theirs", 10_000, consumerGroup=OTHERS)
        assert bodies(answer) == ["0"]
        number = cluster.broker.store.max_queue_offset(f"%LMQ%${PARENT}$theirs".encode(), 0) - 1
        assert (await cluster.ack(answer, "theirs", number, consumerGroup=OTHERS)).code == SUCCESS
        if _ == 0:
            yield


async def longest_turn(work: Awaitable[Any]) -> float:
    """Processor time of the longest turn of the event loop while ``work`` is done, in seconds."""
    longest, done = 0.0, asyncio.ensure_future(work)
    while not done.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    await done
    return longest


def test_names_that_are_paths_or_endless_or_control_characters(tmp_path: Path) -> None:
    """A send is refused; a subscription reads nothing, and nothing on the disk has such a name."""

    async def work() -> None:
        async with LiteCluster(tmp_path / "store") as cluster, served(cluster):
            before = {path.name for path in tmp_path.rglob("*")}
            for name in BAD_NAMES:
                text = properties_text(UNIQ_KEY="U", __LITE_TOPIC=name[:32_000])
                header = SendMessageRequestHeaderV2("pg", PARENT, "TBW102", 4, 0, 0, 1, 0, text)
                answer = await cluster.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), b"x")
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL or name in ("", "\0"), (name[:20], answer.remark)
                assert len(answer.remark or "") < 1024
                code = (await cluster.subscribe("PARTIAL_ADD", name)).code
                assert code == SUCCESS if len(name) < 200 else code in (SUCCESS, ResponseCode.INVALID_PARAMETER)
            assert (await cluster.pop()).code == POLLING_TIMEOUT
            assert {path.name for path in tmp_path.rglob("*")} == before
            assert cluster.delivery.subscription_count < len(BAD_NAMES) + 2

    run_virtual(work())


def test_a_flood_of_new_names_of_one_account(tmp_path: Path) -> None:
    """The account is refused from its allowance on; its old names, and other accounts, are not."""

    async def work() -> None:
        async with LiteGuarded(tmp_path, new_lite_topics_per_account_max=50) as cluster:
            codes = [await cluster.send_lite(ALICE, "A", f"flood-{number}") for number in range(80)]
            assert codes == [0] * 50 + [ResponseCode.LMQ_QUOTA_EXCEEDED] * 30
            assert await cluster.send_lite(ALICE, "A", "flood-0") == 0
            assert [await cluster.send_lite(BOB, "B", f"mine-{number}") for number in range(3)] == [0, 0, 0]
            assert await cluster.send_lite(ALICE, "B", "mine-0") == ResponseCode.NO_PERMISSION
            lite = cluster.broker.store.lite
            assert lite is not None and lite.are_there(53) and not lite.are_there(54)

    run_virtual(work())


def test_subscriptions_that_never_poll(tmp_path: Path) -> None:
    """Whoever polls in the same group gets all messages within a minute."""

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster, served(cluster):
            names = [f"n{number}" for number in range(300)]
            for client in ("mute-1", "mute-2", "mute-3", "reader"):
                await cluster.add(*names, client=client)
            for name in names:
                cluster.put(name, name)
            began = asyncio.get_running_loop().time()
            found: set[str] = set()
            while len(found) < len(names):
                found.update(await cluster.take("reader", 10_000, invisibleTime=600_000))
                assert asyncio.get_running_loop().time() - began < 60
            assert found == set(names)

    run_virtual(work())


def test_a_war_of_two_clients_for_the_names_of_an_exclusive_group(tmp_path: Path) -> None:
    """Each notification follows from a request of the enemy, who is told no more often than it asks; a third group is
    served between the blows.
    """

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("war", sub_model="Exclusive", sub_reset_offset_exclusive="true")
            told: dict[str, int] = {"a": 0, "b": 0}

            def notified(_: str, command: RemotingCommand) -> None:
                told[NotifyUnsubscribeLiteRequestHeader.from_ext_fields(command.ext_fields).client_id] += 1

            cluster.client.processors[NOTIFY] = notified
            names = [f"n{number}" for number in range(20)]
            for name in names:
                cluster.put(name, "0")
            async with served(cluster):
                for _ in range(30):
                    for client in "ab":
                        await cluster.add(*names, client=client, group="war")
                        await cluster.subscribe(
                            "COMPLETE_ADD", *names, client="b" if client == "a" else "a", group="war"
                        )
                await asyncio.sleep(1)
            blows = 30 * 4 * len(names)
            assert 0 < sum(told.values()) <= blows
            assert cluster.delivery.subscription_count == len(names) * 2 + 1, "of the loser, what it has not noted"
            assert sorted(await cluster.take("b", consumerGroup="war")) == ["0"] * 20
            assert cluster.delivery.event_count <= len(names)

    run_virtual(work())


def test_lies_about_attempts_receipts_and_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster, served(cluster):
            cluster.put("one", "0", "1", "2")
            await cluster.add("one", client="c")
            await cluster.add("one", client="liar")
            first = await cluster.pop(maxMsgNum=1, attemptId="mine")
            assert bodies(first) == ["0"]
            assert await cluster.take("liar", attemptId="mine") == [], "an attempt id belongs to its client"
            answer = await cluster.pop("liar", attemptId="x" * 10_000)
            assert (answer.code, answer.remark) == (29, "an attempt id has at most 256 characters")
            for lie in LIES:
                wrong = [
                    await cluster.ack(first, "one", 0, offset=str(lie)),
                    await cluster.ack(first, "one", 0, extraInfo=f"0 {lie} 60000 999 0 broker-a 0 0"),
                    await cluster.change(first, "one", 0, offset=str(lie), invisibleTime="0"),
                    await cluster.change(first, "one", 0, extraInfo=f"0 {lie} 1 999 0 b 0 0", invisibleTime="0"),
                ]
                assert all(it.code < 100 or it.code == ResponseCode.NO_MESSAGE for it in wrong), lie
            for extra in ("", "0", "x " * 8, "0 " * 8, "0 1 60000 0 0 broker-a 0 0", "9" * 60_000):
                for code in (ACK, CHANGE):
                    fields = receipt_fields(first, "one", 0) | {"extraInfo": extra, "invisibleTime": "0"}
                    assert (await cluster.ask(code, fields)).code in (SUCCESS, 1, 29), extra[:20]
            assert await cluster.take("liar") == [], "the lease of the other has not ended"
            assert (await cluster.ack(first, "one", 0)).code == SUCCESS
            rest = await cluster.pop("liar", 60_000, invisibleTime=2**62)
            assert (bodies(rest), counts(rest)) == (["1", "2"], "0;0"), "no lie counted as a delivery"
            for value in LIES:
                for kind in ("POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"):
                    option: dict[str, Any] = {"offsetOption": {"type": kind, "value": str(value)}}
                    answer = await cluster.subscribe("PARTIAL_ADD", "one", client="liar", **option)
                    assert answer.code in (SUCCESS, 1, 29), (kind, value, answer.remark)
                    offsets = cluster.broker.services.lite_offsets
                    assert offsets is not None
                    assert 0 <= (offsets.query_topic(GROUP, f"%LMQ%${PARENT}$one") or 0) <= 3, (kind, value)

    run_virtual(work())


def test_one_group_does_not_take_all_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_LEASES_MAX": 20, "_LEASES_SHARE": 15, "_LEASES_KEPT": 3}.items():
        monkeypatch.setattr(lite_pop, name, value)

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster, served(cluster):
            cluster.group("third")
            names = [f"n{number:02}" for number in range(30)]
            for name in names:
                cluster.put(name, name)
            for group in (GROUP, "third"):
                await cluster.add(*names, group=group)
            forever: dict[str, Any] = {"maxMsgNum": 1, "invisibleTime": 2**40}
            codes = [(await cluster.pop(**forever)).code for _ in range(20)]
            assert codes == [SUCCESS] * 15 + [POLLING_FULL] * 5
            codes = [(await cluster.pop(consumerGroup="third", **forever)).code for _ in range(10)]
            assert codes == [SUCCESS] * 5 + [POLLING_FULL] * 5

    run_virtual(work())


def test_giant_sets_and_very_many_entries_take_short_turns(tmp_path: Path) -> None:
    """Bodies as long as they may be: 1 MiB. The least that a client needs is a set of 10,000 names of 64 characters."""

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster, served(cluster):
            cluster.group("war", sub_model="Exclusive")
            cluster.group("wide", client_quota="10000", sub_client_quota="10000")
            long_names = [f"{number:064d}" for number in range(10_000)]
            short_names = [f"{number:x}" for number in range(100_000)]
            limit = body_bytes_max(SUBSCRIBE)
            sent = [
                entries(*long_names, group="wide"),
                *(entries(*short_names, action=action) for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD")),
                entries(*short_names, action="COMPLETE_ADD", group="war"),
                entries(count=LITE_ENTRIES_MAX),
                entries(count=LITE_ENTRIES_MAX + 1),
                b'{"subscriptionSet":[' + b"{}," * (limit // 3 - 10) + b"{}]}",
            ]
            codes = []

            async def attack() -> None:
                for body in sent:
                    assert len(body) <= limit
                    codes.append((await cluster.ask(SUBSCRIBE, body=body)).code)

            longest = await longest_turn(attack())
            full = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            assert codes == [SUCCESS, full, SUCCESS, full, full, SUCCESS, 29, 29]
            assert longest < 0.25, "50 ms on a machine with nothing else to do"
            assert cluster.delivery.subscription_count == 10_000 + 1
            assert (await cluster.ask(SUBSCRIBE, body=b" " * (limit + 1))).code == 29

    run(work())


def test_accounts_do_not_take_each_others_subscriptions(tmp_path: Path) -> None:
    """With shares, one account's clients and names leave room for those of others; rights are asked for each entry, and
    a client id belongs to the account that brought it.
    """

    async def work() -> None:
        async with LiteGuarded(tmp_path, max_lite_subscription_count=100) as cluster:

            async def subscribe(account: tuple[str, str], *lites: str, **more: Any) -> int:
                return await cluster.code(account, RemotingCommand(SUBSCRIBE, body=entries(*lites, **more)))

            alice, bob = {"group": "GA", "topic": "A"}, {"group": "GB", "topic": "B"}
            full = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            many = [f"n{number}" for number in range(51)]
            assert await subscribe(ALICE, *many, **alice) == full
            assert await subscribe(ALICE, *many[:50], **alice) == SUCCESS
            assert await subscribe(ALICE, "more", clientId="d", **alice) == full
            assert await subscribe(BOB, *many[:40], **bob) == SUCCESS
            assert await subscribe(ALICE, *many, **bob) == ResponseCode.NO_PERMISSION
            body = fastjson.dumps({"subscriptionSet": [{}] * (LITE_ENTRIES_MAX + 1)})
            assert await cluster.code(ALICE, RemotingCommand(SUBSCRIBE, body=body)) == ResponseCode.NO_PERMISSION
            assert await subscribe(ADMIN, "n1", **bob) == ResponseCode.NO_PERMISSION, "another account has the client"
            assert await cluster.send_lite(BOB, "B", "n1", b"mine") == 0
            fields = {"clientId": "c", "consumerGroup": "GB", "topic": "B", "maxMsgNum": "1", "invisibleTime": "60000"}
            fields |= {"pollTime": "10000", "bornTime": str(SystemClock().wall_ms())}
            pop = RemotingCommand(POP_LITE, ext_fields=fields)
            assert await cluster.code(ALICE, RemotingCommand(POP_LITE, ext_fields=dict(fields))) == 16
            answer = await cluster.client.invoke(cluster.broker.address, signed(pop, BOB), 60_000)
            assert bodies(answer) == ["mine"]

    run_virtual(work())
