"""Messages for measurements: send frames as our client writes them, and the same messages as log records."""

from __future__ import annotations

import random
from array import array

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.common.message_queue import MessageQueue
from rucola.formats._message_cy import RecordPlacement, encode_rows
from rucola.formats._send_cy import inspect_rows
from rucola.formats.checksum import crc32
from rucola.protocol._frame_cy import scan_frames
from rucola.protocol.codes import RequestCode
from rucola.protocol.frame import FrameBatch
from rucola.protocol.send_request import encode_send_head, header_head, properties_json, properties_text

TOPIC = b"bench"
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
SUFFIX = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
QUEUES = 4
BODY_BYTES_MAX = 4 << 20
STORE_TIMESTAMP_MS = 1_700_000_000_000


def body_of(size: int) -> bytes:
    """Returns a body that does not compress; it is the same in each run."""
    return random.Random(1).randbytes(size)


def send_frames(count: int, body_bytes: int, topic: str = TOPIC.decode(), first: int = 0) -> bytes:
    """Makes ``count`` consecutive send requests, numbered from ``first`` on, spread over four queues."""
    body = body_of(body_bytes)
    frames = []
    for number in range(first, first + count):
        queue = MessageQueue(topic, "broker-a", number % QUEUES)
        head = header_head(RequestCode.SEND_MESSAGE_V2, "bench", queue, "TBW102", QUEUES)
        properties = {"KEYS": f"key{number}", "TAGS": "TagA", "UNIQ_KEY": f"7F000001000A{number:020X}", "WAIT": "true"}
        text = properties_json(properties_text(properties))
        frames.append(encode_send_head(head, 0, STORE_TIMESTAMP_MS, 0, text, 0, number + 1, len(body)) + body)
    return b"".join(frames)


def send_batch(count: int, body_bytes: int, first: int = 0) -> FrameBatch:
    """Returns the frames as the broker gets them from one large read; ``inspect_rows`` has read their properties."""
    source = bytearray(send_frames(count, body_bytes, first=first))
    table = new_table(count)
    rows, end, _, _ = scan_frames(source, 0, len(source), table, count)
    assert rows == count and end == len(source)
    inspect_rows(source, table, 0, count, BODY_BYTES_MAX, QUEUES)
    return FrameBatch(source, memoryview(source), table, count)


def records(count: int, body_bytes: int) -> tuple[bytearray, int]:
    """Returns a buffer with the messages as consecutive records, and their number of bytes."""
    batch = send_batch(count, body_bytes)
    segment = bytearray(count * (body_bytes + 512))
    encode_rows(
        batch.source,
        batch.view,
        batch.table,
        0,
        count,
        segment,
        memoryview(segment),
        RecordPlacement(0, len(segment), 0, STORE_TIMESTAMP_MS, True),
        TOPIC,
        array("q", [0] * QUEUES),
        HOST,
        HOST,
        SUFFIX,
        crc32,
    )
    last = (count - 1) * ROW_WIDTH
    return segment, batch.table[last + FrameColumn.PHYSICAL_OFFSET] + batch.table[last + FrameColumn.RECORD_SIZE]
