"""Checks of JSON bodies: every case of docs/bodies.md, and bodies that are nearly right beside Python's ``json``."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.arrow.json_bodies import SHAPE, mutated
from tests.unit.arrow.json_page import FITS, TIMES, Case, cases

from rucola.arrow.json_columns import Checker
from rucola.arrow.json_scan import DEPTH_MAX, NAME_BYTES_MAX, NUMBER_BYTES_MAX, check_body
from rucola.arrow.json_shape import ANY, DOUBLE, LONG, STRING, Kind, Shape, TimeUnit, object_of

INT = Shape(Kind.WHOLE, "int", bits=32)
FLOAT = Shape(Kind.REAL, "float", bits=32)
DECIMAL = Shape(Kind.DECIMAL, "decimal(5,2)", precision=5, scale=2)
TIMESTAMP = Shape(Kind.TIMESTAMP, "timestamp")
LOCAL = Shape(Kind.LOCAL_TIMESTAMP, "timestamp_ntz")
DATE = Shape(Kind.DATE, "date")
BINARY = Shape(Kind.BINARY, "binary")


def problem(body: str | bytes, unit: TimeUnit | None = None, **fields: Shape) -> str | None:
    found = check_body(body if isinstance(body, bytes) else body.encode(), object_of(fields), unit).problem
    return None if found is None else str(found)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.what)
def test_every_case_of_the_page(case: Case) -> None:
    found = Checker(SHAPE).problems(pa.array([FITS, case.body, None])).to_pylist()
    assert found == [None, case.spark.error, "no body"]


@pytest.mark.parametrize(
    ("shape", "fits", "misfits"),
    [
        (
            INT,
            ["0", "-0", "2147483647", "-2147483648", "null"],
            ["2147483648", "-2147483649", "1e0", '"1"', "true", "[]"],
        ),
        (LONG, ["9223372036854775807", "-9223372036854775808"], ["-9223372036854775809", "1" * 30, "{}"]),
        (DOUBLE, ["1e308", "-1.7976931348623157e308", "1e-999", "0", "1.5E+3"], ["1e309", "-1e999", '"1"', "false"]),
        (FLOAT, ["3.4028235e38", "-1"], ["3.4028236e38", "-1e39"]),
        (
            DECIMAL,
            ["999.99", "-0.01", '"12.5"', "1.50000", "12e1", "0e99", "5e-2", "0"],
            ["1000", "0.001", "1e3", "1e-999999999", "0e1001", '"1,5"', '"NaN"', '"+1"', "true"],
        ),
        (STRING, ['""', "1", "[1]", '{"a":1}', "true", '"\\u00e4\\n\\/"', '"\\ud83d\\ude00"'], ["nan", '"\\ude00"']),
        (
            DATE,
            ['"2020-02-29"', '"0001-01-01"'],
            ['"2021-02-29"', '"0000-01-01"', '"2020-1-01"', '"2020-13-01"', '"2020-01-01 "', '"２020-01-01"', "1"],
        ),
        (BINARY, ['""', '"YQ=="', '"YWI\\/"'], ['"YQ"', '"YQ=a"', '"YQ==\\n"', '"ä==="', "1"]),
        (
            ANY,
            ["1", '"a"', "[[]]", '{"":{"":1}}', "null"],
            ["tru", "-", "1.", ".5", "+1", "0x1", "01", "'a'", "", "undefined"],
        ),
        (Shape(Kind.BOOLEAN, "boolean"), ["true", "false", "null"], ["1", '"true"', "True"]),
        (Shape(Kind.ARRAY, "an array", item=INT), ["[]", "[1 , null]"], ["[1.5]", "[1,]", "[1", "{}", "1"]),
        (
            Shape(Kind.MAP, "a map", item=INT),
            ["{}", '{"a":1, "b" :null}'],
            ['{"a":"x"}', '{"a":1,"a":1}', "[]", '{"a"}'],
        ),
    ],
    ids=lambda one: one.name if isinstance(one, Shape) else "",
)
def test_each_type_takes_its_values(shape: Shape, fits: list[str], misfits: list[str]) -> None:
    for text in fits:
        assert problem(f'{{"v":{text}}}', v=shape) is None, text
    for text in misfits:
        assert problem(f'{{"v":{text}}}', v=shape) is not None, text


@pytest.mark.parametrize(("text", "zoned", "local"), TIMES)
def test_texts_of_times(text: str, zoned: bool, local: bool) -> None:
    assert (problem(f'{{"v":"{text}"}}', v=TIMESTAMP) is None) is zoned
    assert (problem(f'{{"v":"{text}"}}', v=LOCAL) is None) is local


@pytest.mark.parametrize(
    ("unit", "number", "text"),
    [
        (TimeUnit.SECONDS, "1577836800", "2020-01-01T00:00:00.000000Z"),
        (TimeUnit.MILLIS, "1577836800001", "2020-01-01T00:00:00.001000Z"),
        (TimeUnit.MICROS, "-1", "1969-12-31T23:59:59.999999Z"),
        (TimeUnit.SECONDS, "253402300799", "9999-12-31T23:59:59.000000Z"),
        (TimeUnit.SECONDS, "-62135596800", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_whole_numbers_are_times_only_in_their_unit(unit: TimeUnit, number: str, text: str) -> None:
    fields = {"v": TIMESTAMP, "w": Shape(Kind.ARRAY, "an array", item=TIMESTAMP), "n": LONG}
    body = f'{{"v": {number} ,"n":{number},"w":["2020-01-01",{number},null],"u":{number}}}'.encode()
    found = Checker(object_of(fields), unit).checked(pa.array([body, b"{}"])).to_pylist()
    expected = f'{{"v": "{text}" ,"n":{number},"w":["2020-01-01","{text}",null],"u":{number}}}'
    assert found == [{"error": None, "text": expected}, {"error": None, "text": None}]
    without = "1577836800 for a timestamp, and integer_times is not given"
    assert problem('{"v":1577836800}', v=TIMESTAMP) == f"v: {without} at byte 5"
    assert problem('{"v":1.5}', unit, v=TIMESTAMP) == f"v: 1.5 is not a whole number of {unit} at byte 5"
    assert problem('{"v":1577836800}', unit, v=LOCAL) == "v: a number, but the field is timestamp_ntz at byte 5"
    for beyond in ("253402300800", "-62135596801", "1577836800000", "9" * 30):
        what = f"{beyond} seconds is outside the years 1 to 9999"
        assert problem(f'{{"v":{beyond}}}', TimeUnit.SECONDS, v=TIMESTAMP) == f"v: {what} at byte 5"


def test_limits() -> None:
    nested = '{"v":' + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1) + "}"
    assert problem(nested) is None
    assert problem(nested.replace("[]", "[[]]")) == (
        f"v[0][0][0][0][0][0][0]...: more than {DEPTH_MAX} objects and arrays around a value at byte {DEPTH_MAX + 4}"
    )
    digits = "1" * NUMBER_BYTES_MAX
    assert problem(f'{{"v":{digits}}}', v=STRING) is None
    assert problem(f'{{"v":{digits}1}}', v=STRING) == "v: a number of more than 1,000 characters at byte 5"
    name = "n" * (NAME_BYTES_MAX - 2)
    assert problem(f'{{"{name}":1}}') is None
    assert problem(f'{{"{name}n":1}}') == "a field with a name of more than 50,000 bytes at byte 1"
    many = {f"name{number}": number for number in range(5000)}
    assert problem(json.dumps(many)) is None
    assert problem(json.dumps(many)[:-1] + ',"name7":1}').startswith("name7: a second field")  # type: ignore[union-attr]


def test_errors_can_be_shown_whatever_the_sender_wrote() -> None:
    assert problem('{"a b\\u0001\\n":{"größe":[1,2,{"x":NaN}]}}') == (
        '"a b\\u0001\\n".größe[2].x: NaN is not JSON at byte 36'
    )
    shown = problem('{"' + "n" * 4000 + '":' + "1" * 500 + "}", **{"n" * 4000: INT})
    assert shown == f"{'n' * 40}...: {'1' * 40}... is beyond int at byte 4004"


def oracle(body: bytes) -> Any:
    """What Python's ``json`` reads, without what it takes although it is no JSON; raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def refused(text: str) -> None:
        raise ValueError(text)

    text = body.decode()
    value = json.loads(text, object_pairs_hook=once, parse_constant=refused)
    json.dumps(value, ensure_ascii=False).encode()  # half surrogates
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def fits(value: Any) -> bool:
    """Whether the fields have values of the types in ``SHAPE`` of whole numbers, doubles and booleans."""
    whole = all(
        value.get(name) is None or (type(value[name]) is int and -limit <= value[name] < limit)
        for name, limit in (("n", 1 << 63), ("i", 1 << 31))
    )
    real = value.get("d") is None or (type(value["d"]) in (int, float) and math.isfinite(float(value["d"])))
    return whole and real and type(value.get("b", True)) in (bool, type(None))


def test_bodies_that_are_nearly_right_beside_python() -> None:
    """Every mutation of a body is refused unless Python reads the same object, and the types fit."""
    chance = random.Random(33)
    shape = object_of({name: SHAPE.fields[name] for name in "nidbs"})
    taken = 0
    for _ in range(5000):
        body = mutated(chance)
        found = check_body(body, shape).problem
        try:
            value = oracle(body)
        except ValueError:
            assert found is not None, body
            continue
        assert (found is None) is fits(value), (body, found)
        taken += found is None
    assert 500 < taken < 4500
