"""JSON bodies that are nearly right, from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from rucola.arrow.json_shape import BOOLEAN, DOUBLE, LONG, STRING, Kind, Shape, object_of

_INT = Shape(Kind.WHOLE, "int", bits=32)
SHAPE = object_of(
    {
        "n": LONG,
        "i": _INT,
        "d": DOUBLE,
        "b": BOOLEAN,
        "s": STRING,
        "t": Shape(Kind.TIMESTAMP, "timestamp"),
        "y": Shape(Kind.DATE, "date"),
        "m": Shape(Kind.DECIMAL, "decimal(5,2)", precision=5, scale=2),
        "x": Shape(Kind.BINARY, "binary"),
        "o": object_of({"k": LONG}),
        "a": Shape(Kind.ARRAY, "an array", item=_INT),
    }
)
"""The types of the page's schema."""
_VALUES: tuple[Any, ...] = (
    0,
    1,
    -7,
    1 << 31,
    1 << 63,
    10**25,
    0.5,
    2.0,
    1e300,
    True,
    None,
    "",
    "a",
    "1",
    "NaN",
    'ä\n"',
    "\U0001f600",
    [],
    [1, 2],
    {},
    {"k": 1},
    {"k": "x"},
    "2020-01-01",
    "2020-01-01T00:00:00Z",
    1.25,
)
_PIECES = (
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\\u0",
    b"\\ud800",
    b"\xff",
    b"\xc3",
    b"\x00",
    b"\t",
    b" ",
    b"-",
    b"+",
    b".",
    b"0",
    b"1",
    b"9",
    b"e",
    b"E5",
    b"e999",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"'",
    b"/*",
    b'"n":1,',
    b',"n":1',
    b"{}",
)


def valid(chance: random.Random) -> bytes:
    """A JSON object; its values need not have the declared types."""
    names = [*SHAPE.fields, "other", ""]
    value = {chance.choice(names): chance.choice(_VALUES) for _ in range(chance.randrange(5))}
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, None, 1)))
    return text.encode()


def mutated(chance: random.Random) -> bytes:
    """A JSON object in which up to two places are changed."""
    body = bytearray(valid(chance))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        at = chance.randrange(len(body) + 1)
        action = chance.randrange(4)
        if action == 0:
            body[at : at + 1] = b""
        elif action == 1:
            body[at:at] = chance.choice(_PIECES)
        elif action == 2:
            body[at : at + 1] = chance.choice(_PIECES)
        else:
            start = chance.randrange(len(body) + 1)
            body[at:at] = body[start : start + chance.randrange(12)]
    return bytes(body)
