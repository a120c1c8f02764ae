"""Messages as lines of JSON or CSV, made while they are read, and bounded. The last line says where it stopped."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from rucola.client.admin import AdminClient
from rucola.common.json_library import orjson
from rucola.common.message import MessageExt
from rucola.console.cluster.snapshot import ClusterSnapshot
from rucola.console.messages.rows import MessageRow, row_of
from rucola.console.messages.search import ScanQuery, Stop, scan

FORMATS: Final = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
"""Names of the formats, and their types."""
ROWS_MAX: Final = 100_000
BYTES_MAX: Final = 256 * 1024 * 1024
EXPORT_S: Final = 120.0
_PAGE: Final = 200
_COLUMNS: Final = (
    "topic", "broker", "queue", "offset", "offset_id", "unique_key", "keys", "tag", "stored_ms", "born_ms", "size",
    "retries",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class ExportEnd:
    """Why an export stopped, as its last line tells.

    Attributes:
        stopped: ``end`` (everything was exported), ``limit`` (rows), ``bytes``, ``time`` or ``server``.
        cursor: where to go on; empty at the end.
    """

    stopped: str
    rows: int
    scanned: int
    cursor: str
    why: str = ""


async def export(
    admin: AdminClient, snapshot: ClusterSnapshot, query: ScanQuery, form: str, may_see_bodies: bool
) -> AsyncIterator[bytes]:
    """The messages that a scan finds, as lines. ``query.count``: rows that are enough; a few more may
    come, so that the cursor loses none.

    Args:
        form: one of ``FORMATS``.
        may_see_bodies: whether bodies, keys and properties are in the lines.

    Raises:
        ValueError: the cursor is none of a scan of this topic.
    """
    until_s = asyncio.get_running_loop().time() + EXPORT_S
    rows = scanned = size = 0
    cursor, end = query.cursor, None
    if form == "csv":
        yield _csv([*_COLUMNS, "properties", "body"])
    while end is None:
        part = replace(query, cursor=cursor, count=min(_PAGE, query.count - rows))
        found = await scan(admin, snapshot, part)
        chunk = await asyncio.to_thread(_lines, found.messages, form, may_see_bodies)
        rows, scanned, size = rows + len(found.messages), scanned + found.scanned, size + len(chunk)
        cursor = found.cursor
        if chunk:
            yield chunk
        why = found.unknown[0].text if found.unknown else ""
        if found.stop is Stop.SERVER:
            end = ExportEnd("server", rows, scanned, cursor, why)
        elif found.stop is Stop.END:
            end = ExportEnd("end", rows, scanned, "")
        elif rows >= query.count:
            end = ExportEnd("limit", rows, scanned, cursor)
        elif size >= BYTES_MAX:
            end = ExportEnd("bytes", rows, scanned, cursor)
        elif asyncio.get_running_loop().time() >= until_s:
            end = ExportEnd("time", rows, scanned, cursor)
    yield _last(end, form)


def _lines(messages: Iterable[MessageExt], form: str, may_see_bodies: bool) -> bytes:
    make = _csv_line if form == "csv" else _json_line
    return b"".join(make(message, row_of(message, may_see_bodies), may_see_bodies) for message in messages)


def _json_line(message: MessageExt, row: MessageRow, may_see_bodies: bool) -> bytes:
    line: dict[str, Any] = {name: getattr(row, name) for name in _COLUMNS}
    line["offset"], line["size"] = str(row.offset), str(row.size)
    if may_see_bodies:
        line["properties"] = dict(message.properties)
        name, text = _body(message.body)
        line[name] = text
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _csv_line(message: MessageExt, row: MessageRow, may_see_bodies: bool) -> bytes:
    cells = ["" if (value := getattr(row, name)) is None else str(value) for name in _COLUMNS]
    if may_see_bodies:
        name, text = _body(message.body)
        cells += [orjson.dumps(dict(message.properties)).decode(), text if name == "body" else f"base64:{text}"]
    return _csv(cells)


def _csv(cells: Iterable[str]) -> bytes:
    """A line of CSV. A spreadsheet would take some texts of strangers for formulas: a quote in front prevents it."""
    text = io.StringIO()
    csv.writer(text).writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    return text.getvalue().encode("utf-8", "replace")


def _body(body: bytes) -> tuple[str, str]:
    """Name and value of a body: text if it is, otherwise base64."""
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "body_base64", base64.b64encode(body).decode()


def _last(end: ExportEnd, form: str) -> bytes:
    told = {"stopped": end.stopped, "rows": end.rows, "scanned": end.scanned, "cursor": end.cursor, "why": end.why}
    if form == "csv":
        return _csv([f"# {orjson.dumps(told).decode()}"])
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)
