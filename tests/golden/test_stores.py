"""Logs, queues and index files of RocketMQ: read as RocketMQ reads them, and written again byte for byte."""

from __future__ import annotations

from array import array
from base64 import b64decode
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

import pytest
from tests.golden.loader import Case, body_bytes, load
from tests.golden.replay import Replay
from tests.kernels import kernel

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.common.message import MessageExt, StoreMessage
from rucola.errors import FormatError
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import read_units
from rucola.formats.index_file import IndexHeader, Limits, key_hash, query
from rucola.formats.message import decode_message, encode_message, message_from_row
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.formats.segment_name import segment_name, segment_start

CASES = (
    "v1_one_record",
    "v2_long_topic",
    "ipv6_hosts",
    "bodies",
    "tags",
    "properties",
    "crc_property",
    "exact_fit",
    "plain_batch",
    "plain_batch_envelope",
    "plain_batch_roll",
    "rolling",
    "transaction_flags",
    "index_chains",
    "index_clock",
)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load(request.param)


def segments(case: Case) -> list[tuple[int, bytes]]:
    """Yields start and content of the used segments of the log."""
    files = {segment_start(name): data for name, data in case.below("commitlog").items()}
    assert None not in files
    end = case.expect["store"]["maxPhyOffset"]
    return sorted((start, data) for start, data in files.items() if start is not None and start < end)


def test_every_record_reads_as_the_reference_reads_it(case: Case, form: str) -> None:
    walk_records = kernel("formats._message_cy", form).walk_records
    found: list[dict[str, Any]] = []
    end = case.expect["store"]["maxPhyOffset"]
    for start, segment in segments(case):
        table = new_table(7)
        position, limit, stop = 0, min(len(segment), end - start), WalkStop.TABLE_FULL
        while stop == WalkStop.TABLE_FULL:
            rows, position, stop = walk_records(
                segment, memoryview(segment), position, limit, start, table, 7, crc32, 7
            )
            for row in range(rows):
                message = message_from_row(segment, table, row, unpack=False)
                record_pos = table[row * ROW_WIDTH + RecordColumn.RECORD_POS]
                found.append(as_expected(message, segment[record_pos : record_pos + message.store_size]))
        if stop == WalkStop.BLANK:
            found.append({"physicalOffset": start + position, "blank": len(segment) - position})
        else:
            assert stop == WalkStop.LIMIT
    assert found == [without_text(entry) for entry in case.expect["log"]]


def as_expected(message: MessageExt, record: bytes) -> dict[str, Any]:
    body: dict[str, Any] = {"length": len(message.body)}
    body |= {"body": message.body} if len(message.body) <= 48 else {"sha256": sha256(message.body).hexdigest()}
    return {
        "physicalOffset": message.physical_offset,
        "size": message.store_size,
        "version": 2 if len(message.topic.encode()) > 127 else 1,
        "msgId": message.offset_msg_id,
        "bodyCRC": message.body_crc,
        "queueId": message.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": {"address": message.born_host[:-4].hex(), "port": int.from_bytes(message.born_host[-4:], "big")},
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": {"address": message.store_host[:-4].hex(), "port": int.from_bytes(message.store_host[-4:], "big")},
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "body": body,
        "topic": message.topic,
        "properties": message.properties,
        "sha256": sha256(record).hexdigest(),
    }


