"""The cases of docs/bodies.md: the page is the list that the tests of the check, of Spark and of SQL go through."""

from __future__ import annotations

import ast
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "bodies.md"
DDL = (
    "n bigint, i int, d double, b boolean, s string, t timestamp, y date, m decimal(5,2), x binary, "
    "o struct<k: bigint>, a array<int>"
)
FITS = (
    b'{"n":-1,"i":2,"d":0.5,"b":true,"s":"a","t":"2020-01-01T00:00:00Z","y":"2020-01-01","m":1.25,"x":"YQ==",'
    b'"o":{"k":1},"a":[1]}'
)
"""A body with every field, from which SQL takes the types."""


class Result(NamedTuple):
    """Either a value of one column, or the reason why all columns are null."""

    column: str
    value: Any
    error: str | None


class Case(NamedTuple):
    """A row of the page's table."""

    what: str
    body: bytes
    spark: Result
    sql: Result


def cases() -> list[Case]:
    """The rows that have a body."""
    found = re.search(r"<!-- json cases: begin -->\n(.*)\n<!-- json cases: end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]
    return [Case(what, _bytes(body), _result(spark), _result(sql or spark)) for what, body, spark, sql in rows if body]


def _bytes(cell: str) -> bytes:
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), cell.strip("`").encode())


def _result(cell: str) -> Result:
    text = cell.strip("`")
    name, equals, value = text.partition(" = ")
    if not equals:
        return Result("", None, text)
    number = re.fullmatch(r"Decimal\('(.*)'\)", value)
    return Result(name, Decimal(number[1]) if number else ast.literal_eval(value), None)
