"""Nobody acts for another account: client ids, check-backs, ends of transactions, replies, given-up messages.

A client id, a producer group and a consumer group are what a client says by itself. With accounts, they do not make one
account another one.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.attack.guarded import ADMIN, DENIED, Guarded, signed
from tests.brokers import Cluster, Unconnected, properties_text, run, run_virtual
from tests.unit.broker.test_pop import POP, pop_fields

from rucola.broker.acl.senders import mark_of
from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.client.registrations import Registrations
from rucola.broker.shares import Shares
from rucola.broker.timer.time_step import TimeStep
from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC
from rucola.common.message import MessageExt
from rucola.common.message_const import KEYS, REPLY_TO_CLIENT, SENDER
from rucola.common.recall_handle import RecallHandle
from rucola.errors import BrokerError
from rucola.formats.message import decode_message, decode_messages
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from rucola.testing.clock import ManualClock

ALICE = ("alice-account", "a-secret-that-alice-keeps")
MALLORY = ("mallory-account", "a-secret-that-mallory-keeps")
READER = ("reader-account", "a-secret-that-reader-keeps")
STRANGER = ("stranger-account", "a-secret-that-stranger-keeps")
BODY = b"pay 100 EUR" * 20


def accounts(*left_out: tuple[str, str]) -> str:
    rules = {
        ALICE: ("Pay=PUB, Shared=PUB", "GA=SUB"),
        MALLORY: (f"Shared=PUB, Own=PUB|SUB, {TRANS_CHECK_MAX_TIME_TOPIC}=PUB|SUB", "GM=SUB"),
        READER: ("Shared=PUB|SUB", "GR=SUB"),
        STRANGER: ("Own=PUB, DefaultCluster_REPLY_TOPIC=PUB", ""),
    }
    lines = [f"  - {{accessKey: {ADMIN[0]}, secretKey: {ADMIN[1]}, admin: true}}"]
    for (name, secret), (topics, groups) in rules.items():
        if (name, secret) not in left_out:
            perms = f"topicPerms: [{topics}], groupPerms: [{groups}]"
            lines.append(f"  - {{accessKey: {name}, secretKey: {secret}, {perms}}}")
    return "accounts:\n" + "\n".join(lines) + "\n"


RULES = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 3_600_000}


class Actor:
    """One client: its account, its connection, and the check-backs and replies that it got."""

    def __init__(self, address: str, account: tuple[str, str] | None, client_id: str) -> None:
        self.account, self.client_id = account, client_id
        self._address = address
        self.client = RemotingClient()
        self.questions: list[RemotingCommand] = []
        self.replies: list[bytes] = []
        self.client.register_processor(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        self.client.register_processor(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._answered)

    def _asked(self, _address: str, command: RemotingCommand) -> None:
        command.body = bytes(command.body)
        self.questions.append(command)

    def _answered(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        self.replies.append(bytes(command.body))
        return command.answer(ResponseCode.SUCCESS)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        command = command if self.account is None else signed(command, self.account)
        return await self.client.invoke(self._address, command, 10_000)

    async def beat(self, group: str = "pg") -> int:
        body = {"clientID": self.client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
        return (await self.ask(RemotingCommand(RequestCode.HEART_BEAT, body=orjson.dumps(body)))).code

    async def send(self, topic: str, key: str, body: bytes = BODY, sys_flag: int = 4, **properties: str) -> int:
        text = properties_text(UNIQ_KEY=key, TRAN_MSG="true", PGROUP="pg", **{KEYS: f"key-of-{key}"}, **properties)
        return (await self.ask(half(topic, text, body, sys_flag))).code

    async def end(self, topic: str, place: tuple[int, int], key: str, outcome: int = 8) -> RemotingCommand:
        fields = {"producerGroup": "pg", "tranStateTableOffset": str(place[0]), "commitLogOffset": str(place[1])}
        fields |= {"commitOrRollback": str(outcome), "fromTransactionCheck": "true", "msgId": key}
        return await self.ask(RemotingCommand(37, ext_fields={**fields, "transactionId": key, "topic": topic}))

    async def heard(self) -> None:
        """Returns when everything that the broker has sent so far has arrived."""
        await self.ask(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "Own", "queueId": "0"}))

    def bodies(self) -> list[bytes]:
        """The questions so far, as messages; forgets them."""
        asked, self.questions = self.questions, []
        return [decode_message(question.body).body for question in asked]


def half(topic: str, properties: str, body: bytes = BODY, sys_flag: int = 4) -> RemotingCommand:
    header = SendMessageRequestHeaderV2("pg", topic, "TBW102", 1, 0, sys_flag, 1_700_000_000_000, 0, properties)
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=header.to_ext_fields(), body=body)


@asynccontextmanager
async def guarded(folder: Path, text: str = "", **options: Any) -> AsyncIterator[Any]:
    """A broker with accounts, and a function that makes actors."""
    async with Guarded(folder, text or accounts(), **RULES, **options) as cluster:
        await cluster.made("Pay", "Shared", "Own")
        actors: list[Actor] = []

        def actor(account: tuple[str, str], client_id: str = "") -> Actor:
            actors.append(Actor(cluster.broker.address, account, client_id or account[0]))
            return actors[-1]

        cluster.actor = actor
        try:
            yield cluster
        finally:
            for it in actors:
                await it.client.close()


async def round_of(cluster: Any, *actors: Actor) -> None:
    """One round of checks, of which the actors then have got their part."""
    await asyncio.sleep(0.002)  # a message is old when it is older than 0 ms
    cluster.broker.store.dispatch()
    await cluster.broker.running.transaction_checks.catch_up()
    for actor in actors:
        await actor.heard()


def pending(cluster: Any) -> dict[str, Any]:
    cluster.broker.store.dispatch()
    cluster.broker.services.halves.scan()
    return {half.identity[0]: half for half in cluster.broker.services.halves.pending.values()}


def test_a_check_back_goes_to_the_account_that_sent_also_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            alice, mallory, reader = (cluster.actor(it) for it in (ALICE, MALLORY, READER))
            assert [await alice.send(topic, topic) for topic in ("Pay", "Shared")] == [0, 0]
            assert (await mallory.beat(), await reader.beat()) == (0, 0)
            await round_of(cluster, mallory, reader)
            assert (mallory.questions, reader.questions) == ([], []), "strangers of the group are not asked"
            assert {it.checks for it in pending(cluster).values()} == {0}, "and no check counts meanwhile"
        async with guarded(tmp_path) as cluster:
            alice, mallory, reader = (cluster.actor(it) for it in (ALICE, MALLORY, READER))
            for actor in (mallory, reader, alice):
                assert await actor.beat() == 0
            for _ in range(4):
                await round_of(cluster, mallory, reader, alice)
            messages = [decode_message(question.body) for question in alice.questions]
            assert (mallory.questions, reader.questions, len(messages)) == ([], [], 8)
            assert {(it.topic, it.body) for it in messages} == {("Pay", BODY), ("Shared", BODY)}
            assert not any(SENDER in it.properties for it in messages), "the mark is the broker's alone"
            assert {it.sender for it in pending(cluster).values()} == {mark_of(ALICE[0])}

    run(body())


def test_accounts_that_only_publish_decide_without_the_body_if_the_sender_is_unknown(tmp_path: Path) -> None:
    """Half messages of a store from before the accounts, or from another broker, have no mark."""

    async def body() -> None:
        packed = zlib.compress(BODY)
        async with Cluster(tmp_path / "store", **RULES) as cluster:
            sender = Actor(cluster.broker.address, None, "old")
            assert await sender.send("Shared", "packed", packed, 5, color="red") == 0
            await sender.client.close()
        async with guarded(tmp_path) as cluster:
            mallory, reader, stranger = (cluster.actor(it) for it in (MALLORY, READER, STRANGER))
            assert await stranger.beat() == 0
            await round_of(cluster, stranger)
            assert not stranger.questions and pending(cluster)["packed"].checks == 0
            assert await mallory.beat() == 0
            await round_of(cluster, mallory)
            [question] = mallory.questions
            message: MessageExt = decode_message(question.body)
            assert (message.body, message.sys_flag & 1, message.topic) == (b"", 0, "Shared")
            assert (message.uniq_key, message.keys, message.properties["color"]) == ("packed", "key-of-packed", "red")
            assert question.ext_fields["msgId"] == "packed" and packed not in question.body
            mallory.questions.clear()
            assert await reader.beat() == 0
            for _ in range(4):
                await round_of(cluster, mallory, reader, stranger)
            assert set(mallory.bodies()) == {b""}, "and is not asked less often for it"
            assert set(reader.bodies()) == {BODY} and not stranger.questions
            place = pending(cluster)["packed"]
            refused = await stranger.end("Shared", (place.queue_offset, place.physical_offset), "packed")
            assert refused.code == DENIED
            assert (await mallory.end("Shared", (place.queue_offset, place.physical_offset), "packed")).code == 0
            cluster.broker.store.dispatch()
            pulled = await reader.ask(cluster.pull_command("Shared", group="GR"))
            [committed] = decode_messages(pulled.body)
            assert committed.body == BODY and SENDER not in committed.properties

    run(body())


def test_the_transactions_of_a_removed_account_go_to_those_who_publish(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            assert await cluster.actor(ALICE).send("Shared", "left") == 0
        disabled = accounts().replace(f"secretKey: {ALICE[1]},", f"secretKey: {ALICE[1]}, disabled: true,")
        for text in (accounts(ALICE), disabled):
            async with guarded(tmp_path, text) as cluster:
                reader = cluster.actor(READER)
                assert await reader.beat() == 0
                await round_of(cluster, reader)
                assert reader.bodies() == [BODY]

    run(body())


def test_s44_only_its_account_ends_a_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            alice, mallory, reader, admin = (cluster.actor(it) for it in (ALICE, MALLORY, READER, ADMIN))
            for key in ("committed", "rolled back", "by admin"):
                assert await alice.send("Shared", key) == 0
            place = {key: (it.queue_offset, it.physical_offset) for key, it in pending(cluster).items()}
            for other in (mallory, reader):
                for outcome in (8, 12):
                    refused = await other.end("Shared", place["committed"], "committed", outcome)
                    assert (refused.code, "another account" in refused.remark) == (DENIED, True)
            assert len(pending(cluster)) == 3
            assert (await alice.end("Shared", place["committed"], "committed")).code == 0
            assert (await reader.end("Shared", place["committed"], "committed")).code == DENIED, "nor when it has ended"
            assert (await alice.end("Shared", place["rolled back"], "rolled back", 12)).code == 0
            assert (await admin.end("Shared", place["by admin"], "by admin", 12)).code == 0
            cluster.broker.store.dispatch()
            [message] = decode_messages((await reader.ask(cluster.pull_command("Shared", group="GR"))).body)
            assert message.uniq_key == "committed" and SENDER not in message.properties

    run(body())


def test_a_mark_is_not_taken_from_a_client_and_each_request_has_its_own(tmp_path: Path) -> None:
    """One connection may carry requests of several accounts, even in one segment."""

    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            connection = await cluster.connect()
            senders = [MALLORY, ALICE, ALICE, MALLORY, READER, ALICE]
            for number, account in enumerate(senders):
                forged = {SENDER: mark_of("forged")}
                text = properties_text(UNIQ_KEY=f"U{number}", TRAN_MSG="true", PGROUP="pg", **forged)
                connection.send(signed(half("Shared", text), account), number)
            assert [(await connection.receive()).code for _ in senders] == [0] * len(senders)
            connection.close()
            found = {key: it.sender for key, it in pending(cluster).items()}
            assert found == {f"U{number}": mark_of(account[0]) for number, account in enumerate(senders)}
            assert len({mark_of(it[0]) for it in senders}) == 3

    run(body())


def test_without_accounts_a_mark_is_dropped_and_everybody_is_asked(tmp_path: Path) -> None:
    async def body() -> None:
        async with Cluster(tmp_path, **RULES) as cluster:
            one, two = (Actor(cluster.broker.address, None, name) for name in "12")
            assert await one.send("Shared", "U", **{SENDER: mark_of("forged")}) == 0
            assert await two.beat() == 0
            await round_of(cluster, two)
            assert two.bodies() == [BODY]
            place = pending(cluster)["U"]
            assert place.sender == ""
            assert (await two.end("Shared", (place.queue_offset, place.physical_offset), "U")).code == 0
            for actor in (one, two):
                await actor.client.close()

    run(body())


def reply(text: bytes, topic: str = "DefaultCluster_REPLY_TOPIC", v1: bool = False) -> RemotingCommand:
    """A reply to client ``asker``."""
    properties = properties_text(UNIQ_KEY="R", **{REPLY_TO_CLIENT: "asker"})
    header = (SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2)(
        "g", topic, "TBW102", 1, 0, 0, 1, 0, properties
    )
    code = RequestCode.SEND_REPLY_MESSAGE if v1 else RequestCode.SEND_REPLY_MESSAGE_V2
    return RemotingCommand(code, ext_fields=header.to_ext_fields(), body=text)


def test_permission_for_a_topic_is_no_permission_to_reply(tmp_path: Path) -> None:
    """A reply reaches a client of any account, so only who may publish to the topic of replies may send one."""

    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            alice, mallory, server = cluster.actor(ALICE, "asker"), cluster.actor(MALLORY), cluster.actor(STRANGER)
            assert await alice.beat() == 0
            for v1 in (False, True):
                for topic in ("Own", "Shared", "DefaultCluster_REPLY_TOPIC"):
                    assert (await mallory.ask(reply(b"forged", topic, v1))).code == DENIED
                assert (await server.ask(reply(b"forged", "Own", v1))).code == DENIED
                assert (await server.ask(reply(b"%d" % v1, v1=v1))).code == 0
            assert alice.replies == [b"0", b"1"]

    run(body())


def consumer_beat(group: str, client_id: str) -> RemotingCommand:
    consumer = {"groupName": group, "subscriptionDataSet": []}
    beat = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
    return RemotingCommand(34, body=orjson.dumps(beat))


def test_a_guessed_client_id_neither_keeps_its_client_away_nor_gets_its_replies(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path, auto_create_subscription_group=True) as cluster:
            alice, newer = cluster.actor(ALICE, "asker"), cluster.actor(ALICE, "asker")
            thief, server = cluster.actor(MALLORY, "asker"), cluster.actor(STRANGER)
            for actor, group in ((thief, "GM"), (alice, "GA")):
                assert (await actor.ask(consumer_beat(group, "asker"))).code == 0
            assert await alice.beat() == 0
            assert (await server.ask(reply(b"1"))).code == 0
            assert await newer.beat() == 0, "within the account the newest connection wins"
            assert (await server.ask(reply(b"2"))).code == 0
            assert await thief.beat() == 0
            assert "channel of <asker> not found" in (await server.ask(reply(b"3"))).remark, "nobody knows whose it is"
            assert (alice.replies, newer.replies, thief.replies) == ([b"1"], [b"2"], [])
            await thief.client.close()
            while (await server.ask(reply(b"4"))).code:
                await asyncio.sleep(0.01)
            assert newer.replies == [b"2", b"4"]
            await newer.client.close()

    run(body())


def test_within_a_consumer_group_a_client_id_belongs_to_its_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Locks and requests of the broker reach a consumer by its group and id."""

    async def body() -> None:
        text = accounts().replace("groupPerms: [GM=SUB]", "groupPerms: [GM=SUB, GR=SUB]")
        async with guarded(tmp_path, text, auto_create_subscription_group=True) as cluster:
            reader, other = cluster.actor(READER, "id"), cluster.actor(MALLORY, "id")
            assert (await reader.ask(consumer_beat("GR", "id"))).code == 0
            assert (await other.ask(consumer_beat("GR", "id"))).code == DENIED
            assert "another account uses this client id" in caplog.text
            assert (await other.ask(consumer_beat("GR", "other"))).code == 0
            assert (await other.ask(consumer_beat("GR", "id"))).code == DENIED
            await reader.client.close()
            while (await other.ask(consumer_beat("GR", "id"))).code:
                await asyncio.sleep(0.01)
            reader.account = MALLORY
            other.account = READER
            assert (await other.ask(consumer_beat("GR", "id"))).code == DENIED, "nor on the same connection"

    run(body())


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.GET_MAX_OFFSET])
def test_given_up_messages_are_for_administrators_whatever_the_rules(tmp_path: Path, code: int) -> None:
    async def body() -> None:
        async with guarded(tmp_path, transaction_check_max=1) as cluster:
            assert await cluster.actor(ALICE).send("Pay", "given-up") == 0
            alice = cluster.actor(ALICE)
            await alice.beat()
            for _ in range(2):
                await round_of(cluster, alice)
            cluster.broker.store.dispatch()
            command = cluster.pull_command(TRANS_CHECK_MAX_TIME_TOPIC, group="GM")
            command.code = code
            command.ext_fields |= {"key": "given-up", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9" * 15}
            assert (await cluster.actor(MALLORY).ask(command)).code == DENIED
            assert (await cluster.actor(ADMIN).ask(command)).code == 0
            offset = str(cluster.broker.store.queue_unit(TRANS_CHECK_MAX_TIME_TOPIC.encode(), 0, 0)[0])
            view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": offset, "topic": "Own"})
            assert (await cluster.actor(MALLORY).ask(view)).code == DENIED
            assert (await cluster.actor(ADMIN).ask(view)).code == 0

    run(body())


def test_a_position_does_not_tell_whether_there_is_a_message(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            assert await cluster.actor(ALICE).send("Pay", "U") == 0
            stranger = cluster.actor(STRANGER)
            for code, field in ((33, "offset"), (37, "commitLogOffset"), (36, "offset")):
                answers = set()
                for offset in ("0", "1", "99999999", "-1", "x", ""):
                    fields = {field: offset, "group": "none", "topic": "Own", "producerGroup": "pg"}
                    if code == 36:
                        fields["group"] = ""
                    answer = await stranger.ask(RemotingCommand(code, ext_fields=fields))
                    answers.add((answer.code, answer.remark))
                assert len(answers) == 1, answers

    run(body())


def test_one_account_does_not_take_the_registrations_of_others(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path) as cluster:
            registrations = cluster.broker.services.registrations
            assert isinstance(registrations, Registrations)
            registrations._shares = Shares(8, 6, 2)
            mallory, alice, reader = (cluster.actor(it) for it in (MALLORY, ALICE, READER))
            groups = [{"groupName": f"g{number}"} for number in range(20)]
            body = {"clientID": "m", "producerDataSet": groups, "consumerDataSet": []}
            answer = await mallory.ask(RemotingCommand(34, body=orjson.dumps(body)))
            assert (answer.code, registrations.count) == (ResponseCode.SYSTEM_BUSY, 6)
            for actor in (alice, reader):
                assert [await actor.beat(group) for group in ("1", "2")] == [0, 0]
            assert await alice.beat("3") == ResponseCode.SYSTEM_BUSY
            assert await alice.beat("2") == 0, "who is registered stays"
            await mallory.client.close()
            while registrations.count > 4:
                await asyncio.sleep(0.01)
            assert await alice.beat("3") == 0

    run(body())


def test_registrations_count_what_is_there() -> None:
    """A heartbeat under another id replaces the registration, and every end of one gives the room back."""
    registrations = Registrations(shares=Shares(3, 3, 0))
    producers, consumers = ProducerManager(registrations), ConsumerManager(registrations)
    channel: Any = Unconnected()

    def client(client_id: str, account: str = "a") -> ClientChannel:
        return ClientChannel(channel, client_id, "JAVA", 0, 0.0, account)

    for _ in range(5):
        for client_id in ("one", "two"):
            producers.register("g", client(client_id))
            consumers.register(client(client_id), "g", "", "", "", None)
            assert registrations.count == 2
            registrations.check(
                "g", "two" if client_id == "one" else "one", "b"
            )  # only an id in use belongs to somebody
    consumers.unregister("g", channel)
    consumers.unregister("g", channel)
    assert registrations.count == 1
    consumers.register(client("two"), "g", "", "", "", None)
    consumers.channel_closed(channel)
    producers.channel_closed(channel)
    assert (registrations.count, registrations._ids) == (0, {})
    for number in range(3):
        producers.register(f"g{number}", client("one"))
    with pytest.raises(BrokerError) as refused:
        producers.register("g3", client("one"))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY and len(producers.groups()) == 3


def test_locks_go_back_to_the_share_they_came_from() -> None:
    clock = ManualClock()
    locks = RebalanceLockManager(clock.monotonic, Shares(100, 2, 1))
    assert locks.try_lock("g", [1, 2, 3], "a", "first") == [1, 2]
    assert locks.try_lock("g", [1, 2], "a", "second") == [1, 2], "renewed, and still counted for the first account"
    assert locks.try_lock("g", [3, 4, 5], "a", "second") == [3, 4]
    locks.unlock("g", [1, 2, 3, 4], "a")
    assert locks.try_lock("h", [1, 2, 3], "a") == [1, 2] and locks.try_lock("i", [1], "a") == [1], "by group"
    assert locks.try_lock("g", [1, 2, 3], "a", "first") == [1, 2]


def reading(code: int, group: str) -> RemotingCommand:
    """A request that waits for a message of Shared."""
    fields = {"consumerGroup": group, "topic": "Shared", "queueId": "0", "maxMsgNums": "32"}
    if code == RequestCode.PULL_MESSAGE:
        fields |= {"queueOffset": "1", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(2**40)}
        fields |= {"subVersion": "0", "subscription": "*"}
    else:
        born = str(time.time_ns() // 1_000_000)
        fields |= {"invisibleTime": "60000", "pollTime": str(2**40), "bornTime": born, "initMode": "0"}
    return RemotingCommand(code, ext_fields=fields)


SECRET = f"secretKey: {READER[1]},"
CHANGES = {
    "nothing": lambda text: text.replace("Own=PUB|SUB", "Own=PUB"),
    "topic": lambda text: text.replace("Shared=PUB|SUB", "Shared=PUB"),
    "group": lambda text: text.replace("groupPerms: [GR=SUB]", "groupPerms: []"),
    "secret": lambda text: text.replace(SECRET, "secretKey: another-secret-of-the-reader,"),
    "disabled": lambda text: text.replace(SECRET, f"{SECRET} disabled: true,"),
    "address": lambda text: text.replace(SECRET, f"{SECRET} whiteRemoteAddress: 10.9.9.9,"),
    "account": lambda text: accounts(READER),
}


@pytest.mark.few
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
@pytest.mark.parametrize("change", CHANGES)
def test_a_request_that_waits_reads_nothing_after_its_rights_have_ended(tmp_path: Path, code: int, change: str) -> None:
    async def body() -> None:
        async with guarded(tmp_path, auto_create_subscription_group=True) as cluster:
            alice, reader = cluster.actor(ALICE), cluster.actor(READER)
            plain = half("Shared", properties_text(UNIQ_KEY="U"), b"before", 0)
            assert (await alice.ask(plain)).code == 0
            if code != RequestCode.PULL_MESSAGE:
                assert (await reader.ask(reading(RequestCode.POP_MESSAGE, "GR"))).code == 0
            waiting = asyncio.create_task(reader.ask(reading(code, "GR")))
            services = cluster.broker.services
            while not (len(cluster.broker.running.hold) or services.pops.waiting):
                await asyncio.sleep(0.01)
            cluster.accounts_file.write_text(CHANGES[change](accounts()))
            before = cluster.access.snapshot()
            while cluster.access.snapshot() is before:
                await cluster.access.reload()
            assert (await alice.ask(half("Shared", properties_text(UNIQ_KEY="V"), b"after", 0))).code == 0
            answer = await waiting
            if change == "nothing":
                assert answer.code == 0 and (answer.ext_fields.get("hasMsg") == "true" or b"after" in answer.body)
            else:
                assert (answer.code, answer.body) == (DENIED, b"")

    run(body())


def test_a_member_whose_rights_end_leaves_its_groups_and_comes_back_with_them(tmp_path: Path) -> None:
    async def body() -> None:
        text = accounts().replace("groupPerms: [GM=SUB]", "groupPerms: [GM=SUB, GR=SUB]")
        async with guarded(tmp_path, text, auto_create_subscription_group=True) as cluster:
            reader, other = cluster.actor(READER), cluster.actor(MALLORY)
            assert (await other.ask(consumer_beat("GM", "in GM"))).code == 0
            for actor in (reader, other):
                assert (await actor.ask(consumer_beat("GR", actor.client_id))).code == 0
            consumers = cluster.broker.services.consumers

            async def members_become(*ids: str) -> None:
                while consumers.group("GR").client_ids() != list(ids):
                    await asyncio.sleep(0.01)

            cluster.accounts_file.write_text(accounts())
            await members_become(READER[0])
            assert consumers.group("GM").client_ids() == ["in GM"]
            cluster.accounts_file.write_text(text)
            while (await other.ask(consumer_beat("GR", MALLORY[0]))).code:
                await asyncio.sleep(0.01)
            await members_become(READER[0], MALLORY[0])

    run_virtual(body())


def recall(topic: str, key: str, due_ms: int) -> RemotingCommand:
    handle = RecallHandle(topic, "broker-a", due_ms, key).encode()
    return RemotingCommand(370, ext_fields={"producerGroup": "pg", "topic": topic, "recallHandle": handle})


def test_a_timed_message_is_recalled_by_its_account_or_an_administrator(tmp_path: Path) -> None:
    async def body() -> None:
        async with guarded(tmp_path, recall_message_enable=True) as cluster:
            alice, mallory, reader, admin = (cluster.actor(it) for it in (ALICE, MALLORY, READER, ADMIN))
            due_ms = (cluster.broker.services.clock.wall_ms() // 1000 + 4) * 1000 + 500
            due = {"TIMER_DELIVER_MS": str(due_ms)}

            async def timed(actor: Actor, key: str, **more: str) -> int:
                text = properties_text(UNIQ_KEY=key, **due, **more)
                return (await actor.ask(half("Shared", text, key.encode(), 0))).code

            for key in ("handle", "sent", "own", "admins"):
                assert await timed(alice, key) == 0
            assert await alice.send("Shared", "half", b"half", **due) == 0
            [place] = pending(cluster).values()
            assert (await alice.end("Shared", (place.queue_offset, place.physical_offset), "half")).code == 0
            assert await timed(mallory, "handle") == 0, "with alice's key, so both have the same handle"
            for key in ("handle", "half"):
                assert (await mallory.ask(recall("Shared", key, due_ms))).code == 0, "nobody learns what waits"
            assert await timed(mallory, "recall", TIMER_DEL_UNIQKEY="Shared+sent") == 0
            assert (await alice.ask(recall("Shared", "own", due_ms))).code == 0
            assert (await admin.ask(recall("Shared", "admins", due_ms))).code == 0
            found: list[MessageExt] = []
            while len(found) < 3 or cluster.broker.services.clock.wall_ms() < due_ms + 2500:
                await asyncio.sleep(0.1)
                found = decode_messages((await reader.ask(cluster.pull_command("Shared", group="GR"))).body)
            assert sorted(message.body for message in found) == [b"half", b"handle", b"sent"]
            assert not any(SENDER in message.properties for message in found)

    run_virtual(body())


@pytest.mark.parametrize(
    ("recalled_by", "sent_by", "recall_of"),
    [
        ("a", "a", "a"),
        ("a", "b", None),
        ("", "b", ""),
        ("a", "", "a"),
        ("a b", "b", "b"),
        (" a", "a", "a"),
        (" a", "c", ""),
    ],
)
def test_which_recall_counts(recalled_by: str, sent_by: str, recall_of: str | None) -> None:
    """Before there were accounts, and by administrators, messages are recalled without a mark."""
    step = TimeStep(0, 0, array("q"))
    step.withdrawn["T+K"] = dict.fromkeys(recalled_by.split(" "), "T")
    assert step.recalled_by("T+K", sent_by) == (None if recall_of is None else ("T+K", recall_of))
    assert step.recalled_by("T+other", sent_by) is None


# -- waiting pops ------------------------------------------------------------------------------------------------------


def test_another_account_does_not_end_a_waiting_pop_by_its_attempt_id(tmp_path: Path) -> None:
    """It may read the topic in the same group, knows the attempt id, and names the other's client id as its own."""
    text = accounts().replace("Shared=PUB", "Shared=PUB|SUB").replace("groupPerms: [", "groupPerms: [G=SUB, ")

    async def play() -> None:
        async with guarded(tmp_path, text.replace(", ]", "]")) as cluster:

            async def member(account: tuple[str, str]) -> tuple[Actor, int]:
                """One more connection, and how the broker has taken its client id."""
                actor: Actor = cluster.actor(account, "consumer")
                consumer = {"groupName": "G", "subscriptionDataSet": []}
                body = orjson.dumps({"clientID": "consumer", "consumerDataSet": [consumer]})
                return actor, (await actor.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body))).code

            async def polls(actor: Actor, waiting: int) -> asyncio.Task[RemotingCommand]:
                """Begins a pop, after which so many wait."""
                fields = pop_fields(consumerGroup="G", topic="Shared", pollTime=9000, attemptId="known")
                task = asyncio.create_task(actor.ask(RemotingCommand(POP, ext_fields=fields)))
                await actor.heard()
                async with asyncio.timeout(10):
                    while len(cluster.broker.services.pops.get().hold) != waiting:
                        await asyncio.sleep(0.01)
                return task

            reader, taken = await member(ALICE)
            held = await polls(reader, 1)
            thief, refused = await member(MALLORY)
            assert (taken, refused) == (0, DENIED)
            first = await polls(thief, 2)
            second = await polls(cluster.actor(MALLORY), 2)
            assert (await first).code == ResponseCode.POLLING_TIMEOUT, "it may end its own"
            assert (held.done(), second.done()) == (False, False)
            moved, taken = await member(ALICE)
            third = await polls(moved, 2)
            assert (await held).code == ResponseCode.POLLING_TIMEOUT, "and hides none"
            assert (taken, second.done(), third.done()) == (0, False, False)

    run(play())
