"""Formats messages as lines of text. The functions read the rows of records directly, because a store has too many
messages to create an object for each.
"""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from functools import lru_cache

from rucola.cli.store_text import body_text, shown, time_text
from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.hosts import host_text
from rucola.common.json_library import orjson
from rucola.common.sysflag import MessageSysFlag
from rucola.formats._columns_cy import properties_json
from rucola.formats.properties import decode_properties
from rucola.store.inspect.search import unpacked_body
from rucola.store.offline.rows import SegmentRows

_V6_BORN, _V6_STORE = int(MessageSysFlag.BORN_HOST_V6), int(MessageSysFlag.STORE_HOST_V6)
_LINE = (
    b'{"topic":%b,"queue_id":%d,"queue_offset":%d,"physical_offset":%d,"size":%d,"flag":%d,"sys_flag":%d,'
    b'"born_timestamp_ms":%d,"born_host":"%b","store_timestamp_ms":%d,"store_host":"%b","reconsume_times":%d,'
    b'"prepared_transaction_offset":%d,"properties":%b,"body":"%b"}\n'
)
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def json_lines(rows: SegmentRows) -> bytes:
    """One JSON object per line; the member names are stable."""
    view, table, chosen = rows
    properties, ends = _properties(rows)
    parts = []
    for row in chosen:
        (
            _, size, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_at, stored_ms, store_at,
            times, prepared, body_at, body_len, topic_at, topic_len,
        ) = table[row * ROW_WIDTH : row * ROW_WIDTH + RecordColumn.PROPERTIES_POS]  # fmt: skip
        parts.append(
            _LINE
            % (
                _topic_json(view[topic_at : topic_at + topic_len].tobytes()),
                queue_id,
                queue_offset,
                physical_offset,
                size,
                flag,
                sys_flag,
                born_ms,
                _host(view[born_at : born_at + (20 if sys_flag & _V6_BORN else 8)].tobytes()),
                stored_ms,
                _host(view[store_at : store_at + (20 if sys_flag & _V6_STORE else 8)].tobytes()),
                times,
                prepared,
                properties[ends[row] : ends[row + 1]],
                b2a_base64(view[body_at : body_at + body_len], newline=False),
            )
        )
    return b"".join(parts)


def text_lines(rows: SegmentRows, styled: bool) -> str:
    """For people: the location of a message, then its properties and its body, one per line.

    Args:
        styled: whether the terminal supports bold and dim text.
    """
    view, table, chosen = rows
    bold, dim, plain = (_BOLD, _DIM, _PLAIN) if styled else ("", "", "")
    lines = []
    for row in chosen:
        (
            _, _, _, queue_id, _, queue_offset, physical_offset, sys_flag, _, _, stored_ms, _, _, _, body_at, body_len,
            topic_at, topic_len, text_at, text_len,
        ) = table[row * ROW_WIDTH : row * ROW_WIDTH + RecordColumn.TAGS_POS]  # fmt: skip
        topic = _shown_topic(view[topic_at : topic_at + topic_len].tobytes())
        place = f"{bold}{topic}/{queue_id}/{queue_offset}{plain}"
        lines.append(f"{place} at {physical_offset}, {_time(stored_ms)}\n")
        for name, value in decode_properties(view[text_at : text_at + text_len]).items():
            lines.append(f"  {dim}{shown(name)}{plain} {shown(value)}\n")
        body = unpacked_body(view[body_at : body_at + body_len].tobytes(), sys_flag)
        lines.append(f"  {body_text(body)}\n")
    return "".join(lines)


def _properties(rows: SegmentRows) -> tuple[bytearray, array[int]]:
    """Returns the properties of all rows as consecutive JSON objects, and the end position of each object."""
    count = rows.chosen[-1] + 1 if rows.chosen else 0
    out, ends = bytearray(1 << 16), array("i", bytes(4 * (count + 1)))
    needed = properties_json(rows.view, rows.table, count, out, ends)
    if needed > len(out):
        out = bytearray(needed)
        properties_json(rows.view, rows.table, count, out, ends)
    return out, ends


@lru_cache(maxsize=1024)
def _topic_json(topic: bytes) -> bytes:
    return orjson.dumps(topic.decode("utf-8", "replace"))


@lru_cache(maxsize=1024)
def _shown_topic(topic: bytes) -> str:
    return shown(topic.decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _host(host: bytes) -> bytes:
    return host_text(host).encode()


_time = lru_cache(maxsize=1024)(time_text)
