"""Kernels: how much faster compiled code handles 64 messages of 1 KiB than the same source when interpreted."""

from __future__ import annotations

import importlib
import importlib.util
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import hpack
from tools.peers.packages import ROOT

from bench.context import Context
from bench.figure import Figure
from bench.http2 import WANTED, request_fields, requests
from bench.samples import (
    BODY_BYTES_MAX,
    HOST,
    QUEUES,
    STORE_TIMESTAMP_MS,
    SUFFIX,
    TOPIC,
    records,
    send_batch,
    send_frames,
)
from rucola.arrow.json_columns import Checker, Outcome
from rucola.arrow.json_shape import BOOLEAN, DOUBLE, LONG, STRING, object_of
from rucola.common.columns import ROW_WIDTH, FrameColumn, RecordColumn, new_table
from rucola.common.message_queue import MessageQueue
from rucola.formats._message_cy import walk_records
from rucola.formats._send_cy import inspect_rows
from rucola.formats.checksum import crc32
from rucola.formats.column_plan import PlanKind, Planned, new_plan
from rucola.formats.lite import QUEUE_OFFSET_MAX, LiteUnit, encode_unit
from rucola.formats.timer import TIMER_UNIT, TIMER_UNIT_BYTES
from rucola.http2.columns import ROW_COLUMNS
from rucola.http2.event_space import EventSpace
from rucola.http2.frames import FRAME_BYTES_DEFAULT
from rucola.http2.hpack import HeaderDecoder, encode_block
from rucola.http2.limits import Http2Limits
from rucola.protocol._frame_cy import scan_frames
from rucola.protocol.answers import SendAnswers
from rucola.protocol.batch_members import ID_BYTES
from rucola.protocol.codes import RequestCode
from rucola.protocol.send_request import header_head
from rucola.proxy import messages

GROUP = "kernels, 64 messages of 1 KiB: compiled against interpreted"
COUNT = 64
BODY_BYTES = 1024
COLUMNS = (
    Planned(PlanKind.INT32, RecordColumn.QUEUE_ID),
    Planned(PlanKind.INT64, RecordColumn.QUEUE_OFFSET),
    Planned(PlanKind.BYTES, RecordColumn.BODY_POS, RecordColumn.BODY_LEN),
    Planned(PlanKind.TEXT, RecordColumn.TAGS_POS, RecordColumn.TAGS_LEN),
    Planned(PlanKind.REPEATED, detail=len(TOPIC)),
)
"""The columns of the batch that ``fill`` and ``complete`` write."""
METADATA_BYTES = 1024


def measure(context: Context) -> Iterator[Figure]:
    """Yields one figure for each kernel function; without a compiler there is nothing to compare."""
    for module, function, workload in WORKLOADS:
        name = module.rpartition(".")[2]
        context.show(f"kernels: {name}.{function}")
        compiled = importlib.import_module(module)
        if not compiled._is_compiled():
            continue
        seconds = context.seconds / 10
        ours = _per_second(workload(compiled), seconds)
        plain = _per_second(workload(_interpreted(module)), seconds)
        yield Figure(GROUP, f"{name}.{function}", "M msg/s", ours / 1e6, plain / 1e6, "interpreted", ours / plain)


def _interpreted(name: str) -> ModuleType:
    """Loads the kernel's source a second time, as on a machine without a compiler."""
    path = ROOT / "src" / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_interpreted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module._is_compiled()
    return module


def _per_second(work: Callable[[], object], seconds: float) -> float:
    """Returns how many messages per second ``work`` handles, if each call handles ``COUNT``; the best of three runs."""
    work()
    best = 0.0
    for _ in range(3):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / 3:
            work()
            calls += 1
        best = max(best, calls * COUNT / spent)
    return best


def _scan_frames(module: ModuleType) -> Callable[[], object]:
    frames = send_frames(COUNT, BODY_BYTES)
    source, table = bytearray(frames), new_table(COUNT)

    def work() -> None:
        source[:] = frames  # the scan unescapes in place
        module.scan_frames(source, 0, len(source), table, COUNT)

    return work


def _inspect_rows(module: ModuleType) -> Callable[[], object]:
    batch = send_batch(COUNT, BODY_BYTES)
    return partial(module.inspect_rows, batch.source, batch.table, 0, COUNT, BODY_BYTES_MAX, QUEUES)