def without_text(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns an entry of ``expect.json`` in the form of our records, without the property text, which another test
    compares.
    """
    if "blank" in entry:
        return entry
    entry = {name: value for name, value in entry.items() if name not in ("propertiesString", "uncompressedBody")}
    body = dict(entry["body"])
    if "base64" in body:
        body["body"] = b64decode(body.pop("base64"))
    return entry | {"body": body}


def test_every_record_decoded_and_encoded_again_is_the_same_bytes(case: Case) -> None:
    texts = {entry["physicalOffset"]: entry["propertiesString"] for entry in case.expect["log"] if "topic" in entry}
    for start, segment in segments(case):
        for physical_offset, text in texts.items():
            if not start <= physical_offset < start + len(segment):
                continue
            at = physical_offset - start
            record = segment[at : at + int.from_bytes(segment[at : at + 4], "big")]
            message = decode_message(record, unpack=False)
            assert decode_properties((text or "").encode()) == message.properties
            again = StoreMessage(
                topic=message.topic.encode(),
                queue_id=message.queue_id,
                body=message.body,
                properties=(text or "").encode(),
                born_timestamp_ms=message.born_timestamp_ms,
                born_host=message.born_host,
                flag=message.flag,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
            encoded = encode_message(
                again, physical_offset, message.queue_offset, message.store_timestamp_ms, message.store_host
            )
            assert encoded == record


def test_a_record_cut_anywhere_is_torn() -> None:
    record = dict(segments(load("v1_one_record")))[0][:176]
    for size in range(1, len(record)):
        with pytest.raises(FormatError):
            decode_message(record[:size])


@pytest.fixture(scope="module")
def replays() -> dict[tuple[str, str], Replay]:
    return {}


@pytest.fixture
def replay(case: Case, form: str, replays: dict[tuple[str, str], Replay]) -> Replay:
    if (case.name, form) not in replays:
        replays[case.name, form] = Replay(case, form)
    return replays[case.name, form]


def test_the_puts_make_the_log_of_the_reference(case: Case, replay: Replay) -> None:
    files = case.below("commitlog")
    assert {segment_name(start) for start in replay.segments} <= files.keys()
    assert replay.position == case.expect["store"]["maxPhyOffset"]
    for start, end in replay.ends.items():
        assert replay.segments[start][:end] == files[segment_name(start)][:end]


def test_the_puts_make_the_queues_of_the_reference(case: Case, replay: Replay) -> None:
    written: dict[tuple[str, int], list[dict[str, int]]] = {}
    for (topic, queue_id), units in replay.queues.items():
        written[topic, queue_id] = [
            {
                "queueOffset": queue_offset,
                "physicalOffset": unit.physical_offset,
                "size": unit.size,
                "tagsCode": unit.tags_code,
            }
            for queue_offset, unit in enumerate(read_units(units))
        ]
        files = sorted(case.below(f"consumequeue/{topic}/{queue_id}").items())
        assert b"".join(data for _, data in files)[: len(units)] == units
    expected = {(queue["topic"], queue["queueId"]): queue["units"] for queue in case.expect["queues"] if queue["units"]}
    assert written == expected


def test_the_puts_make_the_index_of_the_reference(case: Case, replay: Replay) -> None:
    files = case.below("index")
    assert replay.index_files.keys() == files.keys()
    for name, data in replay.index_files.items():
        assert data == files[name], name


def test_index_queries_find_what_the_reference_finds(case: Case) -> None:
    files = [data for _, data in sorted(case.below("index").items())]
    slots = case.config("maxHashSlotNum", 0)
    ids = {entry["msgId"]: entry["physicalOffset"] for entry in case.expect["log"] if "msgId" in entry}
    for asked in case.expect["queryMessage"]:
        if "msgIds" not in asked:
            continue
        wanted = key_hash(asked["topic"].encode(), asked["key"].encode())
        found: list[int] = []
        for file in reversed(files):
            header = IndexHeader.decode(file)
            left = min(asked["maxNum"], 64) - len(found)
            if header.overlaps(asked["begin"], asked["end"]):
                found += query(file, slots, wanted, Limits(left, asked["begin"], asked["end"]))
            if header.begin_timestamp_ms < asked["begin"] or left <= 0:
                break
        assert sorted(found) == sorted(ids[msg_id] for msg_id in asked["msgIds"]), asked


def test_properties_are_written_in_the_order_of_the_reference(case: Case) -> None:
    for put in case.puts:
        for message in [put["message"], *put["message"].get("members", [])]:
            pairs = [(name, value) for name, value in message.get("properties", []) if value is not None]
            if pairs:
                text = encode_properties(java_order(pairs)).decode()
                assert text in (message["propertiesString"], message["propertiesString"] + "\x02")


def test_the_checkpoint_reads_as_the_reference_reads_it(case: Case) -> None:
    data = case.files["checkpoint"]
    checkpoint = StoreCheckpoint.decode(data)
    expected = case.case["reopened"]["state"]["checkpoint"]
    assert checkpoint.logics_msg_timestamp_ms == expected["logicsMsgTimestamp"]
    assert checkpoint.index_msg_timestamp_ms == expected["indexMsgTimestamp"]
    assert checkpoint.master_flushed_offset == expected["masterFlushedOffset"]
    assert checkpoint.encode() == data


def test_pulls_choose_the_units_the_reference_chooses(case: Case, form: str) -> None:
    select_units = kernel("formats._queue_cy", form).select_units
    queues = {(queue["topic"], queue["queueId"]): queue["units"] for queue in case.expect["queues"]}
    file_units = case.config("mappedFileSizeConsumeQueue", 0) // 20
    for asked in case.expect["getMessage"]:
        units = queues.get((asked["topic"], asked["queueId"]), [])
        first = asked["offset"]
        if not 0 <= first < len(units) or asked["status"] not in ("FOUND", "NO_MATCHED_MESSAGE"):
            continue
        file = units[first : first - first % file_units + file_units]
        buffer = bytearray(20 * len(file))
        for at, unit in enumerate(file):
            put_unit = kernel("formats._queue_cy", form).put_unit
            put_unit(buffer, 20 * at, unit["physicalOffset"], unit["size"], unit["tagsCode"])
        codes = array("q", sorted(hash_of(tag) for tag in asked["tags"].split("||")) if "tags" in asked else [])
        out = array("q", bytes(16 * 64))
        end = case.expect["store"]["maxPhyOffset"]
        limit = max(16000, 20 * asked["maxNum"])
        limits = kernel("formats._queue_cy", form).PullLimits(0, end, 0, 32, 262144, 8, 65536)
        chosen, examined, missing = select_units(
            buffer, 0, len(buffer), out, asked["maxNum"], 128 << 20, limit, codes, limits
        )
        assert (chosen, first + examined, missing) == (asked["messageCount"], asked["nextBeginOffset"], 0), asked
        assert sum(out[1 : 2 * chosen : 2]) == asked["bufferTotalSize"]
        assert [first + file_index(file, out[2 * i]) for i in range(chosen)] == asked["queueOffsets"]


def file_index(file: list[dict[str, int]], physical_offset: int) -> int:
    return next(at for at, unit in enumerate(file) if unit["physicalOffset"] == physical_offset)


def hash_of(tag: str) -> int:
    value = 0
    for unit in memoryview(tag.strip().encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def test_packed_bodies_are_unpacked_and_refused_where_the_package_is_not_there() -> None:
    case = load("bodies")
    ((_, segment),) = segments(case)
    seen = set()
    for entry in case.expect["log"]:
        if "uncompressedBody" not in entry:
            continue
        record = segment[entry["physicalOffset"] : entry["physicalOffset"] + entry["size"]]
        package = {0x100: "lz4", 0x200: "zstandard"}.get(entry["sysFlag"] & 0x700, "zlib")
        if find_spec(package) is not None:
            body = decode_message(record).body
            assert len(body) == entry["uncompressedBody"]["length"]
            assert sha256(body).hexdigest() == entry["uncompressedBody"]["sha256"]
        else:
            with pytest.raises(FormatError, match=r"LZ4|ZSTD"):
                decode_message(record)
        seen.add(entry["sysFlag"])
    assert seen == {0x001, 0x101, 0x201, 0x301}


def test_bodies_of_the_cases_were_what_the_records_hold(case: Case) -> None:
    lengths = [entry["body"]["length"] for entry in case.expect["log"] if "body" in entry]
    put: list[int] = []
    for step in case.puts:
        if step["result"].get("appendStatus") == "PUT_OK":
            members = step["message"].get("members", [step["message"]])
            put += [len(body_bytes(member.get("body"))) for member in members]
    assert put == lengths
