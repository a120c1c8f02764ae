"""Uses the filters of a batch query to read less: leaves out topics, queues and offsets, selects tags, looks up keys.

This works only with ``spark.sql.python.filterPushdown.enabled`` and option ``pushFilters``. Spark 4.3 keeps one plan
for each ``load()``, in ``PythonDataSourceV2.readInfo``, based on the filters that it pushed last. All reads of the same
``load()`` use that plan. For a read without filters, Spark does not call Python again, so the source cannot replace the
plan. Therefore each read needs its own ``load()``. Every filter is handed back to Spark, which applies all of them to
the rows that are read. This module may therefore keep messages that the query does not want, but must never leave out a
message that it wants. The store times of a queue are assumed to increase, except when its broker's clock steps back by
up to ``CLOCK_STEP_MS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from rucola.arrow.key_lookup import LOOKUP_KEYS_MAX, KeyLookup, lookup_of, lookup_of_columns
from rucola.arrow.lite_condition import (
    EVERY_LITE,
    LITE_TOPIC,
    LiteCondition,
    at_least,
    at_most,
    one_of,
    starts_with,
)
from rucola.arrow.offsets import OFFSET_MAX
from rucola.arrow.ranges import QueueRange
from rucola.arrow.selection import CLOCK_STEP_MS, tag_expression
from rucola.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from rucola.arrow.catalog import Catalog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KAFKA_NAMES = {"key": "keys", "partition": "queueid", "offset": "queueoffset", "timestamp": "storetimestamp"}


@dataclass(frozen=True)
class Wanted:
    """Conditions on messages, derived from a query's filters; None means no condition.

    Offsets and times are in the half-open range from ``_min`` to ``_end``.
    """

    topics: frozenset[object] | None = None
    broker_names: frozenset[object] | None = None
    queue_ids: frozenset[object] | None = None
    tags: frozenset[object] | None = None
    keys: frozenset[object] | None = None
    msg_ids: frozenset[object] | None = None
    lite: LiteCondition = EVERY_LITE
    offset_min: int = 0
    offset_end: int = OFFSET_MAX
    time_min_ms: int | None = None
    time_end_ms: int | None = None


def wanted_by(filters: Iterable[Filter]) -> Wanted:
    """The conditions of all ``filters`` together; filters that are not understood are ignored."""
    wanted = Wanted()
    for one in filters:
        if getattr(one, "attribute", ("",))[0].lower() == LITE_TOPIC.lower():
            wanted = replace(wanted, lite=wanted.lite & _lite(one))
        elif isinstance(
            one, EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            name = one.attribute[0].lower() if len(one.attribute) == 1 else ""
            name = _KAFKA_NAMES.get(name, name)
            if name in _SETS:
                wanted = _with_values(wanted, _SETS[name], one)
            elif name == "queueoffset":
                wanted = _with_offsets(wanted, one)
            elif name == "storetimestamp":
                wanted = _with_times(wanted, one)
    return wanted


def cut_ranges(wanted: Wanted, ranges: Sequence[QueueRange], catalog: Catalog) -> list[QueueRange]:
    """The parts of ``ranges`` that may hold ``wanted`` messages."""
    kept = []
    for one in ranges:
        queue = one.queue
        if not (
            _has(wanted.topics, queue.topic)
            and _has(wanted.broker_names, queue.broker_name)
            and _has(wanted.queue_ids, queue.queue_id)
        ):
            continue
        start, end = max(one.start, wanted.offset_min), min(one.end, wanted.offset_end)
        if start < end and wanted.time_min_ms is not None:
            start = max(start, catalog.offset_at(queue, max(0, wanted.time_min_ms - CLOCK_STEP_MS)))
        if start < end and wanted.time_end_ms is not None:
            end = min(end, catalog.offset_at(queue, max(0, wanted.time_end_ms + CLOCK_STEP_MS)))
        if start < end:
            kept.append(QueueRange(queue, start, end))
    return kept


def lookup(wanted: Wanted, options: SourceOptions) -> KeyLookup | None:
    """Keys whose index entries lead to all wanted messages; None if the ranges must be read."""
    if options.keys:
        usable = options.use_index is not False and len(options.keys) <= LOOKUP_KEYS_MAX
        return lookup_of(options.keys) if usable else None
    return lookup_of_columns(wanted.keys, wanted.msg_ids) if options.use_index else None


def narrowed(options: SourceOptions, wanted: Wanted) -> SourceOptions:
    """Returns ``options``, limited to the wanted lite topics, and to the wanted tags unless option ``subExpression``
    already selects messages.
    """
    if not wanted.lite.matches_all:
        options = replace(options, lite=options.lite & wanted.lite)
    if wanted.tags is None or not options.expression.matches_all:
        return options
    expression = tag_expression(wanted.tags)
    return options if expression is None else replace(options, expression=expression)


_SETS = {
    "topic": "topics",
    "brokername": "broker_names",
    "queueid": "queue_ids",
    "tags": "tags",
    "keys": "keys",
    "msgid": "msg_ids",
}


def _with_values(wanted: Wanted, field: str, one: Filter) -> Wanted:
    values: frozenset[object]
    if isinstance(one, In):
        values = frozenset(one.value)
    elif isinstance(one, EqualTo | EqualNullSafe):
        values = frozenset([one.value])
    else:
        return wanted
    values -= {None}
    before: frozenset[object] | None = getattr(wanted, field)
    if not values:  # the filter compares only with null, so it is left to Spark
        return wanted
    chosen: Any = {field: values if before is None else values & before}
    return replace(wanted, **chosen)


def _lite(one: Filter) -> LiteCondition:
    """What a filter says about column ``liteTopic``."""
    if isinstance(one, IsNull | IsNotNull):
        return LiteCondition(is_null=isinstance(one, IsNull))
    if isinstance(one, In):
        return one_of(one.value)
    value = getattr(one, "value", None)
    if not isinstance(value, str):
        return EVERY_LITE
    if isinstance(one, EqualTo | EqualNullSafe):
        return one_of([value])
    if isinstance(one, StringStartsWith):
        return starts_with(value)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return at_least(value)
    return at_most(value) if isinstance(one, LessThan | LessThanOrEqual) else EVERY_LITE


def _with_offsets(wanted: Wanted, one: Filter) -> Wanted:
    bounds = _bounds(one, [value for value in _values(one) if type(value) is int])
    least, end = (bounds[0], bounds[1]) if bounds else (None, None)
    return replace(
        wanted,
        offset_min=max(wanted.offset_min, least) if least is not None else wanted.offset_min,
        offset_end=min(wanted.offset_end, end) if end is not None else wanted.offset_end,
    )


def _with_times(wanted: Wanted, one: Filter) -> Wanted:
    times = [value for value in _values(one) if isinstance(value, datetime) and value.utcoffset() is not None]
    bounds = _bounds(one, [(time - _EPOCH) // timedelta(milliseconds=1) for time in times])
    least, end = (bounds[0], bounds[1]) if bounds else (None, None)
    if least is not None and wanted.time_min_ms is not None:
        least = max(least, wanted.time_min_ms)
    if end is not None and wanted.time_end_ms is not None:
        end = min(end, wanted.time_end_ms)
    return replace(
        wanted,
        time_min_ms=least if least is not None else wanted.time_min_ms,
        time_end_ms=end if end is not None else wanted.time_end_ms,
    )


def _values(one: Filter) -> list[object]:
    """The values with which a filter compares a column."""
    if isinstance(one, In):
        return list(one.value)
    return [getattr(one, "value", None)]


def _bounds(one: Filter, values: list[int]) -> tuple[int | None, int | None] | None:
    """Returns the lower bound of the values that pass a filter, and their upper bound plus 1.

    A bound that the filter does not have is None. The result is None if the filter's values cannot be used. Times in
    filters are rounded down to milliseconds, so ``<`` and ``>`` are treated as ``<=`` and ``>=``.
    """
    if not values or len(values) < len([value for value in _values(one) if value is not None]):
        return None
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return values[0], None
    if isinstance(one, LessThan | LessThanOrEqual):
        return None, values[0] + 1
    return min(values), max(values) + 1


def _has(values: frozenset[object] | None, value: object) -> bool:
    return values is None or value in values