def _encode_rows(module: ModuleType) -> Callable[[], object]:
    batch, segment = send_batch(COUNT, BODY_BYTES), bytearray(COUNT * 2048)
    queues = array("q", [0] * QUEUES)
    place = module.RecordPlacement(0, len(segment), 0, STORE_TIMESTAMP_MS, True)
    where = (segment, memoryview(segment), place, TOPIC, queues, HOST, HOST, SUFFIX, crc32)
    return partial(module.encode_rows, batch.source, batch.view, batch.table, 0, COUNT, *where)


def _walk_records(module: ModuleType) -> Callable[[], object]:
    segment, end = records(COUNT, BODY_BYTES)
    return partial(module.walk_records, segment, memoryview(segment), 0, end, 0, new_table(COUNT), COUNT, crc32, 4)


def _read_send(module: ModuleType) -> Callable[[], object]:
    system = messages.SystemProperties(
        tag="TagA", keys=["key"], message_id="01AC4B1E2F3D4C5B6A7F8E9D0C1B2A39", message_type=messages.NORMAL
    )
    system.body_encoding, system.born_host = messages.IDENTITY, "worker-7"
    system.born_timestamp.FromMilliseconds(STORE_TIMESTAMP_MS)
    message = messages.Message(
        topic=messages.Resource(name="bench"),
        user_properties={"origin": "EWR", "carrier": "UA"},
        system_properties=system,
        body=bytes(BODY_BYTES),
    )
    request = messages.SendMessageRequest(messages=[message]).SerializeToString()
    table, scratch = new_table(COUNT), bytearray(module.send_bytes(len(request), 0))

    def work() -> None:
        for row in range(COUNT):
            module.read_send(request, table, row, scratch, 0, b"", BODY_BYTES_MAX)

    assert module.read_send(request, table, 0, scratch, 0, b"", BODY_BYTES_MAX)
    return work


def _write_delivery(module: ModuleType) -> Callable[[], object]:
    segment, end = records(COUNT, BODY_BYTES)
    table = new_table(COUNT)
    assert walk_records(segment, memoryview(segment), 0, end, 0, table, COUNT, crc32, 4)
    handle, checksum = b"1 1700000000000 60000 0 0 broker-a 0 1 4096", 32 * b"A"
    scratch = bytearray(module.delivery_bytes(2 * BODY_BYTES, len(handle)))

    def work() -> None:
        for row in range(COUNT):
            module.write_delivery(segment, table, row, scratch, handle, checksum, 0)

    assert module.write_delivery(segment, table, 0, scratch, handle, checksum, 0) > 0
    return work


def _put_unit(module: ModuleType) -> Callable[[], object]:
    units = bytearray(20 * COUNT)

    def work() -> None:
        for number in range(COUNT):
            module.put_unit(units, 20 * number, 1200 * number, 1200, 2598919)

    return work


def _select_units(module: ModuleType) -> Callable[[], object]:
    units, out = bytearray(20 * COUNT), array("q", bytes(16 * COUNT))
    for number in range(COUNT):
        module.put_unit(units, 20 * number, 1200 * number, 1200, 2598919)
    tags = array("q", [2598919])
    limits = module.PullLimits(0, 1 << 40, 0, COUNT, 1 << 20, 8, 65536)
    return partial(module.select_units, units, 0, len(units), out, COUNT, 1 << 20, 16_000, tags, limits)


def _put_rows(module: ModuleType) -> Callable[[], object]:
    segment, table = _walked()
    slots, entries = 1 << 10, 1 << 12
    index = bytearray(40 + 4 * slots + 20 * entries)

    def work() -> None:
        index[:40] = bytes(40)  # empties the file again
        for row in range(COUNT):
            module.put_rows(index, slots, entries, segment, table, row, row + 1, 0, 0)

    return work


def _apply_units(module: ModuleType) -> Callable[[], object]:
    """Reads units as a start does: each of another lite topic."""
    units = b"".join(encode_unit(LiteUnit(number, 100, number, 0, 0, 1)) for number in range(COUNT))
    columns = [array("q", bytes(8 * COUNT)) for _ in range(3)]
    times, checksums = array("I", bytes(4 * COUNT)), array("I", bytes(4 * COUNT))

    def work() -> None:
        assert module.check_units(units, memoryview(units), 0, len(units), COUNT, 0, crc32)[0] == len(units)
        module.apply_units(units, 0, len(units), 0, False, *columns, times, checksums)

    return work


