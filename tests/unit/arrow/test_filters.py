"""PyArrow filters are read from their pickles; the result covers every row that can pass the filter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rucola.arrow.filters import OTHER, Call, ColumnRef, Literal, columns_of, may_match, parse_filter, values_of

KEYS, QUEUE, TIME = pc.field("keys"), pc.field("queueId"), pc.field("storeTimestamp")
MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
MOMENT_NS = int(MOMENT.timestamp()) * 1_000_000_000
NULL = pa.scalar(None, pa.bool_())

TREES = [
    (KEYS == "a'\"\\\n: 'b'", Call("equal", (ColumnRef("keys"), Literal("a'\"\\\n: 'b'")))),
    (pa.scalar(MOMENT) < TIME, Call("greater", (ColumnRef("storeTimestamp"), Literal(MOMENT_NS)))),
    (pa.scalar(datetime(2024, 5, 1)) < TIME, Call("greater", (ColumnRef("storeTimestamp"), Literal(OTHER)))),
    (QUEUE.isin([1, None]), Call("is_in", (ColumnRef("queueId"),), (1, None))),
    (
        ((KEYS == "a") | (QUEUE < 3)) & (QUEUE > 1),
        Call(
            "and_kleene",
            (
                Call(
                    "or_kleene",
                    (
                        Call("equal", (ColumnRef("keys"), Literal("a"))),
                        Call("less", (ColumnRef("queueId"), Literal(3))),
                    ),
                ),
                Call("greater", (ColumnRef("queueId"), Literal(1))),
            ),
        ),
    ),
    (pc.field("a", "b") == 1, Call("equal", (Call("unknown", ()), Literal(1)))),
    (pc.scalar(True), Literal(True)),
]


@pytest.mark.parametrize(("expression", "tree"), TREES)
def test_trees(expression: Any, tree: object) -> None:
    assert parse_filter(expression) == tree


MATCHES = [
    (QUEUE == 3, {"queueId": (1, 3)}, True),
    (QUEUE == 4, {"queueId": (1, 3)}, False),
    (QUEUE < 1, {"queueId": (1, 3)}, False),
    (QUEUE <= 1, {"queueId": (1, 3)}, True),
    (QUEUE > 3, {"queueId": (1, 3)}, False),
    (QUEUE >= 3, {"queueId": (1, 3)}, True),
    (pc.scalar(3) < QUEUE, {"queueId": (1, 3)}, False),
    (QUEUE != 2, {"queueId": (2, 2)}, True),
    (~(QUEUE == 2), {"queueId": (2, 2)}, True),
    (QUEUE.isin([0, 4]), {"queueId": (1, 3)}, False),
    (QUEUE.isin([0, None, 2]), {"queueId": (1, 3)}, True),
    ((QUEUE == 4) | (KEYS == "a"), {"queueId": (1, 3)}, True),
    ((QUEUE == 4) | (QUEUE == 5), {"queueId": (1, 3)}, False),
    ((QUEUE == 4) & (KEYS == "a"), {"queueId": (1, 3)}, False),
    (pc.if_else(QUEUE.is_valid(), QUEUE == 4, NULL), {"queueId": (1, 3)}, False),
    (pa.scalar(None, pa.int32()) == QUEUE, {"queueId": (1, 3)}, False),
    (QUEUE == 1.5, {"queueId": (1, 3)}, True),
    (pa.scalar(datetime(2024, 5, 1)) > TIME, {"storeTimestamp": (MOMENT_NS, MOMENT_NS)}, True),
    (pc.scalar(False), {}, False),
]


@pytest.mark.parametrize(("expression", "bounds", "expected"), MATCHES)
def test_may_match(expression: Any, bounds: dict[str, tuple[int, int]], expected: bool) -> None:
    assert may_match(parse_filter(expression), bounds) is expected


VALUES = [
    (KEYS == "a", {"a"}),
    (KEYS.isin(["a", "b"]), {"a", "b"}),
    (KEYS.isin(["a", None]), None),
    ((KEYS == "a") & (QUEUE == 1), {"a"}),
    ((KEYS == "a") & (KEYS == "b"), set()),
    ((KEYS == "a") | (KEYS == "b"), {"a", "b"}),
    ((KEYS == "a") | (QUEUE == 1), None),
    (pc.if_else(KEYS.is_valid(), KEYS.isin(["a"]), NULL), {"a"}),
    (pc.if_else(KEYS.is_valid(), KEYS.isin(["a"]), QUEUE == 1), None),
    (KEYS != "a", None),
    (KEYS > "a", None),
    (pa.scalar(None, pa.string()) == KEYS, set()),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES)
def test_values(expression: Any, expected: set[str] | None) -> None:
    assert values_of(parse_filter(expression), "keys") == expected


def test_columns() -> None:
    assert columns_of(parse_filter((KEYS == "a") | pc.starts_with(pc.field("tags"), "x"))) == {"keys", "tags"}
    assert columns_of(parse_filter(pc.field("a", "b") == 1)) is None


def test_a_text_that_is_no_expression_lets_everything_through() -> None:
    node = parse_filter(object())
    assert may_match(node, {"queueId": (1, 1)})
    assert (values_of(node, "keys"), columns_of(node)) == (None, None)
