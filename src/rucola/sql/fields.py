"""The fields of JSON bodies as columns of a view. Names and types come from a sample of the topic.

DuckDB extracts a field from the bodies only if a query uses the field. A body that is no JSON object, or does not fit
the types found in the sample, has null in the columns of all fields, and the column ``_error`` says why. The rules are
those of Spark's ``decode`` (``rucola.arrow.json_scan``), because DuckDB's own JSON reader takes more, such as NaN and a
field that occurs twice. A query never fails because of a body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW, SPECIAL

from rucola.arrow.json_columns import Checker
from rucola.arrow.json_scan import check_body
from rucola.arrow.json_shape import ANY, BOOLEAN, DOUBLE, LONG, STRING, Shape, object_of
from rucola.arrow.json_values import beyond
from rucola.sql.engine import connect

ERROR = "_error"
"""The column that says why a row has no fields; null if it has them. Spark's ``decode`` adds a column of this name."""

FIELDS_MAX = 1000
"""Largest number of fields that become columns: DuckDB takes time for each, even if a query uses none of them."""
_TEXT = "_rucola_text"
_SHAPES = {"BIGINT": LONG, "DOUBLE": DOUBLE, "BOOLEAN": BOOLEAN, "VARCHAR": STRING}
_WHOLE = frozenset(("UBIGINT", "BIGINT", "HUGEINT", "UHUGEINT"))
_BEYOND = beyond(LONG)
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
    sound = bodies.filter(pc.is_null(Checker(object_of({})).problems(bodies["body"])))
    with connect(spill) as connection:
        connection.register("sample", sound)
        found = connection.execute(_STRUCTURE, [FIELDS_MAX]).fetchall()
    # A column without a name cannot be selected.
    texts = sound["body"].to_pylist()
    fields = {name: _type(kind) for name, kind in found if name}
    return _widened(fields | dict.fromkeys(_too_large(fields, texts), "VARCHAR"), texts)


def create_check(connection: duckdb.DuckDBPyConnection, name: str, fields: Mapping[str, str]) -> None:
    """Creates a function, for all connections to the database, that says why a body does not have ``fields``; its
    result is null for a body that has them.
    """
    problems = Checker(_shape(fields)).problems
    # Without ``SPECIAL``, the function would not be called for a missing body, which is a problem, too.
    connection.create_function(name, problems, ["BLOB"], "VARCHAR", type=ARROW, null_handling=SPECIAL)


def view_text(view: str, source: str, columns: Iterable[str], fields: Mapping[str, str], check: str) -> str:
    """The statement that creates ``view``: the columns of ``source``, then the fields of the bodies, then ``ERROR``.

    If a field has the name of a column, in upper or lower case, its name gets the prefix ``body_``, and so does a field
    that already has the resulting name.

    Args:
        view: name of the view.
        source: what it reads, in SQL.
        columns: names of the columns of ``source``.
        fields: names and types of the fields, from ``fields_of``.
        check: name of the function that ``create_check`` has created for these fields.
    """
    taken = {name.lower() for name in columns} | {ERROR}
    reserved = taken | {f"body_{name.lower()}" for name in fields if name.lower() in taken}
    chosen = [f"* exclude ({ERROR}, {_TEXT})"]
    for name, kind in fields.items():
        shown = name if name.lower() not in reserved else f"body_{name}"
        if shown.lower() not in taken:
            taken.add(shown.lower())
            chosen.append(f"{_expression(name, kind)} as {quoted(shown)}")
    # A ``case`` around each field would take twice as long, because DuckDB then decodes the body for each field.
    checked = f"select *, {quoted(check)}(body) as {ERROR} from {source}"
    sound = f"select *, case when {ERROR} is null then decode(body) end as {_TEXT} from ({checked})"
    selected = f"select {', '.join(chosen)}, {ERROR} from ({sound})"
    return f"create or replace temp view {quoted(view)} as {selected}"


def quoted(name: str) -> str:
    """``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """``text`` as a string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _too_large(fields: Mapping[str, str], bodies: Sequence[bytes]) -> set[str]:
    """The fields that DuckDB takes for DOUBLE because of whole numbers of more than 128 bits; DOUBLE would round them.
    A field with fractions in one of ``bodies`` is none of them.
    """
    unknown = {name for name, kind in fields.items() if kind == "DOUBLE"}
    large = set()
    for body in bodies:
        while unknown and (problem := check_body(body, object_of(dict.fromkeys(unknown, LONG))).problem):
            name = str(problem.path[0])
            unknown.remove(name)
            if problem.what.endswith(_BEYOND):
                large.add(name)
    return {name for name in large if not _has_fractions(name, bodies)}


def _has_fractions(name: str, bodies: Iterable[bytes]) -> bool:
    shape = object_of({name: LONG})
    problems = (check_body(body, shape).problem for body in bodies)
    return any(problem and not problem.what.endswith(_BEYOND) for problem in problems)


def _widened(fields: dict[str, str], bodies: Iterable[bytes]) -> dict[str, str]:
    """Makes columns of whole numbers into texts if one of ``bodies``, the sample, has a number beyond BIGINT there."""
    shape = _shape(fields)
    for body in bodies:
        while (problem := check_body(body, shape).problem) and fields[name := str(problem.path[0])] == "BIGINT":
            fields = fields | {name: "VARCHAR"}
            shape = _shape(fields)
    return fields


def _shape(fields: Mapping[str, str]) -> Shape:
    return object_of({name: _SHAPES.get(kind, ANY) for name, kind in fields.items()})


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
        return f"try({_TEXT} -> {path})"
    value = f"try({_TEXT} ->> {path})"
    return value if kind == "VARCHAR" else f"try_cast({value} as {kind})"