def _find_lite(module: ModuleType) -> Callable[[], object]:
    """Finds the lite topic of each record."""
    properties = (
        b"TAGS\x01TagA\x02INNER_MULTI_DISPATCH\x01%LMQ%$agents$session-000042\x02INNER_MULTI_QUEUE_OFFSET\x017\x02"
    )
    segment, table = b"agents" + properties, new_table(COUNT)
    for row in range(0, len(table), ROW_WIDTH):
        table[row + RecordColumn.TOPIC_LEN] = len(b"agents")
        table[row + RecordColumn.PROPERTIES_POS] = len(b"agents")
        table[row + RecordColumn.PROPERTIES_LEN] = len(properties)

    def work() -> None:
        assert module.find_lite(segment, table, COUNT, QUEUE_OFFSET_MAX) == COUNT

    return work


def _write_lite_rows(module: ModuleType) -> Callable[[], object]:
    """Prepares messages of lite topics."""
    properties = b"UNIQ_KEY\x01AC1400023F5818B4AAC24E7D0A1B0000\x02__LITE_TOPIC\x01session-000042\x02WAIT\x01true\x02"
    source, table, rows = bytearray(256) + properties, new_table(COUNT), new_table(COUNT)
    for row in range(0, len(table), ROW_WIDTH):
        table[row + FrameColumn.BODY_LEN] = 256
        table[row + FrameColumn.PROPERTIES_POS] = 256
        table[row + FrameColumn.PROPERTIES_LEN] = len(properties)
    inspect_rows(source, table, 0, COUNT, BODY_BYTES_MAX, QUEUES)
    head, between = b"INNER_MULTI_DISPATCH\x01%LMQ%$agents$", b"\x02INNER_MULTI_QUEUE_OFFSET\x01"
    added, places, pairs = len(head) + len(between), array("q", bytes(16 * COUNT)), array("q", bytes(64))
    target, offsets = bytearray(COUNT * (len(source) + added + 100)), array("q", bytes(8 * COUNT))

    def work() -> None:
        assert module.find_plain_lite(source, table, 0, COUNT, True, added, places, pairs) == COUNT
        assert module.write_lite_rows(source, table, 0, COUNT, head, between, places, offsets, target, rows) > 0

    return work


def _next_light(module: ModuleType) -> Callable[[], object]:
    """Finds no record of a light queue among ordinary ones."""
    properties = b"UNIQ_KEY\x01AC1400023F5818B4AAC24E7D0A1B0000\x02KEYS\x01order-1\x02TAGS\x01TagA\x02WAIT\x01true\x02"
    table = new_table(COUNT)
    for row in range(0, len(table), ROW_WIDTH):
        table[row + RecordColumn.PROPERTIES_LEN] = len(properties)

    def work() -> None:
        assert module.next_light(properties, table, 0, COUNT) == COUNT

    return work


def _gather(module: ModuleType) -> Callable[[], object]:
    segment, table = _walked()
    out, offsets = bytearray(COUNT * BODY_BYTES), array("i", [0] * (COUNT + 1))
    columns = (RecordColumn.BODY_POS, RecordColumn.BODY_LEN)
    return partial(module.gather, segment, table, COUNT, *columns, out, offsets)


def _properties_json(module: ModuleType) -> Callable[[], object]:
    segment, table = _walked()
    return partial(module.properties_json, segment, table, COUNT, bytearray(COUNT * 512), array("i", [0] * (COUNT + 1)))


def _fill(module: ModuleType) -> Callable[[], object]:
    segment, table, plan, out = _laid_out()
    return partial(module.fill, segment, table, 0, COUNT, plan, out)


def _complete(module: ModuleType) -> Callable[[], object]:
    segment, table, plan, out = _laid_out()
    importlib.import_module("rucola.formats._columns_cy").fill(segment, table, 0, COUNT, plan, out)
    places = array("q", (0, 8, 16, 16 + 16 * len(COLUMNS)))
    return partial(module.complete, table, COUNT, TOPIC, plan, bytes(METADATA_BYTES), places, out)


