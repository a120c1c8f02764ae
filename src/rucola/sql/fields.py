"""The fields of JSON bodies as columns of a view. Names and types come from a sample of the topic.

DuckDB extracts a field from the bodies only if a query uses the field. If the body of a message is not a JSON object,
its row has null in the columns of all fields. A value that does not fit the type found in the sample is null, too. A
query never fails because of a body. In a column of whole numbers, no number is rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from rucola.sql.engine import connect

FIELDS_MAX = 1000
"""Largest number of fields that become columns: DuckDB takes time for each, even if a query uses none of them."""
_WHOLE = frozenset(("UBIGINT", "BIGINT", "HUGEINT", "UHUGEINT"))
_STRUCTURE = """
with bodies as (select try(cast(decode(body) as json)) body from sample)
select key, value
from json_each((select json_group_structure(body) from bodies where json_type(body) = 'OBJECT')) limit ?
"""
"""A body that is no object would make all the others JSON of any kind, without names."""


def fields_of(bodies: pa.Table, spill: str = "") -> dict[str, str]:
    """Names and DuckDB types of the fields of JSON objects.

    Args:
        bodies: a table with the column ``body``.
        spill: as in ``engine.connect``.

    Returns:
        Empty if the bodies are not JSON objects.
    """
    with connect(spill) as connection:
        connection.register("sample", bodies)
        found = connection.execute(_STRUCTURE, [FIELDS_MAX]).fetchall()
    # A column without a name cannot be selected.
    return {name: _type(kind) for name, kind in found if name}


def view_text(view: str, source: str, columns: Iterable[str], fields: Mapping[str, str]) -> str:
    """The statement that creates ``view``: the columns of ``source``, then the fields of the bodies.

    If a field has the name of a column, in upper or lower case, its name gets the prefix ``body_``.

    Args:
        view: name of the view.
        source: what it reads, in SQL.
        columns: names of the columns of ``source``.
        fields: names and types of the fields, from ``fields_of``.
    """
    taken = {name.lower() for name in columns}
    chosen = ["*"]
    for name, kind in fields.items():
        shown = name if name.lower() not in taken else f"body_{name}"
        if shown.lower() not in taken:
            taken.add(shown.lower())
            chosen.append(f"{_expression(name, kind)} as {quoted(shown)}")
    return f"create or replace temp view {quoted(view)} as select {', '.join(chosen)} from {source}"


def quoted(name: str) -> str:
    """``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """``text`` as a string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _type(structure: str) -> str:
    """Returns the type of a field. Only the structure of a single value is one word; nested ones may be very deep."""
    if not structure.startswith('"'):
        return "JSON"
    kind = structure.strip('"')
    if kind in _WHOLE:
        return "BIGINT"
    # A field whose values have several types is VARCHAR, too.
    return kind if kind in ("DOUBLE", "BOOLEAN") else "VARCHAR"


def _expression(name: str, kind: str) -> str:
    path = literal('$."' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    if kind == "JSON":
        return f"try(decode(body) -> {path})"
    value = f"try(decode(body) ->> {path})"
    if kind == "VARCHAR":
        return value
    if kind == "BIGINT":  # a cast would round
        return f"case when regexp_full_match({value}, '-?[0-9]+') then try_cast({value} as bigint) end"
    return f"try_cast({value} as {kind})"
