"""What a broker does with each property that only brokers set, in every kind of send, and with nonsense as its value.

The expected answers come from the table (``common.system_properties``). Afterwards the messages of others that waited
meanwhile are delivered, also after a restart.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.brokers import Cluster, properties_text, run_virtual

from rucola.broker.processor import send
from rucola.broker.property_gate import KEYS_MAX, admit, admitted_text
from rucola.common.columns import FrameColumn, SendTrait, new_table
from rucola.common.message_const import DELAYING
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.system_properties import SYSTEM_PROPERTIES, Sent
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.formats.message import BATCH_MEMBER_HEAD, decode_message, inspect_rows
from rucola.formats.properties import decode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.runtime.clock import SystemClock

ILLEGAL = 13
VALUES = {
    "empty": "",
    "5,000 digits": "1" * 5000,
    "negative": "-1",
    "other digits": "\u0661\u0662\u0663",
    "path": "../../x",
    "control": "\x1b[2J\x00\x01\r\n",
    "32 KiB": "x" * 32_760,
}
LIGHT = {"INNER_NUM", "INNER_BASE"}
WRITTEN = {("half", "TRAN_MSG"), ("half", "PGROUP"), ("half", "__transactionId__")}
"""What this way of sending sets itself."""


def member(properties: str) -> bytes:
    text = properties.encode()
    size = 22 + 4 + len(text)
    head = BATCH_MEMBER_HEAD.pack(size, 0, 0, 0, 4)
    return head + b"body" + len(text).to_bytes(2, "big") + text


def header(topic: str, properties: str, batch: bool = False, sys_flag: int = 0) -> dict[str, str]:
    now = SystemClock().wall_ms()
    made = SendMessageRequestHeaderV2("pg", topic, "TBW102", 1, 0, sys_flag, now, 0, properties, batch=batch)
    return made.to_ext_fields()


def single(properties: str, topic: str = "T") -> RemotingCommand:
    return RemotingCommand(310, ext_fields=header(topic, properties), body=b"body")


def batch(properties: str) -> RemotingCommand:
    body = member("UNIQ_KEY\x01first\x02") + member(properties)
    return RemotingCommand(320, ext_fields=header("T", "", batch=True), body=body)


def envelope(properties: str) -> RemotingCommand:
    return RemotingCommand(320, ext_fields=header("B", properties, batch=True), body=member("UNIQ_KEY\x01m\x02"))


def reply(properties: str) -> RemotingCommand:
    return RemotingCommand(325, ext_fields=header("T", properties), body=b"body")


WAYS: dict[str, Callable[[str], RemotingCommand]] = {
    "single": single,
    "retry": lambda properties: single(properties, "%RETRY%cg"),
    "batch": batch,
    "envelope": envelope,
    "reply": reply,
    "half": lambda properties: single(f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02{properties}"),
    "delayed": lambda properties: single(f"DELAY\x012\x02{properties}"),
    "timed": lambda properties: single(f"TIMER_DELIVER_MS\x01{SystemClock().wall_ms() + 2500}\x02{properties}"),
}


def expected(way: str, name: str, what: str) -> Sent:
    sent = SYSTEM_PROPERTIES[name].sent
    sent = Sent.REFUSED if sent is Sent.OWN_TOPIC else sent
    if what == "empty":
        return Sent.KEPT
    if name == "__LITE_TOPIC" and way not in ("retry", "reply"):
        return Sent.REFUSED  # no topic here is of type LITE
    if way == "envelope" and name in LIGHT:
        return Sent.DROPPED  # the broker writes them itself
    if what == "32 KiB":
        return sent if way in ("reply", "envelope") and sent is Sent.DROPPED else Sent.REFUSED
    if sent is Sent.KEPT and name in DELAYING - {"__STARTDELIVERTIME"} and way not in ("batch", "reply"):
        if way == "envelope" and name != "DELAY":
            return Sent.REFUSED
        delayed = way == "delayed" and name != "DELAY"  # a level takes precedence over times, which are removed
        return Sent.DROPPED if delayed else Sent.KEPT if what == "negative" else Sent.REFUSED
    return sent


async def others(cluster: Cluster, life: int) -> None:
    """Messages of topic U that wait: a delayed one, a timed one, a half message and a popped one."""
    due = SystemClock().wall_ms() + 1500
    for key, more in (
        ("delayed", {"DELAY": "1"}),
        ("timed", {"TIMER_DELIVER_MS": str(due)}),
        ("half", {"TRAN_MSG": "true", "PGROUP": "pg"}),
    ):
        text = properties_text(UNIQ_KEY=f"{key} {life}", **more)
        answer = await cluster.client.invoke(cluster.broker.address, single(text, "U"), 5000)
        assert answer.code == 0
    physical_offset = int(answer.ext_fields["msgId"][-16:], 16)
    end = {"producerGroup": "pg", "tranStateTableOffset": answer.ext_fields["queueOffset"], "transactionId": ""}
    end |= {"commitLogOffset": str(physical_offset), "commitOrRollback": "8", "fromTransactionCheck": "false"}
    assert (await cluster.ask(RequestCode.END_TRANSACTION, end)).code == 0
    text = properties_text(UNIQ_KEY=f"popped {life}")
    assert (await cluster.client.invoke(cluster.broker.address, single(text, "P"), 5000)).code == 0
    await asyncio.sleep(0.01)
    fields = {"consumerGroup": f"cg{life}", "topic": "P", "queueId": "0", "maxMsgNums": "32", "invisibleTime": "2000"}
    fields |= {"pollTime": "0", "bornTime": str(SystemClock().wall_ms()), "initMode": "0"}
    assert (await cluster.ask(200050, fields)).code == 0


async def delivered(cluster: Cluster, life: int) -> None:
    store, topic = cluster.broker.store, b"%%RETRY%%cg%d_P" % life
    wanted = {f"{kind} {life}" for kind in ("delayed", "timed", "half", "popped")}
    for _ in range(100):
        await asyncio.sleep(0.1)
        keys = {key(cluster, b"U", at) for at in range(store.max_queue_offset(b"U", 0))}
        keys |= {key(cluster, topic, at) for at in range(store.max_queue_offset(topic, 0))}
        if wanted <= keys:
            return
    raise AssertionError(f"not delivered: {wanted - keys}")


def key(cluster: Cluster, topic: bytes, queue_offset: int) -> str:
    record = cluster.broker.store.message_at(cluster.broker.store.queue_unit(topic, 0, queue_offset)[0])
    assert record is not None
    return decode_message(record, unpack=False).properties.get("UNIQ_KEY", "")


async def sent(cluster: Cluster, command: RemotingCommand, keys: set[str]) -> tuple[int, str, dict[str, str] | None]:
    """Code and remark of the answer, and the properties of the record with one of ``keys`` that was stored."""
    store = cluster.broker.store
    before = store.max_offset
    answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
    last: dict[str, str] | None = None
    while before < store.max_offset:
        record = store.message_at(before)
        if record is None:
            break
        properties = decode_message(record, unpack=False).properties
        last = properties if properties.get("UNIQ_KEY") in keys else last
        before += len(record)
    return answer.code, answer.remark or "", last


def test_every_property_every_way_every_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, revive_interval_ms=100) as cluster:
            topics, groups = cluster.broker.topics, cluster.broker.groups
            topics.update_all([TopicConfig(name, 1, 1, 6) for name in ("T", "U", "P")])
            topics.update(TopicConfig("B", 1, 1, 6, attributes={"queue.type": "BatchCQ"}))
            groups.update(SubscriptionGroupConfig("cg"))
            wrong = []
            await others(cluster, 1)
            for way, make in WAYS.items():
                for name in SYSTEM_PROPERTIES:
                    for what, value in VALUES.items():
                        unique_key = f"{way} {name} {what}"
                        text = f"UNIQ_KEY\x01{unique_key}\x02{name}\x01{value}\x02"
                        keys = {unique_key, value if name == "UNIQ_KEY" else ""}
                        code, remark, stored = await sent(cluster, make(text), keys)
                        want = expected(way, name, what)
                        if want is Sent.REFUSED and what == "32 KiB":
                            fine = stored is None and code != 0
                        elif want is Sent.REFUSED:
                            named = name in remark or (name in DELAYING and "delay" in remark)
                            fine = stored is None and code == ILLEGAL and named
                        else:
                            fine = stored is not None and (code == 0 or way == "reply")
                            if what != "empty" and (way, name) not in WRITTEN and stored is not None:
                                fine &= (stored.get(name) == value) is (want is Sent.KEPT)
                        if not fine:
                            wrong.append((way, name, what, want.value, code, remark[:80], stored and stored.get(name)))
            assert wrong == []
            await delivered(cluster, 1)
            await others(cluster, 2)
        async with Cluster(tmp_path, revive_interval_ms=100) as cluster:
            await delivered(cluster, 2)
            await others(cluster, 3)
            await delivered(cluster, 3)
            assert cluster.broker.store.stats.set_aside_messages == 0

    run_virtual(scene())
    assert "work failed" not in caplog.text
    assert "request failed" not in caplog.text


@pytest.mark.parametrize(
    ("value", "fits"),
    [("T+key", True), ("T+", True), ("T", False), ("U+key", False), ("T_+key", False), (" T+key", False)],
)
def test_a_recall_by_property_reaches_only_its_own_topic(value: str, fits: bool) -> None:
    properties = {"TIMER_DEL_UNIQKEY": value}
    if fits:
        admit(properties, "T")
        assert properties == {"TIMER_DEL_UNIQKEY": value}
    else:
        with pytest.raises(BrokerError, match=r"TIMER_DEL_UNIQKEY = .*; only T\+KEY is allowed here"):
            admit(properties, "T")


def test_a_received_message_can_be_forwarded_and_waits_no_second_time() -> None:
    received = {
        "TIMER_DELAY_SEC": "60",
        "TIMER_OUT_MS": "7",
        "REAL_TOPIC": "S",
        "POP_CK": "0 1",
        "a": "b",
        "DELAY": "3",
    }
    admit(received, "T")
    assert received == {"a": "b", "DELAY": "3"}


def test_the_refusal_shows_the_value_shortened_and_escaped() -> None:
    with pytest.raises(BrokerError) as caught:
        admit({"DUP_INFO": "\x1b[2J" + "x" * 9000}, "T")
    assert "DUP_INFO = '\\x1b[2Jxxxx" in caught.value.remark
    assert caught.value.remark.endswith("only brokers set it")
    assert len(caught.value.remark) < 250


def test_all_bytes_but_those_of_the_dropped_properties_stay() -> None:
    text = b"a\x01\xff\xfe\x02POP_CK\x01x\x02b\x01\x02c\x01d\x01e\x02POP_CK\x01y"
    assert admitted_text(text, "T") == b"a\x01\xff\xfe\x02b\x01\x02c\x01d\x01e"


def test_members_of_a_batch_keep_their_ids_and_bodies(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            texts = [
                "UNIQ_KEY\x01A\x02k\x01v\x02",
                "POP_CK\x01forged\x02UNIQ_KEY\x01B\x02",
                "CLUSTER\x01f\x02UNIQ_KEY\x01C",
            ]
            command = RemotingCommand(320, ext_fields=header("T", "", batch=True), body=b"".join(map(member, texts)))
            answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
            assert answer.code == 0
            assert await cluster.bodies("T") == [b"body"] * 3
            assert [key(cluster, b"T", at) for at in range(3)] == ["A", "B", "C"]
            found = await cluster.ask(
                RequestCode.QUERY_MESSAGE,
                {
                    "topic": "T",
                    "key": "C",
                    "maxNum": "4",
                    "beginTimestamp": "0",
                    "endTimestamp": str(1 << 60),
                    "_UNIQUE_KEY_QUERY": "true",
                },
            )
            assert (found.code, b"forged" in found.body) == (0, False)

    run_virtual(scene())


def test_the_kernel_finds_exactly_what_the_gate_must_see() -> None:
    judged = {name for name, own in SYSTEM_PROPERTIES.items() if own.sent is not Sent.KEPT}
    for name in SYSTEM_PROPERTIES:
        text = f"UNIQ_KEY\x01U\x02{name}\x011\x02".encode()
        table = new_table(1)
        table[FrameColumn.BODY_LEN], table[FrameColumn.PROPERTIES_POS] = 4, 4
        table[FrameColumn.PROPERTIES_LEN] = len(text)
        traits = inspect_rows(b"body" + text, table, 0, 1, 100, 1)
        acts = name in DELAYING - {"__STARTDELIVERTIME"} | {"TRAN_MSG", "TIMER_DELAY_LEVEL"}
        assert bool(traits & SendTrait.SPECIAL) is (name in judged or acts), name
        assert bool(traits & SendTrait.LITE) is (name == "__LITE_TOPIC"), name


def test_the_page_names_what_is_dropped_and_refused() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| propert")]
    for sent, rule in ((Sent.DROPPED, "removed"), (Sent.REFUSED, "refused")):
        (row,) = [
            row
            for row in rows
            if row.split("|")[2].strip().startswith((rule, f"the message is {rule}")) and "," in row.split("|")[1]
        ]
        assert set(re.findall(r"`([^`]+)`", row.split("|")[1])) == {
            name for name, own in SYSTEM_PROPERTIES.items() if own.sent is sent
        }


@pytest.mark.parametrize(
    "text",
    [
        b"TIMER_OUT_MS\x01\x02TIMER_DELAY_MS\x015\x02",
        b"POP_CK\x01\x02a\x01b\x02",
        b"TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x017\x02DELAY\x013\x02TIMER_DELIVER_MS\x015",
        b"TIMER_DELAY_SEC\x015\x02REAL_TOPIC\x01T",
    ],
)
def test_encoded_properties_are_judged_like_decoded_ones(text: bytes) -> None:
    properties = decode_properties(text)
    admit(properties, "T")
    assert decode_properties(admitted_text(text, "T")) == properties


def test_a_batch_with_too_many_such_members_is_refused(tmp_path: Path) -> None:
    """Each takes microseconds, and all of a batch are handled in one turn of the event loop."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for count, code in ((2048, 0), (2049, ILLEGAL)):
                body = member("POP_CK\x01x\x02UNIQ_KEY\x01U\x02") * count
                command = RemotingCommand(320, ext_fields=header("T", "", batch=True), body=body)
                assert (await cluster.client.invoke(cluster.broker.address, command, 5000)).code == code

    run_virtual(scene())


