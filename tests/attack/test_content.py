"""Damage that a peer can do with the content of well-formed frames: attacks S-05, S-06, S-10, S-11, S-13 to S-16, S-18,
S-19, S-54, S-55, S-61 to S-64.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import struct
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ALICE, DENIED, Guarded, signed, write_accounts
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, properties_text, run
from tests.unit.protocol.rows import frame_of

from rucola.broker.processor import send
from rucola.client.pull_consumer import PullConsumer
from rucola.common.columns import new_table
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import FormatError, UnreadableBodyError
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson, header_binary
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import HEADER_BYTES_READ_MAX, RemotingCommand, decode_header
from rucola.runtime import logs

COMPRESSED = 0x1


async def ended_by(cluster: Cluster, data: bytes, address: str = "") -> bytes:
    """Sends ``data`` over a separate connection; returns all bytes that come back until the server closes it."""
    host, _, port = (address or cluster.broker.address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def with_fields(cluster: Cluster, **fields: str) -> RemotingCommand:
    command = cluster.send_command("T", b"bad")
    command.ext_fields.update(fields)
    return command


# --- headers


def binary_header(*fields: bytes, remark: bytes = b"\0\0\0\0", length: int | None = None) -> bytes:
    ext = b"".join(fields)
    size = len(ext) if length is None else length
    return struct.pack(">hBhii", 310, 0, 479, 1, 0) + remark + struct.pack(">i", size) + ext


def json_header(ext_fields: str) -> bytes:
    return b'{"code":310,"opaque":1,"extFields":{%b}}' % ext_fields.encode()


HOSTILE_BINARY = [
    binary_header(remark=b"\x80\0\0\0"),
    binary_header(remark=b"\xff\xff\xff\xff"),
    binary_header(remark=b"\x7f\xff\xff\xff"),
    binary_header(length=-1),
    binary_header(length=2**31 - 1),
    binary_header(b"\0\x01b\0\0\0\x01T", length=9),
    binary_header(b"\xff\xffb\0\0\0\x01T"),
    binary_header(b"\0\0\0\0\0\x01T"),
    binary_header(b"\x7f\xffb\0\0\0\x01T"),
    binary_header(b"\0\x01b\xff\xff\xff\xffT"),
    binary_header(b"\0\x01b\x7f\xff\xff\xffT"),
    binary_header(b"\0\x01b\0\0\0\x02T"),
    binary_header(b"\0\x01b\0\0\0\x01T", b"\0"),
    binary_header(b"\0\x01b\0\0\0\x01T" * 2),
    binary_header(*(struct.pack(">hHi", 2, number, 1) + b"x" for number in range(0x4141, 0x4141 + 129))),
    binary_header(b"\0\x01b\0\0\0\x02\xc0\x80"),
    binary_header(b"\0\x01b\0\0\0\x03\xed\xa0\x80"),
]


def hostile_json() -> list[bytes]:
    """Returns headers, of which some are large: only the process that runs the test makes them."""
    return [
        json_header(",".join(f'"f{number}":"x"' for number in range(129))),
        json_header(",".join(f'"f{number}":"x"' for number in range(1_000_000))),
        json_header(f'"b":"{"x" * HEADER_BYTES_READ_MAX}"'),
        json_header(f'"{"x" * (1 << 20)}":"1"'),
        json_header('"b":"T","b":"T"'),
        json_header('"b":"T","b":"Other"'),
        json_header('"b":"T","\\u0062":"Other"'),
        b'{"code":310,"code":34,"opaque":1}',
        b'{"code":310,"opaque":1,"extFields":{"b":"T"},"extFields":{}}',
        b'{"code":310,"opaque":1,"x":{"y":1,"y":2}}',
        json_header('"b":"\xff"').replace(b"\xc3\xbf", b"\xff"),
        json_header('"b":"?"').replace(b"?", b"\xed\xa0\x80"),
        json_header('"b":"?"').replace(b"?", b"\xc0\x80"),
        json_header('"b":"\\ud800"'),
        json_header('"b":"\\udc00\\ud800"'),
        b'{"code":310,"opaque":1,"extFields":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"code":310,"opaque":1,"x":' + b"[" * 1000 + b"]" * 1000 + b',"code":1}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":310,"opaque":NaN}',
        b'{"code":310,"opaque":Infinity}',
        b'{"code":310,"opaque":1e400}',
    ]


@pytest.mark.parametrize("serialize", [0, 1])
def test_s05_s06_s11_s15_headers_that_are_refused_end_the_connection(serialize: int, tmp_path: Path) -> None:
    """A request with a refused header gets no response and stores nothing; the server closes its connection."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"good")
            for header in HOSTILE_BINARY if serialize else hostile_json():
                with pytest.raises(FormatError):
                    decode_header(header, serialize)
                for address in (cluster.broker.address, cluster.namesrv.address):
                    said = frame_of(header, b"bad", serialize)
                    assert await ended_by(cluster, said, address) == b"", header[:100]
            assert await cluster.bodies() == [b"good"]

    run(scene())


