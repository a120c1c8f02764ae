"""Cuts queue ranges down to the messages that can pass a filter.

A range is cut into pieces. Pieces that the filter excludes by topic, queue, queue offset or store time are dropped. The
remaining pieces are cut again while each round drops at least a quarter of the messages. The store times of a queue are
assumed to increase, except for backward steps of the broker's clock of up to ``CLOCK_STEP_MS``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from rucola.arrow.catalog import Catalog
from rucola.arrow.filters import Bounds, Node, columns_of, may_match
from rucola.arrow.offsets import Mark
from rucola.arrow.ranges import QueueRange
from rucola.common.message_queue import MessageQueue
from rucola.filter.tag import TagExpression, parse_tag_expression
from rucola.formats.column_plan import TIMES_MS

CLOCK_STEP_MS = 60_000
CUTTING = frozenset(("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"))
"""Columns whose conditions can exclude pieces."""
PARTS = 16
PARTS_TOTAL = 4096
"""Largest number of pieces over all ranges in one round, unless there are more ranges."""
PART_ROWS_MIN = 256
ROUNDS_MAX = 8
TIMES_MAX = 1024
"""Largest number of messages whose store times are looked at to find the least and the greatest."""
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MS = 1_000_000
_STEP = CLOCK_STEP_MS * _MS


def select_ranges(node: Node, ranges: Sequence[QueueRange], catalog: Catalog) -> list[QueueRange]:
    """The parts of ``ranges`` that may hold messages which pass the filter ``node``."""
    columns = columns_of(node)
    kept = list(ranges)
    if columns is not None and CUTTING.isdisjoint(columns):
        return kept
    timed = columns is None or "storeTimestamp" in columns
    kept = [one for one in kept if may_match(node, _bounds(one))]
    for _ in range(ROUNDS_MAX):
        before = sum(one.count for one in kept)
        parts = max(1, min(PARTS, PARTS_TOTAL // max(1, len(kept))))
        kept = [part for one in kept for part in _selected(node, one, parts, catalog if timed else None)]
        if sum(one.count for one in kept) * 4 > before * 3:
            break
    return kept


def times_of_ranges(ranges: Sequence[QueueRange], catalog: Catalog) -> tuple[int, int] | None:
    """Least and greatest store time of the messages, in ms; None if a time is not known, or if one is less than that of
    an earlier message.

    Up to ``TIMES_MAX`` messages are looked at, or two of each range if that is more: all of a small topic. Otherwise a
    clock that stepped back between two of them is not noticed.
    """
    parts = max(1, TIMES_MAX // len(ranges) - 1)
    marks: dict[str, list[Mark]] = {}
    for one in ranges:
        for part in range(min(parts, one.count - 1) + 1):
            at = one.start + (one.count - 1) * part // max(1, min(parts, one.count - 1))
            mark = catalog.marks({one.queue: at}).get(one.queue)
            if mark is None or not _is_plain(mark):
                return None
            marks.setdefault(one.broker_name, []).append(mark)
    for own in marks.values():
        own.sort(key=lambda mark: mark.physical_offset)
        if any(before.store_timestamp_ms > after.store_timestamp_ms for before, after in pairwise(own)):
            return None
    firsts, lasts = [own[0] for own in marks.values()], [own[-1] for own in marks.values()]
    return min(mark.store_timestamp_ms for mark in firsts), max(mark.store_timestamp_ms for mark in lasts)


def tag_expression(tags: Collection[object]) -> TagExpression | None:
    """The expression that chooses messages with one of ``tags``; None if a tag cannot be in an expression."""
    names = sorted(tag for tag in tags if isinstance(tag, str))
    if len(names) < len(tags) or not names or not all(map(_TAG.fullmatch, names)):
        return None
    return parse_tag_expression("||".join(names))


def _selected(node: Node, one: QueueRange, parts: int, catalog: Catalog | None) -> list[QueueRange]:
    """The pieces of one range that may hold matching messages; adjacent pieces are joined."""
    parts = max(1, min(parts, one.count // PART_ROWS_MIN))
    cuts = [one.start + one.count * number // parts for number in range(parts + 1)]
    times: list[int | None] = [None] * len(cuts)
    if catalog is not None:
        times = [_time(catalog, one.queue, at) for at in (*cuts[:-1], one.end - 1)]
    found: list[QueueRange] = []
    for (start, end), (first, last) in zip(pairwise(cuts), pairwise(times), strict=True):
        bounds = _bounds(QueueRange(one.queue, start, end))
        if first is not None and last is not None:
            bounds["storeTimestamp"] = (first - _STEP, last + _STEP)
        if not may_match(node, bounds):
            continue
        if found and found[-1].end == start:
            found[-1] = QueueRange(one.queue, found[-1].start, end)
        else:
            found.append(QueueRange(one.queue, start, end))
    return found


def _bounds(one: QueueRange) -> dict[str, Bounds]:
    queue = one.queue
    return {
        "topic": (queue.topic, queue.topic),
        "brokerName": (queue.broker_name, queue.broker_name),
        "queueId": (queue.queue_id, queue.queue_id),
        "queueOffset": (one.start, one.end - 1),
    }


def _time(catalog: Catalog, queue: MessageQueue, queue_offset: int) -> int | None:
    """Store time of a message in nanoseconds; None if it is not known."""
    mark = catalog.marks({queue: queue_offset}).get(queue)
    return mark.store_timestamp_ms * _MS if mark is not None and _is_plain(mark) else None


def _is_plain(mark: Mark) -> bool:
    """Whether the store time is known, and one that a column can have."""
    return 0 <= mark.store_timestamp_ms <= TIMES_MS[1]
