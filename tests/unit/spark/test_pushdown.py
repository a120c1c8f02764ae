"""Filters reduce what is read, but never leave out a row that passes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from tests.sizes import size
from tests.unit.arrow.dict_catalog import DictCatalog

from rucola.arrow.catalog import Bounds
from rucola.arrow.ranges import QueueRange
from rucola.common.message_queue import MessageQueue
from rucola.spark import pushdown
from rucola.spark.options import parse_options
from rucola.spark.pushdown import Wanted, cut_ranges, narrowed, wanted_by

QUEUES = [MessageQueue(topic, broker, queue) for topic in "tu" for broker in "ab" for queue in (0, 1)]
RANGES = [QueueRange(queue, 10, 40) for queue in QUEUES]
OPTIONS = parse_options({"storePath": "d", "subscribePattern": ".*"})
CATALOG = DictCatalog(OPTIONS, {queue: Bounds(5, 50) for queue in QUEUES})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: lambda left, right: left == right,
    EqualNullSafe: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
}
VALUES = {
    "topic": st.sampled_from(["t", "u", "v"]),
    "brokerName": st.sampled_from(["a", "b"]),
    "QUEUEID": st.integers(-1, 3),
    "queueOffset": st.integers(0, 50),
    "offset": st.integers(0, 50),
    "storeTimestamp": st.integers(0, 60_000_000).map(lambda micros: EPOCH + timedelta(microseconds=micros)),
}


def of(name: str, value: Any, kind: Any = EqualTo) -> Filter:
    made: Filter = kind((name,), value)
    return made


def cut(*filters: Filter) -> list[tuple[str, str, int, int, int]]:
    found = cut_ranges(wanted_by(filters), RANGES, CATALOG)
    return [(one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.start, one.end) for one in found]


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from([*VALUES]))
    kind = draw(st.sampled_from([*COMPARISONS, In]))
    if kind is In:
        return of(name, draw(st.lists(VALUES[name], min_size=1, max_size=3)), In)
    made = of(name, draw(VALUES[name]), kind)
    return Not(made) if draw(st.integers(0, 9)) == 0 else made


def passes(one: Filter, row: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not passes(one.child, row)
    value = row[one.attribute[0].lower()]  # type: ignore[attr-defined]
    wanted = one.value  # type: ignore[attr-defined]
    return value in wanted if isinstance(one, In) else bool(COMPARISONS[type(one)](value, wanted))


@settings(max_examples=size(40, 300), deadline=None)
@given(st.lists(filters(), max_size=4), st.booleans())
def test_matching_rows_are_read(chosen: list[Filter], steps: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not steps:
            patch.setattr(pushdown, "CLOCK_STEP_MS", 0)
        kept = {
            (one.queue, at)
            for one in cut_ranges(wanted_by(chosen), RANGES, CATALOG)
            for at in range(one.start, one.end)
        }
    for queue in QUEUES:
        for at in range(10, 40):
            row = {"topic": queue.topic, "brokername": queue.broker_name, "queueid": queue.queue_id}
            row |= {"queueoffset": at, "offset": at, "storetimestamp": EPOCH + timedelta(seconds=at)}
            assert (queue, at) in kept or not all(passes(one, row) for one in chosen)


def test_other_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut() == cut(IsNotNull(("topic",)), StringStartsWith(("topic",), "t")) == cut(Not(of("queueId", 0)))
    assert len(cut()) == 8
    both = [of("topic", ["t", "x"], In), of("brokerName", "b"), of("queueId", 1)]
    assert cut(*both) == [("t", "b", 1, 10, 40)]
    offsets = [of("queueOffset", 20, GreaterThan), of("offset", 30, LessThanOrEqual)]
    assert cut(*both, *offsets) == [("t", "b", 1, 20, 31)]
    assert cut(*both, of("queueOffset", [12, 15], In)) == [("t", "b", 1, 12, 16)]
    assert cut(*both, of("queueOffset", 40, GreaterThanOrEqual)) == []
    times = [of("storeTimestamp", EPOCH + timedelta(seconds=20), GreaterThanOrEqual)]
    times += [of("timestamp", EPOCH + timedelta(seconds=30), LessThan)]
    assert cut(*both, *times) == [("t", "b", 1, 10, 40)]
    monkeypatch.setattr(pushdown, "CLOCK_STEP_MS", 5_000)
    assert cut(*both, *times) == [("t", "b", 1, 15, 36)]


@pytest.mark.parametrize(
    ("given_options", "values", "expression"),
    [
        ({}, ["A", "B"], "A||B"),
        ({}, ["A", None], "A"),
        ({}, ["A b"], "*"),
        ({}, ["A||B"], "*"),
        ({"subExpression": "C"}, ["A"], "C"),
    ],
)
def test_tags_are_asked_for(given_options: dict[str, str], values: list[Any], expression: str) -> None:
    options = parse_options({"storePath": "d", "topic": "t", **given_options})
    assert narrowed(options, wanted_by([of("tags", values, In)])).expression.sub_string == expression
    assert narrowed(options, Wanted()) is options
