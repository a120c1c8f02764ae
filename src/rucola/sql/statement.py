"""The tables that a query names, each with its exact spelling. DuckDB's own parser reads the query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb

from rucola.sql.topic_names import folded

_PART = r""""(?:[^"]|"")*"|'(?:[^']|'')*'|[^\s.,;()"']+"""
_PARTS = re.compile(rf"({_PART})\s*\.?\s*")
_WORD = re.compile(_PART.encode())
_PLACE_MAX = 1 << 63
"""DuckDB gives greater places to tables whose place it does not know."""
_CATALOG_FUNCTIONS = ("duckdb_", "pragma_", "query", "sql_auto_complete")
"""Beginnings of the names of table functions whose result depends on views that the query need not name."""


class Table(NamedTuple):
    """A table in a query, or in other places of a statement where a table may stand.

    Attributes:
        schema: names before the table's name, folded, joined by dots; empty also where they are not known.
        name: as in the query, without quotes.
        is_exact: whether the name is in quotes, so that its upper and lower case was chosen.
    """

    schema: str
    name: str
    is_exact: bool


@dataclass(frozen=True)
class Statement:
    """What a query names.

    Attributes:
        tables: the tables, without those that the query itself defines.
        needs_all: whether the query may need views that are not in ``tables``.
        tree: DuckDB's tree if the query has only ``select`` statements; otherwise None.
    """

    tables: tuple[Table, ...]
    needs_all: bool
    tree: dict[str, Any] | None = None


def parsed(connection: duckdb.DuckDBPyConnection, query: str) -> Statement:
    """Finds the tables that ``query`` names; a wrong query may name none."""
    try:
        known = connection.get_table_names(query)
    except duckdb.Error:  # the query is wrong and will be refused, has several statements, or needs tables to be there
        known = None
    tree = _tree(connection, query)
    if tree is not None:
        return _selected(query, tree, known)
    names = set(map(_unquoted, _words(query))) if known is None else known
    tables = tuple(Table("", name, _is_always_exact(query, name)) for name in sorted(names))
    return Statement(tables, needs_all=known is None or not tables)


def uses_only(tree: dict[str, Any], columns: Iterable[str]) -> bool:
    """Whether it is certain that ``select`` statements use no other columns of their tables than ``columns``."""
    known = frozenset(map(folded, columns))
    nodes = list(_nodes(tree))
    tables = {folded(node["alias"] or node["table_name"]) for node in nodes if node.get("type") == "BASE_TABLE"}
    for node in nodes:
        if node.get("type") in ("STAR", "SHOW_REF", "PIVOT") or node.get("ref_type") == "NATURAL":
            return False
        names = [folded(name) for name in node.get("column_names", ())]
        if names and (names[-1] not in known or len(names) > 2 or not tables.issuperset(names[:-1])):
            return False
        if not known.issuperset(map(folded, node.get("using_columns", ()))):
            return False
    return True


def _tree(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any] | None:
    try:
        ((text,),) = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    except duckdb.Error:  # DuckDB reports some errors in the query this way
        return None
    tree: dict[str, Any] = json.loads(text)
    return None if tree["error"] else tree


def _selected(query: str, tree: dict[str, Any], known: set[str] | None) -> Statement:
    """The tables of ``select`` statements.

    ``known``, the tables that DuckDB finds, decides about a name that is also the name of a common table expression.
    """
    nodes = list(_nodes(tree))
    defined = {folded(one["key"]) for node in nodes for one in (node.get("cte_map") or {}).get("map", ())}
    free = None if known is None else set(map(folded, known))
    text = query.encode()
    tables = []
    needs_all = False
    for node in nodes:
        match node.get("type"):
            case "BASE_TABLE":
                schema = ".".join(filter(None, (node["catalog_name"], node["schema_name"])))
                name = node["table_name"]
                if schema or free is None or folded(name) not in defined or folded(name) in free:
                    tables.append(Table(folded(schema), name, _is_exact(query, text, node)))
            case "TABLE_FUNCTION":
                needs_all |= node["function"].get("function_name", "").startswith(_CATALOG_FUNCTIONS)
            case "SHOW_REF":
                needs_all |= bool(node.get("table_name"))
    return Statement(tuple(tables), needs_all, tree)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of the tree. A tree may be deeper than Python's stack."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def _is_exact(query: str, text: bytes, node: dict[str, Any]) -> bool:
    place = node["query_location"]
    if place >= _PLACE_MAX:
        return _is_always_exact(query, node["table_name"])
    here = text[place : place + node["query_location_length"]].decode()
    parts = _PARTS.findall(here)
    last = len([name for name in (node["catalog_name"], node["schema_name"]) if name])
    return len(parts) > last and _is_quoted(parts[last]) and _unquoted(parts[last]) == node["table_name"]


def _is_always_exact(query: str, name: str) -> bool:
    """Whether every word of the query that may be ``name`` is it, in quotes."""
    words = [word for word in _words(query) if folded(_unquoted(word)) == folded(name)]
    return bool(words) and all(_is_quoted(word) and _unquoted(word) == name for word in words)


def _words(query: str) -> list[str]:
    """The words of the query that may be names, with their quotes."""
    text = query.encode()
    kinds = (duckdb.token_type.identifier, duckdb.token_type.keyword)
    found = (_WORD.match(text, place) for place, kind in duckdb.tokenize(query) if kind in kinds)
    return [word[0].decode() for word in found if word is not None]


def _is_quoted(word: str) -> bool:
    return word[0] in "\"'"


def _unquoted(word: str) -> str:
    return word[1:-1].replace(word[0] * 2, word[0]) if _is_quoted(word) else word
