"""Messages as a file, for scripts and for whoever takes them along."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rucola.console.messages.export import EXPORT_S, FORMATS, ROWS_MAX, export
from rucola.console.messages.search import ScanQuery
from rucola.console.times import time_ms
from rucola.console.visit import BadQueryError, Visit

OF_VISITOR_MAX: Final = 2
EXPORTS_MAX: Final = 6
_SLOW_S: Final = 60.0
"""Seconds more than ``EXPORT_S`` that a visitor has to take the lines."""


@dataclass(frozen=True, slots=True)
class ExportQuery:
    """The messages that are exported, as lines. The last line says why it stopped, and where to go on.

    Attributes:
        topic: their topic; ``%DLQ%GROUP`` for dead letters.
        begin: store time from which on: ms since 1970, or ISO 8601 (UTC without a zone); empty for the first one.
        end: store time up to which.
        tag: only messages with this tag.
        text: only messages whose body or properties contain this text.
        form: ``jsonl`` or ``csv``.
        count: rows that are enough, 1 to 100,000.
        cursor: where an earlier export stopped.
    """

    topic: str
    begin: str = ""
    end: str = ""
    tag: str = ""
    text: str = ""
    form: str = "jsonl"
    count: int = 10_000
    cursor: str = ""


class ExportResponse(StreamingResponse):
    """An export. It gives its place back when it ends, however it ends.

    Args:
        lines: the lines.
        give_back: gives the place back.
    """

    def __init__(self, lines: AsyncIterator[bytes], form: str, name: str, give_back: Callable[[], None]) -> None:
        headers = {"content-disposition": f'attachment; filename="{name}.{form}"'}
        super().__init__(lines, media_type=FORMATS[form], headers=headers)
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it. A visitor that takes the lines too slowly loses the connection."""
        try:
            async with asyncio.timeout(EXPORT_S + _SLOW_S):
                await super().__call__(scope, receive, send)
        finally:
            self._give_back()


async def export_messages(visit: Visit, query: ExportQuery) -> ExportResponse:
    """Exports messages.

    Raises:
        BadQueryError: a parameter is not allowed.
        TooManyError: too many exports run.
    """
    if query.form not in FORMATS:
        raise BadQueryError("form", query.form, ", ".join(FORMATS))
    if not 1 <= query.count <= ROWS_MAX:
        raise BadQueryError("count", str(query.count), f"1 to {ROWS_MAX}")
    if query.text and not visit.may_see_bodies:  # what matches would tell the bodies
        raise BadQueryError("text", query.text, "nothing, for an account that may not see bodies")
    begin, end = time_ms("begin", query.begin), time_ms("end", query.end)
    scanned = ScanQuery(query.topic, begin or 0, end, query.tag, query.text, query.count, query.cursor)
    snapshot = await visit.watch.fresh()
    lines = export(visit.watch.admin, snapshot, scanned, query.form, visit.may_see_bodies)
    visitor, places = visit.account.name or visit.peer, visit.desks.exports
    places.take(visitor)
    try:
        first = await anext(lines)
    except BaseException as error:
        places.give_back(visitor)
        if isinstance(error, ValueError):
            raise BadQueryError("cursor", query.cursor, "the cursor of an earlier export") from None
        raise

    async def all_lines() -> AsyncIterator[bytes]:
        yield first
        async for line in lines:
            yield line

    name = re.sub(r"[^A-Za-z0-9._-]", "_", query.topic)[:100] or "messages"
    return ExportResponse(all_lines(), query.form, name, lambda: places.give_back(visitor))
