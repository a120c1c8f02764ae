"""The targets of the fuzzer: each decoder with a corpus of inputs, and a check of the result of every input.

An input may cause ``FormatError`` (``ConfigError`` for options); any other error is a failure. ``AssertionError`` means
that two results differ: those of the compiled and the interpreted kernel, of two ways to compute a value, or of a round
trip.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from tests.fuzz import http2_targets
from tests.fuzz.mutation import TOKENS, Mutator
from tests.golden import loader
from tests.kernels import FORMS, kernel
from tests.sql_outcomes import outcome
from tests.unit.filter.test_sql import cases as sql_cases
from tests.unit.filter.test_sql import expression_of
from tests.unit.formats.samples import WORKED_PROPERTIES, WORKED_RECORD
from tests.unit.protocol.golden import all_frames
from tests.unit.protocol.rows import expected, frame_of, values
from tests.unit.protocol.test_bodies import REQUESTS, RESPONSES, body_class

from rucola.broker.acl.plain_file import read_accounts, read_document, read_global_addresses
from rucola.broker.config import broker_options
from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.common.java import parse_properties
from rucola.errors import ConfigError, FormatError
from rucola.filter.sql import compile_sql
from rucola.filter.tag import parse_tag_expression, parse_tags
from rucola.formats import tables
from rucola.formats.batch_consume_queue import decode_batch_unit
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue_ext import decode_ext_unit
from rucola.formats.index_file import IndexHeader, Limits, query
from rucola.formats.light_queue import light_queue_names, light_queue_offsets
from rucola.formats.message import decode_message, decode_messages
from rucola.formats.message_id import parse_offset_message_id
from rucola.formats.properties import decode_properties, encode_properties
from rucola.formats.segment_name import segment_start
from rucola.formats.timer import TimerCheckpoint, TimerMetrics
from rucola.protocol import fastjson
from rucola.protocol.command import decode_header
from rucola.protocol.frame import FrameReader

ROWS = 4
COMPARE_EVERY = 128
"""Every n-th input also goes to the interpreted kernel, which takes a hundred times as long."""


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        share: weight of this target when the inputs of a run are divided among all targets.
        round: number of inputs that come from one seed.
        mutator: makes the source of inputs; called when the target is used.
        check: takes one input and its number in the round.
    """

    share: int
    round: int
    mutator: Callable[[], Mutator]
    check: Callable[[bytes, int], None]


@cache
def forms(name: str) -> list[Any]:
    """Returns the compiled kernel and the interpreted kernel."""
    return [kernel(name, form) for form in FORMS]


def chosen(name: str, number: int) -> Sequence[Any]:
    """Returns the kernels for input ``number``: both forms if it is an n-th input, otherwise only the compiled one."""
    return forms(name) if number % COMPARE_EVERY == 0 else forms(name)[:1]


