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
TIMES = [
    ("2020-01-01", True, True),
    ("2020-01-01T05:06", True, True),
    ("2020-01-01 05:06:07.123456789", True, True),
    ("2020-12-31T23:59:59Z", True, False),
    ("2020-01-01T05:06:07+01:00", True, False),
    ("2020-01-01 05:06:07.1-1730", True, False),
    ("2020-01-01T05:06:07+01", True, False),
    ("2020-01-01T05:06+01:00", False, False),
    ("2020-01-01T05:06Z", False, False),
    ("2020-01-01T24:00", False, False),
    ("2020-01-01T05:60", False, False),
    ("2020-01-01T05:06:60", False, False),
    ("2020-01-01T05:06:07+18:01", False, False),
    ("2020-01-01T05:06:07+01:60", False, False),
    ("2020-02-30T05:06", False, False),
    ("2020-01-01T05", False, False),
    ("2020-01-01T", False, False),
    ("2020-01-01Z", False, False),
    ("2020-01-01t05:06:07z", False, False),
    ("2020-01-01T05:06:07 Europe/Berlin", False, False),
    ("2020-01-01T05:06:07.", False, False),
    ("2020-01-01T05:06:07.1234567890", False, False),
    ("2020", False, False),
    ("12:00", False, False),
    ("1577836800", False, False),
]
"""Texts, and whether they are a ``timestamp`` and a ``timestamp_ntz``."""


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