@pytest.mark.parametrize("sys_flag", [4, 8, 12, 0x80, 0xC0])
def test_flags_of_brokers_are_refused(tmp_path: Path, sys_flag: int) -> None:
    """Before, a popped or timed message with the flag of a batch was never delivered (again), and nobody got to see
    the messages of a batch with the flag of a half message.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            text = properties_text(UNIQ_KEY="U")
            for more in ({}, {"TIMER_DELAY_MS": "5000"}, {"DELAY": "1"}):
                fields = header("T", text + properties_text(**more), sys_flag=sys_flag)
                command = RemotingCommand(310, ext_fields=fields, body=b"body")
                assert (await cluster.client.invoke(cluster.broker.address, command, 5000)).code == ILLEGAL
            command = RemotingCommand(320, ext_fields=header("T", "", batch=True, sys_flag=sys_flag), body=member(text))
            assert (await cluster.client.invoke(cluster.broker.address, command, 5000)).code == ILLEGAL
            assert cluster.broker.store.max_offset == 0

    run_virtual(scene())


@pytest.mark.parametrize("way", WAYS)
def test_a_message_has_no_more_keys_than_the_index_takes_quickly(tmp_path: Path, way: str) -> None:
    """Before the fix, a batch of 4 MiB added 840,000 keys to the index in one turn, which took 250 ms."""

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
            for keys, code in ((KEYS_MAX, 0), (KEYS_MAX + 1, ILLEGAL)):
                for text in ("k " * keys, "  key" * keys):
                    properties = f"UNIQ_KEY\x01U\x02KEYS\x01{text}\x02"
                    answer = await cluster.client.invoke(cluster.broker.address, WAYS[way](properties), 5000)
                    inner = way == "envelope"  # an ordinary topic does not store the properties of the batch itself
                    unheard = way == "reply" and code == 0
                    assert answer.code == (0 if inner else 1 if unheard else code), answer.remark

    run_virtual(work())


def test_the_keys_of_a_batch_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "BATCH_KEYS_MAX", 10)

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            for members, code in ((["a b c d e"] * 2, 0), (["a b c d e f g"] * 2, ILLEGAL), (["a   b"] * 5, 0)):
                body = b"".join(
                    member(f"UNIQ_KEY\x01{number}\x02KEYS\x01{keys}\x02") for number, keys in enumerate(members)
                )
                request = RemotingCommand(320, ext_fields=header("T", "", batch=True), body=body)
                answer = await cluster.client.invoke(cluster.broker.address, request, 5000)
                assert answer.code == code, answer.remark
            spaces = member("UNIQ_KEY\x01U\x02other\x01" + "x " * 20 + "\x02")
            request = RemotingCommand(320, ext_fields=header("T", "", batch=True), body=spaces)
            assert (await cluster.client.invoke(cluster.broker.address, request, 5000)).code == 0

    run_virtual(work())