def _pack_members(module: ModuleType) -> Callable[[], object]:
    text = b"KEYS\x01key12345678\x02TAGS\x01TagA\x02"
    columns: list[object] = []
    for one in (bytes(BODY_BYTES), text):
        columns += [array("i", [len(one) * row for row in range(COUNT + 1)]), one * COUNT]
    return partial(module.pack_members, *columns, bytes(ID_BYTES * COUNT), 0, 2 * COUNT * BODY_BYTES, COUNT)


def _encode_send_answers(module: ModuleType) -> Callable[[], object]:
    batch = send_batch(COUNT, BODY_BYTES)
    constants: tuple[bytes, ...] = SendAnswers(HOST, "DefaultRegion")._constants
    out = bytearray(module.send_answers_bytes_max(batch.table, 0, COUNT, sum(map(len, constants))))
    return partial(module.encode_send_answers, batch.source, batch.table, 0, COUNT, out, 0, *constants)


def _encode_send_head(module: ModuleType) -> Callable[[], object]:
    """Encodes properties and header, as our client does for each message."""
    queue = MessageQueue(TOPIC.decode(), "broker-a", 0)
    head = header_head(RequestCode.SEND_MESSAGE_V2, "bench", queue, "TBW102", QUEUES)
    messages = [{"TAGS": "TagA", "KEYS": "key", "UNIQ_KEY": f"7F000001000A{number:020X}"} for number in range(COUNT)]

    def work() -> None:
        for number, properties in enumerate(messages):
            text = module.encode_properties(properties)
            module.encode_send_head(head, 0, STORE_TIMESTAMP_MS, 0, text, 0, number, BODY_BYTES)

    return work


def _read_send_answers(module: ModuleType) -> Callable[[], object]:
    batch = send_batch(COUNT, BODY_BYTES)
    answers = SendAnswers(HOST, "DefaultRegion").encode(batch.source, batch.table, 0, COUNT)
    table = new_table(COUNT)
    scan_frames(answers, 0, len(answers), table, COUNT)
    return partial(module.read_send_answers, answers, table, COUNT)


def _chain_units(module: ModuleType) -> Callable[[], object]:
    """Reads the chain of timer log units with the same due time, newest first."""
    log = b"".join(
        TIMER_UNIT.struct.pack(TIMER_UNIT_BYTES, (number - 1) * TIMER_UNIT_BYTES, 0, 0, 0, number * 1400, 1400, 0, 0)
        for number in range(COUNT)
    )
    out = array("q", bytes(4 * 8 * COUNT))
    assert module.chain_units(log, 0, (COUNT - 1) * TIMER_UNIT_BYTES, out) == (COUNT, -1)
    return partial(module.chain_units, log, 0, (COUNT - 1) * TIMER_UNIT_BYTES, out)


def _check_bodies(module: ModuleType) -> Callable[[], object]:
    """Checks JSON bodies with numbers, texts and a nested object, which all fit."""
    kinds = {"number": LONG, "price": DOUBLE, "name": STRING, "open": BOOLEAN, "place": object_of({"x": DOUBLE})}
    body = b'{"number":1234567890,"price":12.5,"open":true,"place":{"x":1.25},"name":"'
    body += b"n" * (BODY_BYTES - len(body) - 2) + b'"}'
    starts = array("i", [len(body) * row for row in range(COUNT + 1)])
    slots = array("q", bytes(8 * module.slot_numbers()))
    scan = module.Scan(*Checker(object_of(kinds))._program, slots, False)
    outcomes, times = bytearray(COUNT), array("q")
    scan.check(body * COUNT, starts, COUNT, outcomes, times)
    assert set(outcomes) == {Outcome.FITS}
    return partial(scan.check, body * COUNT, starts, COUNT, outcomes, times)


def _walked() -> tuple[bytearray, Any]:
    segment, end = records(COUNT, BODY_BYTES)
    table = new_table(COUNT)
    walk = importlib.import_module("rucola.formats._message_cy").walk_records
    walk(segment, memoryview(segment), 0, end, 0, table, COUNT, crc32, 4)
    return segment, table