def test_s06_what_is_allowed_is_not_refused() -> None:
    """A request may have 128 fields, names that differ only in case, and properties of maximum length, all escaped."""
    fields = {f"f{number}": "x" for number in range(126)} | {"b": "1", "B": "2"}
    for serialize in (0, 1):
        command = RemotingCommand(1, ext_fields=fields, serialize=serialize)
        assert decode_header(command.encode_header(), serialize).ext_fields == fields
    longest = RemotingCommand(310, ext_fields={"i": "\x01" * 32767, "q": 'a "quoted": text'})
    assert decode_header(longest.encode_header(), 0).ext_fields == longest.ext_fields
    assert header_binary.EXT_FIELDS_MAX == 128


def test_s10_codes_and_flags_that_nobody_waits_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"good")
            for address in (cluster.broker.address, cluster.namesrv.address):
                for code in (-1, -(2**31), 2**31 - 1, 0, 9999):
                    answer = await cluster.client.invoke(address, RemotingCommand(code), 5000)
                    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
            raw = await cluster.connect()
            for flag in (1, 3, -1):
                raw.send(cluster.send_command("T", b"bad"), opaque=2**31 - 1, flag=flag)
                raw.send(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"}), 5, flag)
            raw.send(cluster.send_command("T", b"last"), opaque=7)
            assert (await raw.receive()).opaque == 7
            raw.close()
            assert await cluster.bodies() == [b"good", b"last"]

    run(scene())


@pytest.mark.parametrize("topic", ["T\0", "\0", "T\x01", "\u202eT", "T\n", "\ufffd", "T" * 128])
def test_s11_characters_that_no_name_may_have(topic: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            refused = await cluster.send(topic, b"bad")
            assert refused.code == 29
            assert cluster.broker.topics.get(topic) is None

    run(scene())


# --- bodies


def test_s13_s14_the_broker_never_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompression bombs, damaged streams and wrong types are stored and returned unchanged, without being
    decompressed.
    """
    bomb = zlib.compress(bytes(100 << 20), 9)
    bodies = [bomb, b"no stream at all", zlib.compress(b"x" * 1000)[:-5], zlib.compress(bomb)]

    def inflate(*_: Any, **__: Any) -> None:
        raise AssertionError("a body was unpacked")

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            with monkeypatch.context() as patched:
                patched.setattr(zlib, "decompressobj", inflate)
                patched.setattr(zlib, "decompress", inflate)
                for sys_flag, body in [(COMPRESSED | kind << 8, body) for kind in range(8) for body in bodies]:
                    assert (await cluster.send("T", body, sys_flag=sys_flag)).code == 0
                answer = await cluster.pull("T", 0, 8)
                found = [message.body for message in decode_messages(answer.body, unpack=False)]
                assert found == (bodies * 8)[8 : 8 + len(found)]
                answer = await cluster.ask(36, {"group": "cg", "offset": "0", "delayLevel": "0"})
                assert answer.code in (0, 26)

    run(scene())


def test_s13_s14_a_consumer_gets_past_what_cannot_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.formats.compression.BODY_BYTES_MAX", 1 << 20)
    bomb, good = zlib.compress(bytes(2 << 20), 9), zlib.compress(b"good")

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for sys_flag, body in [
                (1, good),
                (1, bomb),
                (1, b"no stream"),
                (1, good[:-2]),
                (0x301, good),
                (0x501, good),
            ]:
                assert (await cluster.send("T", body, sys_flag=sys_flag)).code == 0
            async with PullConsumer("g", cluster.namesrv.address) as consumer:
                result = await consumer.pull(MessageQueue("T", "broker-a", 0), 0, 32)
            assert [body_of(message) for message in result.messages] == [b"good", None, None, None, b"good", None]

    def body_of(message: MessageExt) -> bytes | None:
        try:
            return message.body
        except UnreadableBodyError:
            return None

    run(scene())


def test_s13_a_registration_is_unpacked_within_bounds(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            fields = {"brokerName": "evil", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": ""}
            fields |= {"brokerId": "0", "compressed": "true", "bodyCrc32": "0"}
            for body in (zlib.compress(bytes(70 << 20), 9), b"\x78\x9c" + bytes(50), zlib.compress(b"x" * 100)[:-3]):
                command = RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)
                answer = await cluster.client.invoke(cluster.namesrv.address, command, 30_000)
                assert answer.code == 1
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await cluster.client.invoke(cluster.namesrv.address, command, 5000)
            assert b"evil" not in bytes(answer.body)

    run(scene())


@pytest.mark.few
@pytest.mark.parametrize("number", ["1e300", "1e999", "9" * 30, '"' + "9" * 30 + '"', '"x"', "[]", "{}"])
@pytest.mark.parametrize("name", ["readQueueNums", "perm", "timestamp", "counter"])
def test_s15_numbers_that_nobody_could_be_told(name: str, number: str, tmp_path: Path) -> None:
    """A registration with a number that cannot be encoded is refused, because the name server could not answer requests
    for the route afterwards.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T")
            fields = {"brokerName": "evil", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": ""}
            version, topic = '"timestamp":1,"counter":1', '"topicName":"T","readQueueNums":4,"perm":6'
            for quoted in (True, False):
                wrapper = f'{{"dataVersion":{{{version}}},"topicConfigTable":{{"T":{{{topic}}}}}}}'
                text = f'{{"topicConfigSerializeWrapper":{wrapper}}}'
                text = re.sub(f'"{name}":[0-9]', f'"{name}":{number}', text)
                body = text.encode() if quoted else text.replace('"T":', "T:").encode()
                command = RemotingCommand(103, ext_fields=fields | {"brokerId": "0"}, body=body)
                refused = await cluster.client.invoke(cluster.namesrv.address, command, 5000)
                assert (refused.code, refused.remark[:12]) == (1, "FormatError:")
            for command in (RemotingCommand(105, ext_fields={"topic": "T"}), RemotingCommand(106)):
                assert (await cluster.client.invoke(cluster.namesrv.address, command, 5000)).code == 0

    run(scene())


HOSTILE_BODIES = [
    b"[" * 5000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"clientID":"c","clientID":"d"}',
    b'{clientID:"c",clientID:"d"}',
    b'{"clientID":NaN}',
    b'{"x":-Infinity}',
    b'{"x":' + b"9" * 5000 + b"x}",
    b'{"a":[{"$ref":"$.b"}],"b":[{"$ref":"$.a"}]}',
    b'{"a0":[1],'
    + b",".join(b'"a%d":[%b]' % (level, b",".join([b'{"$ref":"$.a%d"}' % (level - 1)] * 9)) for level in range(1, 12))
    + b"}",
]


@pytest.mark.parametrize("body", HOSTILE_BODIES)
def test_s15_bodies_that_are_refused(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        fastjson.loads(body)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG):
                answer = await cluster.ask(code, body=body)
                assert answer.code == 1 and answer.remark.startswith("FormatError: "), answer

    run(scene())


def test_s15_a_long_string_is_data() -> None:
    assert len(fastjson.loads(b'{"x":"' + b"y" * (10 << 20) + b'"}')["x"]) == 10 << 20


def test_s16_hints_of_classes_are_data() -> None:
    value = fastjson.loads(
        b'{"@type":"java.lang.Runtime","__class__":"os.system","a":{"py/object":"subprocess.Popen"}}'
    )
    assert value == {"@type": "java.lang.Runtime", "__class__": "os.system", "a": {"py/object": "subprocess.Popen"}}


def member(total: int = 23, body: bytes = b"x", size: int | None = None, properties: int = 0) -> bytes:
    return (
        struct.pack(">iiiii", total, 0, 0, 0, len(body) if size is None else size)
        + body
        + struct.pack(">h", properties)
    )


@pytest.mark.parametrize(
    "body",
    [
        member(total=-1),
        member(total=0),
        member(total=22),
        member(total=2**31 - 1),
        member(size=-1),
        member(size=2),
        member(size=2**31 - 1),
        member(properties=-1),
        member(properties=1),
        member(properties=32767),
        member() + member()[:-1],
        member() + b"\0",
        member() * 3 + member(total=24),
        member(22, b"") * 1_000_000,
    ],
)
def test_s18_batches_that_do_not_add_up(body: bytes, tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, max_body=32 << 20) as cluster:
            await cluster.send("T", b"good")
            end = cluster.broker.store.max_offset
            if len(body) < 16 << 20:
                assert (await cluster.send("T", body, batch=True)).code in (1, 13)
            else:
                assert await ended_by(cluster, frame_of(cluster.send_command(batch=True).encode_header(), body)) == b""
            assert cluster.broker.store.max_offset == end

    run(scene())


def test_s18_a_batch_of_too_many_messages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, a batch body of 100,000 equal bytes blocked the event loop for a quarter of a second."""
    monkeypatch.setattr(send, "BATCH_MESSAGES_MAX", 100)
    member = (23).to_bytes(4, "big") + bytes(12) + b"\0\0\0\x01x" + bytes(2)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.send("T", member * 100, batch=True)).code == 0
            end = cluster.broker.store.max_offset
            refused = await cluster.send("T", member * 101, batch=True)
            assert (refused.code, refused.remark) == (13, "a batch of more than 100 messages")
            assert cluster.broker.store.max_offset == end

    run(scene())


def test_batches_share_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, each batch of more than 64 messages made a table of 4,096 rows, which took longer than storing
    the batch. Later, each batch of 32,768 messages made one of 10 MiB: 10 of 50 ms.
    """
    rows: list[int] = []

    def counted(count: int) -> array[int]:
        rows.append(count)
        return new_table(count)

    monkeypatch.setattr(send, "new_table", counted)
    member = (23).to_bytes(4, "big") + bytes(12) + b"\0\0\0\x01x" + bytes(2)

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            rows.clear()
            for count in (1, 1000, 1024):
                assert (await cluster.send("T", member * count, batch=True)).code == 0
            assert rows == []
            larger = await cluster.send("T", member * 5000, batch=True)
            assert (larger.code, larger.ext_fields["msgId"].count(","), rows) == (0, 4999, [5000 * 23 // 22])
            for count, made in ((5000, 0), (5227, 0), (7000, 1), (1024, 0), (1025, 1)):
                rows.clear()
                assert (await cluster.send("T", member * count, batch=True)).code == 0
                assert len(rows) == made, f"{count}: a larger table is kept until a batch does not need it"
            assert len(await cluster.bodies("T", queue_offset=2025 + 10_000)) == 5227 + 7000 + 1024 + 1025

    run(scene())


@pytest.mark.parametrize(
    "options",
    [
        {"body": bytes(1001)},
        {"body": bytes(1001), "batch": True},
        {"properties": properties_text(UNIQ_KEY="u", TAGS="t" * 65536)},
        {"properties": properties_text(UNIQ_KEY="u", a="b" * 32767)},
        {"topic": "T" * 128},
        {"topic": "%RETRY%" + "g" * 256},
        {"topic": "%DLQ%" + "g" * 256},
        {"body": b""},
        {"body": b"", "batch": True},
    ],
)
def test_s19_what_is_too_large_or_nothing_is_refused_before_the_log(options: dict[str, Any], tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, max_body=1000) as cluster:
            await cluster.send("T", b"good")
            end = cluster.broker.store.max_offset
            assert (await cluster.send(**options)).code in (1, 13, 29)
            assert cluster.broker.store.max_offset == end
            assert (await cluster.send("T", bytes(1000))).code == 0

    run(scene())


# --- what is left behind


def test_s54_s55_the_log_of_hostile_requests_has_no_secrets_and_one_line_an_event(tmp_path: Path) -> None:
    """Every text that a request can carry contains a body, a signature and line ends; none of them may appear in the
    log.
    """
    hostile = "x\r\n2026-01-01T00:00:00.000Z ERROR forged\x1b[2J\x00" + "y" * 5000
    stream = io.StringIO()

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            for code in sorted(int(code) for code in RequestCode):
                names = ("topic", "b", "group", "consumerGroup", "clientID", "brokerName", "key", "recallHandle")
                fields = dict.fromkeys(names, hostile) | {"queueId": hostile, "offset": hostile}
                # Each request has a different account name, because repeated failures with one name close the
                # connection.
                for account in (ALICE, (f"unknown{code}{hostile}", "planted-secret-of-nobody")):
                    command = RemotingCommand(code, ext_fields=dict(fields), body=b"planted body " * 20)
                    answer = await cluster.as_account(account, command)
                    assert "planted body" not in answer.remark
                    assert ALICE[1] not in answer.remark

    handler = logs.set_up("DEBUG", stream)
    try:
        run(scene())
    finally:
        logging.getLogger("rucola").removeHandler(handler)
        logging.getLogger("rucola").propagate = True
        logging.getLogger("rucola").setLevel(logging.NOTSET)
    text = stream.getvalue()
    for line in text.splitlines():
        assert (line[4], line[10]) == ("-", "T") and "\x1b" not in line and "\x00" not in line, line
        assert len(line) < 4000
    for secret in (ALICE[1], "planted-secret-of-nobody", "planted body", hostile):
        assert secret not in text


def test_s61_a_message_that_is_always_sent_back_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A message becomes a dead letter after at most sixteen deliveries, unless the consumer sets a different limit."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            text = properties_text(UNIQ_KEY="u")
            fields = cluster.send_command("%RETRY%cg", b"again", text).ext_fields
            dead = 0
            for times in range(40):
                fields |= {"j": str(times), "l": "16"}
                answer = await cluster.client.invoke(
                    cluster.broker.address, RemotingCommand(310, ext_fields=dict(fields), body=b"again"), 5000
                )
                assert answer.code == 0
                end = await cluster.ask(30, {"topic": "%DLQ%cg", "queueId": "0"})
                dead += times > 16
                assert int(end.ext_fields["offset"]) == dead

    run(scene())


def planted(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("planted")


def test_s62_a_defect_in_any_handler_costs_its_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers of all request codes fail with a defect; the connection over which the requests come stays open."""

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"good")
            servers = (
                (cluster.broker.address, cluster.broker._serving.processors),
                (cluster.namesrv.address, cluster.namesrv._processors),
            )
            for address, table in servers:
                codes = sorted(table.codes)
                assert len(codes) > 10
                handlers: dict[int, Callable[..., Any]] = table._processors
                for code in codes:
                    monkeypatch.setitem(handlers, code, planted)
                    answer = await cluster.client.invoke(address, RemotingCommand(code), 5000)
                    assert (answer.code, answer.remark) == (1, "ZeroDivisionError: planted")
            monkeypatch.setattr(cluster.broker._serving.handler._send, "process_run", planted)
            monkeypatch.setattr(cluster.broker._serving.handler._send, "process_batch", planted)
            monkeypatch.setattr(cluster.broker._serving.handler._pull, "process_row", planted)
            for command in (cluster.send_command(), cluster.send_command(batch=True), cluster.pull_command()):
                answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
                assert (answer.code, answer.remark) == (1, "ZeroDivisionError: planted")
            monkeypatch.undo()
            assert (await cluster.send("T", b"more")).code == 0
            assert await cluster.bodies() == [b"good", b"more"]

    run(scene())


@pytest.mark.few
@pytest.mark.parametrize("born", ["-1", "9223372036854775807", "-9223372036854775808", "0"])
@pytest.mark.parametrize("flags", [0, 0x10, 0x20, 0x30])
def test_s63_times_and_address_flags_of_the_producer_are_not_believed(born: str, flags: int, tmp_path: Path) -> None:
    """The broker stores the born time of a message without using it. Whether the born host is IPv6 depends only on the
    connection.
    """

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"before")
            command = with_fields(cluster, g=born, f=str(flags))
            answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
            assert answer.code == 0
            await cluster.send("T", b"after")
            records = b"".join([bytes((await cluster.pull("T", 0, offset)).body) for offset in (0,)])
            found = decode_messages(records)
            assert [message.body for message in found] == [b"before", b"bad", b"after"]
            assert found[1].born_timestamp_ms == int(born)
            assert found[1].sys_flag & 0x30 == 0
            assert len(found[1].born_host) == 8
            times = [message.store_timestamp_ms for message in found]
            assert times == sorted(times)

    run(scene())


def test_s64_a_stop_during_sends_and_held_pulls_answers_each_once(tmp_path: Path) -> None:
    """The broker is stopped during requests: acknowledged messages exist after a restart; no request waits forever."""

    async def first() -> list[bytes]:
        kept: list[bytes] = []
        async with Cluster(tmp_path, sync_flush=True) as cluster:
            await cluster.send("T", b"0")
            held = asyncio.ensure_future(cluster.pull("T", 0, 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=60_000))
            sends = {
                b"%d" % number: asyncio.ensure_future(cluster.send("T", b"%d" % number)) for number in range(1, 200)
            }
            while not cluster.broker.sends_waiting:
                await asyncio.sleep(0)
            await cluster.stop_broker()
            for body, answer in sends.items():
                try:
                    code = (await answer).code
                except Exception:  # noqa: BLE001 - not acknowledged
                    continue
                assert code in (0, 10, 11, 12, 14, 1500)
                kept += [body] * (code == 0)
            assert (await held).code in (0, 19)
        return kept

    async def second(kept: list[bytes]) -> None:
        async with Cluster(tmp_path, sync_flush=True) as cluster:
            there = await cluster.bodies()
            assert len(set(there)) == len(there)
            assert set(kept) <= set(there)

    run(second(run(first())))


def test_s64_a_request_is_judged_by_one_state_of_the_accounts(tmp_path: Path) -> None:
    """All requests of one read are authorized by the same version of the accounts, which change between two reads."""

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            raw = await cluster.connect()
            for turn in range(6):
                allowed = turn % 2 == 0
                text = f"accounts:\n  - accessKey: {ALICE[0]}\n    secretKey: {ALICE[1]}\n    topicPerms:\n"
                write_accounts(cluster.home, text + f"      - A={'PUB' if allowed else 'DENY'}\n")
                cluster.access.load()
                for opaque in range(20):
                    raw.send(signed(cluster.send_command("A"), ALICE), opaque)
                codes = [(await raw.receive()).code for _ in range(20)]
                assert codes == [0 if allowed else DENIED] * 20
            raw.close()

    run(scene())


def test_headers_written_by_python_are_read_back() -> None:
    """Names that occur within values do not count as duplicate names in a header."""
    for value in ('"', '\\"', '"b":"T"', "\\", ""):
        command = RemotingCommand(1, remark=value, ext_fields={"a": value, "b": value})
        assert decode_header(command.encode_header(), 0) == command
        assert decode_header(json.dumps({"code": 1, "extFields": {"a": value}}).encode(), 0).ext_fields == {"a": value}
