"""What a slave needs of its master's lite topics besides the log: how far each is deleted, and the offsets of groups.

A slave asks for it by request 43 with the field ``liteRow``, the number of a name from which on it wants rows. The
response has the field ``liteNext``, where the next page begins, -1 after the last one; the body is a JSON list of
``[name, start, {group: offset}]``, the name in ISO 8859-1. Names without deletions and offsets are left out. A slave
takes so many pages with each copy of the tables, one after the other, and then begins anew: so nothing is remembered
between two requests, and any number of lite topics takes bounded work.

RocketMQ ignores the field, and its slaves do not send it: they get all offsets, if there are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.numbers import INT64_MAX
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.remoting.fairness.steps import Steps

if TYPE_CHECKING:
    from rucola.broker.lite.offsets import LiteOffsets
    from rucola.store.message_store import MessageStore

ROW = "liteRow"
PAGE_ROWS = 4096
"""Names that are looked at for a page."""
PAGES_A_COPY = 64
_NAMES_A_STEP = 64
_GROUP_BYTES_MAX = 255
"""The file of offsets has one byte for the length of a group's name."""


def page(store: MessageStore, offsets: LiteOffsets, first: int) -> Steps[tuple[bytes, int]]:
    """Returns the rows of a page that begins at name number ``first``, and where the next one begins."""
    topics, rows = store.lite, []
    end = 0 if topics is None else len(topics.names)
    last = min(max(first, 0) + PAGE_ROWS, end)
    for lite_id in range(max(first, 0), last):
        assert topics is not None
        if topics.columns.nexts[lite_id]:
            start, found = topics.columns.starts[lite_id], offsets.offsets_of(lite_id)
            if start or found:
                rows.append((topics.names.name(lite_id).decode("latin-1"), start, found))
        if lite_id % _NAMES_A_STEP == 0:
            yield
    return fastjson.dumps(rows), -1 if last == end else last


def take(store: MessageStore, offsets: LiteOffsets, body: bytes) -> Steps[None]:
    """Takes a page over. The log must have what the master's log had when it was asked. Lite topics that are not
    dispatched so far are left for the next time.

    Raises:
        FormatError: the body is no page.
        DiskFullError: no space; the next time takes the rest.
    """
    topics, rows = store.lite, fastjson.loads(body)
    if not isinstance(rows, list) or topics is None:
        raise FormatError("page of lite topics", 0, "a list", type(rows).__name__)
    for number, row in enumerate(rows, 1):
        name, start, theirs = _row(row)
        lite_id = topics.names.find(name)
        if lite_id >= 0 and start <= topics.columns.nexts[lite_id]:
            if start > topics.columns.starts[lite_id]:
                store.delete_lite_to(name, start)
            offsets.follow_row(lite_id, theirs, start)
        if number % _NAMES_A_STEP == 0:
            yield


def _row(row: object) -> tuple[bytes, int, dict[str, int]]:
    match row:
        case [str(name), int(start), dict(theirs)]:
            fits = all(isinstance(it, int) and 0 <= it <= INT64_MAX for it in (start, *theirs.values()))
            if fits and all(0 < len(group.encode("utf-8", "replace")) <= _GROUP_BYTES_MAX for group in theirs):
                return name.encode("latin-1", "replace"), start, theirs
    raise FormatError("page of lite topics", 0, "[name, start, {group: offset}]", repr(row)[:80])