def _laid_out() -> tuple[bytearray, Any, Any, bytearray]:
    """Returns records, their rows, and a plan of all kinds of columns with the buffer for it."""
    segment, table = _walked()
    plan = new_plan(COLUMNS)
    lay_out = importlib.import_module("rucola.formats._columns_cy").lay_out
    return segment, table, plan, bytearray(lay_out(table, COUNT, COUNT, 0, 1, plan, METADATA_BYTES))


def _find_frames(module: ModuleType) -> Callable[[], object]:
    frames = bytearray(b"".join(requests(COUNT // 2)))
    table = array("q", bytes(8 * ROW_COLUMNS * COUNT))
    return partial(module.find_frames, frames, 0, len(frames), table, COUNT, FRAME_BYTES_DEFAULT)


def _decode_block(module: ModuleType) -> Callable[[], object]:
    """Decodes blocks of the official Java client, each with five new entries."""
    encoder = hpack.Encoder()
    blocks = [bytearray(encoder.encode(request_fields(number))) for number in range(COUNT)]
    names = module.WantedNames(WANTED)
    text, fields = bytearray(1 << 17), array("q", bytes(8 * names.width))

    def work() -> None:
        decoder = module.HeaderDecoder(names, 4096, 16384, text, fields)
        for block in blocks:
            assert decoder.decode(block, 0, len(block), 0, 0, False) == 0

    return work


def _read(module: ModuleType) -> Callable[[], object]:
    """Handles requests whose fields are decoded by the kernel of the other workload, and answers them."""
    limits = Http2Limits()
    space = EventSpace(WANTED, limits)
    source = bytearray(b"".join(requests(COUNT // 2)))
    block = encode_block([(b":status", b"200")])

    def work() -> None:
        decoder = HeaderDecoder(space.names, 4096, 16384, space.text, space.fields)
        sizes = (COUNT, FRAME_BYTES_DEFAULT, space.width, len(space.text), 4096, 1 << 20, 1 << 22, 64)
        exchange = module.StreamExchange(decoder, space.rows, space.fields, *sizes)
        exchange.is_plain = True
        assert exchange.read(source, 0, len(source)) == COUNT
        for stream in range(1, COUNT, 2):
            exchange.send_headers(stream, block)
            exchange.send_data(stream, block)
            exchange.send_headers(stream, block, True)
        exchange.data_to_send()

    return work


WORKLOADS: tuple[tuple[str, str, Callable[[ModuleType], Callable[[], object]]], ...] = (
    ("rucola.protocol._frame_cy", "scan_frames", _scan_frames),
    ("rucola.formats._send_cy", "inspect_rows", _inspect_rows),
    ("rucola.formats._message_cy", "encode_rows", _encode_rows),
    ("rucola.protocol._answer_cy", "encode_send_answers", _encode_send_answers),
    ("rucola.protocol._batch_members_cy", "pack_members", _pack_members),
    ("rucola.protocol._send_request_cy", "encode_send_head", _encode_send_head),
    ("rucola.protocol._send_request_cy", "read_send_answers", _read_send_answers),
    ("rucola.formats._message_cy", "walk_records", _walk_records),
    ("rucola.formats._queue_cy", "put_unit", _put_unit),
    ("rucola.formats._queue_cy", "select_units", _select_units),
    ("rucola.formats._index_cy", "put_rows", _put_rows),
    ("rucola.formats._lite_cy", "apply_units", _apply_units),
    ("rucola.formats._lite_rows_cy", "find_lite", _find_lite),
    ("rucola.formats._lite_rows_cy", "next_light", _next_light),
    ("rucola.formats._lite_send_cy", "write_lite_rows", _write_lite_rows),
    ("rucola.formats._columns_cy", "gather", _gather),
    ("rucola.formats._columns_cy", "properties_json", _properties_json),
    ("rucola.formats._columns_cy", "fill", _fill),
    ("rucola.formats._batch_cy", "complete", _complete),
    ("rucola.formats._timer_cy", "chain_units", _chain_units),
    ("rucola.http2._frames_cy", "find_frames", _find_frames),
    ("rucola.http2._hpack_cy", "HeaderDecoder.decode", _decode_block),
    ("rucola.http2._exchange_cy", "StreamExchange.read", _read),
    ("rucola.proxy._send_cy", "read_send", _read_send),
    ("rucola.proxy._delivery_cy", "write_delivery", _write_delivery),
    ("rucola.arrow._json_cy", "Scan.check", _check_bodies),
)
