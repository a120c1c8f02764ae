"""Recognises queries for the number, offsets and times of a topic's messages, which its queues answer.

DuckDB asks a view for rows, never for an aggregate. Numbers and offsets of messages are rows that the queues alone give
(``rucola.arrow.dense_queues``). Store times are not in the queues, so only the first and last of a whole topic are
known without reading messages, and only such a query is recognised: ``select``, with nothing but ``count(*)``, and
``min`` and ``max`` of ``queueOffset`` and ``storeTimestamp``, from one table, with no condition but ``topic = '...'``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rucola.arrow.topic_dataset import Extent
from rucola.sql.topic_names import folded

_EMPTY: dict[str, object] = {
    "modifiers": [],
    "cte_map": {"map": []},
    "group_expressions": [],
    "group_sets": [],
    "aggregate_handling": "STANDARD_HANDLING",
    "having": None,
    "sample": None,
    "qualify": None,
}
"""Clauses of ``select`` that must be absent."""
_FUNCTIONS = ("min", "max")
_COLUMNS = {folded(name): name for name in ("queueOffset", "storeTimestamp")}


@dataclass(frozen=True)
class PlainAggregates:
    """The aggregates of a query, and the topic of its condition.

    Attributes:
        names: of each column of the result, ``count``, or function and column of the messages.
        topic: None without a condition.
    """

    names: tuple[tuple[str, ...], ...]
    topic: str | None = None

    def result(self, extent: Extent, schema: pa.Schema) -> pa.RecordBatchReader:
        """The one row of the result; ``schema`` has the names and types that DuckDB gives its columns."""
        values = [pa.array([extent.value(*name)], pa.int64()) for name in self.names]
        columns = [value.cast(field.type) for value, field in zip(values, schema, strict=True)]
        return pa.table(columns, schema=schema).to_reader()


def recognised(tree: dict[str, Any]) -> PlainAggregates | None:
    """The aggregates if DuckDB's ``tree`` of a query has the form above."""
    try:
        (statement,) = tree["statements"]
        node, table = statement["node"], statement["node"]["from_table"]
        if statement["named_param_map"] or any(node[clause] != empty for clause, empty in _EMPTY.items()):
            return None
        if table["type"] != "BASE_TABLE" or table["sample"] or table["at_clause"] or table["column_name_alias"]:
            return None
        prefix = folded(table["alias"] or table["table_name"])
        found = [_aggregate(one, prefix) for one in node["select_list"]]
        names = tuple(name for name in found if name)
        topic = None if node["where_clause"] is None else _wanted_topic(node["where_clause"], prefix)
        if len(names) < len(found) or (node["where_clause"] is not None and topic is None):
            return None
    except (KeyError, TypeError, ValueError):  # another form of statement
        return None
    return PlainAggregates(names, topic) if any(name[-1] == "storeTimestamp" for name in names) else None


def _aggregate(node: dict[str, Any], prefix: str) -> tuple[str, ...]:
    """Function and column; empty for anything else."""
    is_plain = node["class"] == "FUNCTION" and not (
        node["filter"] or node["order_bys"]["orders"] or node["distinct"] or node["schema"] or node["catalog"]
    )
    if not is_plain:
        return ()
    match node["function_name"], node["arguments"]:
        case "count_star", []:
            return ("count",)
        case function, [argument] if function in _FUNCTIONS:
            column = _COLUMNS.get(_column(argument["expression"], prefix))
            return () if column is None else (function, column)
    return ()


def _wanted_topic(node: dict[str, Any], prefix: str) -> str | None:
    """The text in ``topic = 'text'``; None for another condition."""
    if node["type"] != "COMPARE_EQUAL" or _column(node["left"], prefix) != "topic":
        return None
    right = node["right"]
    is_text = right["type"] == "VALUE_CONSTANT" and right["literal"]["kind"] == "STRING"
    return str(right["literal"]["text"]) if is_text else None


def _column(node: dict[str, Any], prefix: str) -> str:
    """The column's name, folded; empty if the node is no column of the table ``prefix``."""
    names = [folded(name) for name in node["column_names"]] if node["type"] == "COLUMN_REF" else [""]
    return names[-1] if names[:-1] in ([], [prefix]) else ""