def refused(decode: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the value that ``decode`` returns; None if it refuses with an allowed error."""
    try:
        return decode(*arguments)
    except FormatError as error:
        assert str(error)
        return None


# --- frames and headers


@cache
def recorded_frames() -> list[bytes]:
    return sorted({entry.frame for entry in all_frames() if len(entry.frame) < 2000})


def frames() -> Mutator:
    return Mutator(recorded_frames())


def headers() -> Mutator:
    return Mutator([frame[4:5] + frame[8 : 8 + int.from_bytes(frame[5:8], "big")] for frame in recorded_frames()])


_table = new_table(ROWS)


def check_frame(data: bytes, number: int) -> None:
    """Checks that the kernel's rows equal those of the general path, that the compiled and the interpreted kernel
    agree, and that a frame is refused only for its lengths, not for its header.
    """
    results = []
    for form in chosen("protocol._frame_cy", number):
        source, table = bytearray(data), _table
        for base in range(0, ROWS * ROW_WIDTH, ROW_WIDTH):
            table[base + FrameColumn.SAME_TOPIC] = 0  # the kernel sets this from the second row on
        result = form.scan_frames(source, 0, len(source), table, ROWS)
        results.append((result, source, table[: result[0] * ROW_WIDTH]))
    assert all(result == results[0] for result in results)
    (rows, position, _, _), source, table = results[0]
    assert 0 <= position <= len(data)
    for row in range(rows):
        base = row * ROW_WIDTH
        start, length = table[base + FrameColumn.HEADER_POS], table[base + FrameColumn.HEADER_LEN]
        end = table[base + FrameColumn.BODY_POS] + table[base + FrameColumn.BODY_LEN]
        assert 8 <= start <= start + length <= end <= position
        header = data[start : start + length]
        if table[base + FrameColumn.KIND] == FrameKind.PLAIN:
            assert source[start : start + length] == header
            refused(decode_header, header, data[start - 4])
            continue
        try:
            command = decode_header(header, data[start - 4])
        except FormatError as error:
            assert "once" in error.expected, error  # the kernel ignores the field that occurs twice
        else:
            assert values(table, source, row) == expected(command)
    check_answers(data, table, rows, number)


def check_answers(data: bytes, table: array[int], rows: int, number: int) -> None:
    """Checks that a producer reads the same values from responses as the general path, and that the compiled and the
    interpreted kernel agree.
    """
    answers, *others = [
        form.read_send_answers(data, table, rows) for form in chosen("protocol._send_request_cy", number)
    ]
    assert all(other == answers for other in others)
    for row, answer in enumerate(answers):
        base = row * ROW_WIDTH
        if answer is None or table[base + FrameColumn.FLAG] == -1:  # the check fills in code and opaque
            continue
        start = table[base + FrameColumn.HEADER_POS]
        command = refused(decode_header, data[start : start + table[base + FrameColumn.HEADER_LEN]], 0)
        if command is not None:
            fields = command.ext_fields
            names = ("msgId", "queueId", "queueOffset", "transactionId", "batchUniqId")
            read = [None if answer[1 + place] is None else str(answer[1 + place]) for place in range(len(names))]
            assert (answer[0], read[0], *read[3:]) == (command.code, fields["msgId"], *map(fields.get, names[3:]))
            assert [int(fields[name]) for name in names[1:3]] == [answer[2], answer[3]]


def check_framed(data: bytes, number: int) -> None:
    """Checks the input as header and body of a frame with the right lengths."""
    cut = 1 + (len(data) - 1) * (number % 7) // 7 if number % 3 else len(data)
    check_frame(frame_of(data[1:cut] or b"{", data[cut:], (data[:1] or b"\0")[0] & 1), number)


def check_header(data: bytes, _: int) -> None:
    """Checks that a header that was read can be written and read again."""
    command = refused(decode_header, data[1:], (data[:1] or b"\0")[0] & 1)
    if command is None:
        return
    assert len(command.ext_fields) <= 128
    try:
        header = command.encode_header()
    except FormatError:
        assert command.serialize == 1
        return
    again = decode_header(header, command.serialize)
    if command.serialize == 1 and command.language.name == "OTHER":
        again.language = command.language
    assert again == command


_connection = [FrameReader(4096)]


def check_stream(data: bytes, number: int) -> None:
    """Sends all inputs over the same connection, in reads of different sizes, until a frame is refused; then over a new
    connection.
    """
    if number == 0:
        _connection[0] = FrameReader(4096)
    reader = _connection[0]
    position = 0
    try:
        while position < len(data):
            buffer = reader.buffer()
            size = min(len(buffer), len(data) - position, 1 + (number * 7919 + position) % 700)
            assert size > 0
            buffer[:size] = data[position : position + size]
            position += size
            batch = reader.received(size)
            for row in range(batch.count if batch else 0):
                assert batch is not None
                assert batch.command(row).body == batch.body(row)
        if reader.begun_bytes > 100_000:  # the connection waits for bytes that never come
            raise FormatError("frame", 0, "its end", "another connection")
    except FormatError:
        _connection[0] = FrameReader(4096)


# --- bodies


def bodies() -> Mutator:
    found = {entry.body for entry in all_frames() if body_class(entry) is not None and len(entry.body) < 3000}
    names = [
        b'"clientID":"c",',
        b'"table":',
        b'"@type":"java.lang.Runtime",',
        b'"groupName"',
        b'{{"topic":"T"}:1}',
        b"{1:2}",
    ]
    deep = [b'{"offsetTable":' * 33, b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}']
    return Mutator(sorted(found), [*TOKENS, *names, *deep])


BODIES = sorted({*REQUESTS.values(), *RESPONSES.values()}, key=lambda body: body.__name__)


def check_body(data: bytes, number: int) -> None:
    """Checks the input as the body of any request."""
    for kind in (BODIES[number % len(BODIES)], BODIES[number * 7 % len(BODIES)]):
        body = refused(kind.decode, data)
        if body is not None:
            refused(kind.decode, body.encode())


def check_json(data: bytes, _: int) -> None:
    """Checks that a value read from fastjson's dialect can be written as standard JSON of limited size, unless it has
    an object as key.
    """
    value = refused(fastjson.loads, data)
    if value is not None and b"{{" not in data:
        try:
            written = fastjson.dumps(value)
        except (TypeError, ValueError, orjson.JSONEncodeError):
            return  # an integer of more than 64 bits, or an object as key, can be read but not written
        assert len(written) <= 100 * len(data) + 1000


# --- stored bytes


def properties() -> Mutator:
    found = [WORKED_PROPERTIES, b"", b"A\x01b\x02", b"UNIQ_KEY\x01u\x02WAIT\x01false\x02DELAY\x013\x02"]
    names = [b"\x01", b"\x02", b"UNIQ_KEY\x01", b"KEYS\x01a b c\x02", b"TAGS\x01t\x02", b"WAIT\x01true\x02"]
    names += [b"TRAN_MSG\x01true\x02", b"DELAY\x019\x02", b"INNER_MULTI_DISPATCH\x01%LMQ%a,b\x02", b"__CRC32#\x01x"]
    texts = {entry.header.get("extFields", {}).get("i") for entry in all_frames() if entry.header.get("extFields")}
    return Mutator(found + sorted(text.encode() for text in texts if text), TOKENS + names)


def check_properties(data: bytes, number: int) -> None:
    found = decode_properties(data)
    try:
        again = encode_properties(found)
    except ValueError:
        again = None
    assert again is None or decode_properties(again) == found
    refused(list, light_queue_offsets(data))
    light_queue_names(data.decode("utf-8", "replace"))
    results = []
    source = b"body" + data
    for form in chosen("formats._send_cy", number):
        table = _table[:ROW_WIDTH]
        for column in range(ROW_WIDTH):
            table[column] = 0
        table[FrameColumn.BODY_LEN] = 4
        table[FrameColumn.PROPERTIES_POS] = 4
        table[FrameColumn.PROPERTIES_LEN] = len(data)
        results.append((form.inspect_rows(source, table, 0, 1, 1000, 4), table))
    assert all(result == results[0] for result in results)
    position, length = (results[0][1][column] for column in (FrameColumn.UNIQ_KEY_POS, FrameColumn.UNIQ_KEY_LEN))
    if length >= 0:
        assert source[position : position + length].decode("utf-8", "replace") == found["UNIQ_KEY"]


def batches() -> Mutator:
    found = [entry.body for entry in all_frames() if entry.record["code"] == 320 and 0 < len(entry.body) < 3000]
    return Mutator(sorted(set(found)) or [bytes(22)])


def check_batch(data: bytes, number: int) -> None:
    """Checks that the messages of a batch lie within the body, one after another, and that the compiled and the
    interpreted kernel agree.
    """
    results = []
    for form in chosen("formats._send_cy", number):
        envelope = new_table(1)
        envelope[FrameColumn.BODY_LEN] = len(data)
        members = new_table(len(data) // 22 + 1)
        results.append((form.expand_batch(data, envelope, 0, members, len(data) // 22 + 1), members))
    assert all(result == results[0] for result in results)
    count, members = results[0]
    end = 0
    for base in range(0, count * ROW_WIDTH, ROW_WIDTH):
        assert members[base + FrameColumn.BODY_POS] >= end
        end = members[base + FrameColumn.BODY_POS] + members[base + FrameColumn.BODY_LEN]
        assert end <= len(data)
        assert members[base + FrameColumn.PROPERTIES_POS] + max(members[base + FrameColumn.PROPERTIES_LEN], 0) <= len(
            data
        )


def records() -> Mutator:
    """Returns small records, one by one and several together."""
    found: list[bytes] = [WORKED_RECORD, WORKED_RECORD * 2]
    for path in sorted(loader.STORES.glob("*.tar.xz"))[:6]:
        for data in loader.load(path.name.removesuffix(".tar.xz")).below("commitlog").values():
            position = 0
            while len(found) < 100 and 0 < (size := int.from_bytes(data[position : position + 4], "big")) < 1000:
                found.append(data[position : position + size])
                position += size
    return Mutator(found)


def check_record(data: bytes, number: int) -> None:
    """Checks that the compiled and the interpreted walk over records agree, with any selection of their checks, and
    that rows lie within the bytes.
    """
    check = number % 16
    results = []
    for form in chosen("formats._message_cy", number):
        table = new_table(ROWS)
        results.append((form.walk_records(data, memoryview(data), 0, len(data), 0, table, ROWS, crc32, check), table))
    assert all(result == results[0] for result in results)
    assert 0 <= results[0][0][1] <= len(data)
    refused(decode_messages, data)
    if number % 4 == 0:
        refused(decode_message, data)


def small_files() -> Mutator:
    found = [
        StoreCheckpoint().encode()[:64],
        TimerCheckpoint(1, 2, 3, 4).encode(),
        WORKED_RECORD,
        b"00000000000000000000",
    ]
    for path in sorted(loader.STORES.glob("*.tar.xz"))[:4]:
        case = loader.load(path.name.removesuffix(".tar.xz"))
        found += [data[:2000] for name, data in case.files.items() if not name.startswith("commitlog/")]
    return Mutator(found)


def check_small_file(data: bytes, number: int) -> None:
    refused(StoreCheckpoint.decode, data)
    refused(TimerCheckpoint.decode, data)
    refused(TimerMetrics.decode, data)
    refused(IndexHeader.decode, data)
    refused(query, data, 1 + number % 50, number % 5, Limits(64, 0, 1 << 62))
    refused(decode_ext_unit, data)
    refused(decode_batch_unit, data[:46].ljust(46))  # callers pass only whole units
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):  # as it says
        parse_offset_message_id(text)
    assert segment_start(text) is None or len(text) == 20


CONFIG_TABLES = (
    tables.decode_topics,
    tables.decode_subscription_groups,
    tables.decode_consumer_offsets,
    tables.decode_delay_offsets,
    tables.decode_consumer_filters,
)


def config_tables() -> Mutator:
    found = {b"{}", b'{"offsetTable":{1:2,3:4}}', b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{}}'}
    for path in sorted(loader.BROKER_STORES.glob("*.tar.xz"))[:4]:
        case = loader.load_broker(path.name.removesuffix(".tar.xz"))
        found |= {data for name, data in case.files.items() if name.startswith("config/") and 0 < len(data) < 4000}
    return Mutator(sorted(found), [*TOKENS, b"{1:", b'"order":true', b'{"$ref":"$"}', b'{"a":' * 1100])


def check_config_table(data: bytes, number: int) -> None:
    refused(CONFIG_TABLES[number % len(CONFIG_TABLES)], data)


# --- languages


def sql() -> Mutator:
    found = sorted(
        {text.encode("utf-8", "surrogatepass") for text in map(expression_of, sql_cases()) if len(text) < 120}
    )
    words = (
        "AND OR NOT IN BETWEEN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH ( ) = <> < > <= >= , 'x' 1 -1 1.5 1e9"
    )
    pieces = [f" {word} ".encode() for word in words.split()]
    return Mutator(found, [*pieces, b"((((", b"a " * 50, b"9" * 40, b"'", b"''", b"\xf0\x9f\x98\x80"])


def check_sql(data: bytes, _: int) -> None:
    """Checks that an expression is either refused or has an outcome for any properties."""
    expression = refused(compile_sql, data.decode("utf-8", "replace"))
    if expression is not None:
        for text in (WORKED_PROPERTIES, b"", data, b"a\x011\x02b\x01x\x02"):
            outcome(expression, text)
        texts = b"a\x01" + data
        expression.match(texts, array("q", (0, len(texts), 0, 0)), 2, bytearray(2))


def check_tags(data: bytes, _: int) -> None:
    text = data.decode("utf-8", "replace")
    if refused(parse_tag_expression, text) is not None:
        parse_tags(text)


def yaml_files() -> Mutator:
    accounts = """
globalWhiteRemoteAddresses:
  - 10.9.8.*
accounts:
  - accessKey: k
    secretKey: a-secret-of-sixteen
    whiteRemoteAddress: 10.1.2.*
    admin: false
    defaultTopicPerm: DENY
    topicPerms:
      - A=PUB|SUB
"""
    flow = "accounts: [{accessKey: a, secretKey: 'sixteen-bytes-or-more', groupPerms: [g=SUB]}]"
    tokens = [
        b"&a ",
        b"*a",
        b"!!python/object:os.system x",
        b"<<: *a\n",
        b"- ",
        b"\n  ",
        b": ",
        b"[" * 60,
        b"? ",
        b"|\n",
    ]
    return Mutator([accounts.encode(), flow.encode()], TOKENS + tokens)


def check_yaml(data: bytes, _: int) -> None:
    document = refused(read_document, data, "file")
    if document is not None:
        refused(read_accounts, document, "file", False)
        refused(read_global_addresses, document, "file")


def broker_confs() -> Mutator:
    usual = """brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
listenPort=10911
bindAddress=127.0.0.1
"""
    odd = "# comment\nstorePathRootDir = /data\\\n  /store\nautoCreateTopicEnable:true\naclEnable true\n\\u0061=b\n"
    tokens = [*TOKENS, b"\\", b"\n", b"=", b"\\u00", b"bindAddress=0.0.0.0\n", b"messageDelayLevel=1s 2x\n"]
    return Mutator([usual.encode(), odd.encode()], tokens)


def check_broker_conf(data: bytes, _: int) -> None:
    try:
        values_given = parse_properties(data.decode("utf-8", "replace"))
    except ValueError as error:  # as it says
        assert "\\u" in str(error)
        return
    try:
        broker_options(values_given)
    except ConfigError as error:
        assert str(error)


TARGETS = {
    "frame": Target(200, 1000, frames, check_frame),
    "framed header": Target(200, 1000, headers, check_framed),
    "header": Target(150, 1000, headers, check_header),
    "stream": Target(100, 1000, frames, check_stream),
    "body": Target(60, 1000, bodies, check_body),
    "http2": Target(10, 200, http2_targets.conversations, http2_targets.check_conversation),
    "header block": Target(30, 1000, http2_targets.blocks, http2_targets.check_block),
    "json": Target(60, 1000, bodies, check_json),
    "properties": Target(80, 1000, properties, check_properties),
    "batch": Target(60, 1000, batches, check_batch),
    "record": Target(60, 1000, records, check_record),
    "small file": Target(15, 1000, small_files, check_small_file),
    "config table": Target(10, 1000, config_tables, check_config_table),
    "tags": Target(10, 1000, sql, check_tags),
    "sql": Target(2, 100, sql, check_sql),
    "yaml": Target(2, 100, yaml_files, check_yaml),
    "broker.conf": Target(5, 100, broker_confs, check_broker_conf),
}
