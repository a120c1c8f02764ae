"""Names of POP retry topics are ambiguous; their messages are not. ``%RETRY%g_a_t`` belongs to group g and topic a_t,
to group g_a and topic t, and to the push consumers of group g_a_t.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.attack.guarded import ADMIN, DENIED, Guarded
from tests.brokers import properties_text, run
from tests.unit.broker.test_pop import NOTIFICATION, POP, QUICK, pop_fields

from rucola.broker.retry_owner import is_for, popped_from
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import FIRST_POP_TIME, REAL_TOPIC
from rucola.formats.message import decode_messages, encode_message
from rucola.formats.properties import encode_properties
from rucola.protocol.command import RemotingCommand

DAVE = ("dave-account", "a-secret-that-dave-keeps")
CAROL = ("carol-account", "a-secret-that-carol-keeps")
ERIN = ("erin-account", "a-secret-that-erin-keeps")
RETRY = "%RETRY%g_a_t"
HOST = bytes([127, 0, 0, 1, 0, 0, 1, 1])
ACCOUNTS = f"""
accounts:
  - {{accessKey: {ADMIN[0]}, secretKey: {ADMIN[1]}, admin: true}}
  - {{accessKey: {DAVE[0]}, secretKey: {DAVE[1]}, topicPerms: [a_t=PUB|SUB], groupPerms: [g=SUB]}}
  - {{accessKey: {CAROL[0]}, secretKey: {CAROL[1]}, topicPerms: [t=PUB|SUB], groupPerms: [g_a=SUB]}}
  - {{accessKey: {ERIN[0]}, secretKey: {ERIN[1]}, topicPerms: [e=PUB|SUB], groupPerms: [g_a_t=SUB]}}
"""
PEEK, PULL, VIEW, QUERY, BACK, SEND = 200052, 11, 33, 12, 36, 310
EVERYTHING = {"beginTimestamp": "0", "endTimestamp": str(2**60)}


class Names(Guarded):
    """A broker where dave's message of topic a_t was popped and has become visible again in the retry topic."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ACCOUNTS, auto_create_subscription_group=True, **QUICK)

    async def ask(self, account: Any, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:  # type: ignore[override]
        texts = {name: str(value) for name, value in fields.items()}
        return await self.as_account(account, RemotingCommand(code, ext_fields=texts, body=body))

    async def publish(self, account: Any, topic: str, body: bytes, **properties: str) -> RemotingCommand:
        fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0}
        return await self.ask(account, SEND, body, i=properties_text(**properties), **fields)

    async def pop(self, account: Any, group: str, topic: str, **changes: Any) -> list[MessageExt]:
        fields = pop_fields(consumerGroup=group, topic=topic, **changes)
        return decode_messages((await self.ask(account, POP, **fields)).body)

    async def pull(self, account: Any, group: str, topic: str) -> RemotingCommand:
        fields = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "subVersion": 0}
        fields |= {"suspendTimeoutMillis": 0, "subscription": "*", "expressionType": "TAG"}  # type: ignore[dict-item]
        return await self.ask(account, PULL, consumerGroup=group, topic=topic, **fields)

    async def revived(self) -> None:
        await self.made("t", "a_t", "e")
        assert (await self.publish(DAVE, "a_t", b"of dave", KEYS="key-of-dave")).code == 0
        assert [m.body for m in await self.pop(DAVE, "g", "a_t", invisibleTime=100)] == [b"of dave"]
        while not self.broker.store.max_queue_offset(RETRY.encode(), 0):
            await asyncio.sleep(0.01)
        for account, group, topic in ((CAROL, "g_a", "t"), (ERIN, "g_a_t", "e")):  # makes the groups
            assert (await self.pull(account, group, topic)).code == 19


def test_another_group_whose_retry_topic_has_the_same_name_gets_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with Names(tmp_path) as names:
            await names.revived()
            peek = {"queueId": 0, "maxMsgNums": 32}
            assert (await names.ask(CAROL, PEEK, consumerGroup="g_a", topic="t", **peek)).body == b""
            assert await names.pop(CAROL, "g_a", "t") == []
            found = await names.ask(DAVE, PEEK, consumerGroup="g", topic="a_t", **peek)
            assert [m.body for m in decode_messages(found.body)] == [b"of dave"]
            asked = pop_fields(consumerGroup="g", topic="a_t")
            assert (await names.ask(DAVE, NOTIFICATION, **asked)).ext_fields["hasMsg"] == "true"
            again = await names.pop(DAVE, "g", "a_t")
            assert [(m.topic, m.body) for m in again] == [("a_t", b"of dave")]

    run(work())


def test_push_consumers_of_the_retry_topic_do_not_read_what_was_popped(tmp_path: Path) -> None:
    async def work() -> None:
        async with Names(tmp_path) as names:
            await names.revived()
            pulled = await names.pull(ERIN, "g_a_t", RETRY)
            assert (pulled.code, pulled.ext_fields["nextBeginOffset"], pulled.body) == (20, "1", b"")
            assert await names.pop(ERIN, "g_a_t", RETRY) == []
            wanted = {"topic": RETRY, "key": "key-of-dave", "maxNum": 9} | EVERYTHING
            assert (await names.ask(ERIN, QUERY, **wanted)).body == b""
            place = names.broker.store.queue_unit(RETRY.encode(), 0, 0)[0]
            assert (await names.ask(ERIN, VIEW, offset=place)).code == DENIED
            assert (await names.ask(DAVE, VIEW, offset=place)).code == 0
            back = {"group": "g_a_t", "offset": place, "delayLevel": 1, "originTopic": "e", "unitMode": "false"}
            assert (await names.ask(ERIN, BACK, **back)).code == DENIED

    run(work())


def test_pops_do_not_get_what_was_sent_to_the_retry_topic(tmp_path: Path) -> None:
    async def work() -> None:
        async with Names(tmp_path) as names:
            await names.revived()
            forged = {REAL_TOPIC: "a_t", FIRST_POP_TIME: "1"}
            assert (await names.publish(ERIN, RETRY, b"forged", **forged)).code == 0
            await names.publish(ERIN, "e", b"of erin")
            await names.pop(ERIN, "g_a_t", "e", invisibleTime=100)
            (copy,) = await names.pop(ERIN, "g_a_t", "e", pollTime=9_000)
            assert copy.properties[FIRST_POP_TIME]
            back = {"group": "g_a_t", "offset": copy.physical_offset, "delayLevel": 1, "originTopic": "e"}
            assert (await names.ask(ERIN, BACK, **back)).code == 0
            while names.broker.store.max_queue_offset(RETRY.encode(), 0) < 3:
                await asyncio.sleep(0.02)
            assert [m.body for m in await names.pop(DAVE, "g", "a_t")] == [b"of dave"]
            pulled = await names.pull(ERIN, "g_a_t", RETRY)
            assert [m.body for m in decode_messages(pulled.body)] == [b"forged", b"of erin"]

    run(work())


@pytest.mark.parametrize(
    ("properties", "origin"),
    [
        ({}, None),
        ({REAL_TOPIC: "a_t"}, None),
        ({FIRST_POP_TIME: "1", REAL_TOPIC: RETRY}, None),
        ({FIRST_POP_TIME: "1", REAL_TOPIC: "a_t"}, "a_t"),
        ({FIRST_POP_TIME: "1", REAL_TOPIC: "t"}, "t"),
        ({FIRST_POP_TIME: "1"}, ""),
        ({FIRST_POP_TIME: "1", REAL_TOPIC: "other"}, ""),
    ],
)
def test_the_origin_of_a_message(properties: dict[str, str], origin: str | None) -> None:
    """Copies by RocketMQ do not name the topic; they still come."""
    assert popped_from(cast(MessageExt, SimpleNamespace(topic=RETRY, properties=properties))) == origin
    text = encode_properties(properties)
    message = StoreMessage(RETRY.encode(), 0, b"body", text, 0, HOST, 0, 0, 0, 0, HOST)
    record = memoryview(encode_message(message, 0, 0, 0, HOST))
    assert is_for(record, RETRY) == (not origin)
    assert [is_for(record, topic) for topic in ("a_t", "t")] == [origin in ("", "a_t"), origin in ("", "t")]
