"""The kernel that finds JSON bodies which certainly fit, in both forms, beside the scan that judges every body."""

from __future__ import annotations

import json
import random
from array import array
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from tests.kernels import kernel
from tests.unit.arrow.json_bodies import SHAPE, mutated
from tests.unit.arrow.json_page import FITS, cases

from rucola.arrow import json_columns
from rucola.arrow.json_columns import CODES, Checker, Outcome
from rucola.arrow.json_scan import DEPTH_MAX, NAME_BYTES_MAX, NUMBER_BYTES_MAX, check_body
from rucola.arrow.json_shape import ANY, LONG, Kind, Shape, TimeUnit, object_of

SHAPES = object_of(
    {
        **SHAPE.fields,
        "f": Shape(Kind.REAL, "float", bits=32),
        "l": Shape(Kind.LOCAL_TIMESTAMP, "timestamp_ntz"),
        "p": Shape(Kind.MAP, "a map", item=LONG),
    }
)
ANY_OBJECT = object_of({"v": ANY})
SURE = [
    FITS,
    b"{}",
    b' \r\n\t{ "n" : 123456789012345678 , "i":-2147483648,"d":-0.25e-9,"b":false,"s":"\\u00e4\\ud83d\\ude00\\n\\/"}',
    '{"s":"ä€\U0001f600","ä":["\\uD83D\\uDE00",{"":{"":null}}]}'.encode(),
    b'{"t":"2020-12-31 23:59:59.123456789+08:00","y":"2020-02-28","l":"0001-01-31T00:00:00.5"}',
    b'{"m":"-123.45","x":"","o":{"k":0},"a":[],"p":{"a":1,"b":null},"f":-1.5}',
    b'{"m":0.5,"x":"YWJj/+09","s":{"n":"x"},"o":null,"a":null,"t":null}',
    json.dumps({f"name{number}": number for number in range(1500)}).encode(),
]
"""Bodies of kinds that occur often: if the kernel were unsure, they would take a hundred times as long."""


@pytest.fixture
def scan(form: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = kernel("arrow._json_cy", form)
    monkeypatch.setattr(json_columns, "Scan", module.Scan)
    return module


def outcomes(bodies: list[bytes], shape: Shape, unit: TimeUnit | None = None) -> list[int]:
    return list(Checker(shape, unit)._outcomes(pa.array(bodies, pa.binary()))[0])


def test_the_kernel_is_sure_of_what_occurs_often(scan: ModuleType) -> None:
    assert outcomes(SURE, SHAPES) == [Outcome.FITS] * len(SURE)
    assert all(check_body(body, SHAPES).problem is None for body in SURE)
    assert outcomes([b'{"t":1577836800000,"a":[1]}', b'{"a":[1]}'], SHAPES, TimeUnit.MILLIS) == [
        Outcome.HAS_TIMES,
        Outcome.FITS,
    ]


def test_the_kernel_is_never_wrong(scan: ModuleType) -> None:
    chance = random.Random(35)
    bodies = [mutated(chance) for _ in range(4000)] + [case.body for case in cases()]
    bodies += [body[:end] for body in SURE[:-1] for end in range(len(body))]
    bodies += [
        body[:at] + bytes((chance.randrange(256),)) + body[at + 1 :] for body in SURE[:-1] for at in range(len(body))
    ]
    for unit in (None, TimeUnit.MILLIS):
        fits = 0
        for body, outcome in zip(bodies, outcomes(bodies, SHAPES, unit), strict=True):
            found = check_body(body, SHAPES, unit)
            if outcome != Outcome.UNSURE:
                assert found.problem is None, body
                assert (found.text is not None) is (outcome == Outcome.HAS_TIMES), body
            fits += outcome != Outcome.UNSURE
        assert fits > 500
    for body, outcome in zip(bodies, outcomes(bodies, ANY_OBJECT), strict=True):
        assert outcome == (check_body(body, ANY_OBJECT).problem is None) or b"\\" in body, body


@pytest.mark.few
@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (text, SHAPES.fields[name])
        for name, texts in {
            "n": ["9223372036854775808", "-9223372036854775809", "1.0", "1e2", "01", "-", "--1", "1" * 25],
            "i": ["2147483648", "-2147483649"],
            "d": ["1e999", "-1e309", "1.", ".5", "1e", "1e+", "1" * 400, '"1"'],
            "f": ["3.5e38", "1e39", "1" * 40],
            "m": ["1000", "0.001", "1e5", "12345.6", '"1000"', '"1."', '""', '"+1"', '"1 "'],
            "t": [
                '"2020-02-30"',
                '"2021-02-29T00:00:00"',
                '"2020-04-31"',
                '"0000-01-01"',
                '"2020-00-01"',
                '"2020-01-00"',
                '"2020-01-32"',
                '"2020-13-01"',
                '"2020-01-01T24:00:00"',
                '"2020-01-01T00:60:00"',
                '"2020-01-01T00:00:60"',
                '"2020-01-01T00:00:00."',
                '"2020-01-01T00:00:00.1234567890"',
                '"2020-01-01T00:00:00ZZ"',
                '"2020-01-01T00:00"Z',
                '"2020-01-01T00:00:00+19:00"',
                '"2020-01-01T00:00:00+01:60"',
                '"2020-01-01x00:00:00"',
                '"2020/01/01"',
                "1",
            ],
            "y": ['"2020-01-01T00:00:00"', '"2020-01-1"', '"20200101"', "1"],
            "l": ['"2020-01-01T00:00:00Z"', '"2020-01-01T00:00:00+01:00"', "1"],
            "x": ['"Y"', '"YQ="', '"===="', '"YQ=a"', '"Y=Q="', '"YQ-_"', "1"],
            "s": [
                '"\\ud800"',
                '"\\ud800\\u0041"',
                '"\\udc00\\ud800"',
                '"\\ud83d\\ude0"',
                '"\\ud83d\\uac00"',
                '"\\u12g4"',
                '"\\x"',
                '"\t"',
                '"a',
            ],
            "b": ["1", '"true"', "tru", "True", "falsey"],
            "o": ["[]", "1", '{"k":"1"}', '{"k":1,"k":1}', '{"k":1,}', '{"k" 1}', "{,}"],
            "a": ["{}", '["1"]', "[1,]", "[,1]", "[1 1]", "[", "[[1]]"],
            "p": ["[]", '{"a":"b"}', '{"a":1,"a":2}', '{"a":{}}'],
        }.items()
        for text in texts
    ],
)
def test_values_that_do_not_fit(value: str, shape: Shape, scan: ModuleType) -> None:
    body = f'{{"v":{value}}}'.encode()
    assert outcomes([body], object_of({"v": shape})) == [Outcome.UNSURE]
    assert check_body(body, object_of({"v": shape})).problem is not None


@pytest.mark.parametrize(
    "text",
    [
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xff",
        b"\xc3",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xc3(",
        b"\xe2(\xa1",
        b"\xe2\x82(",
    ],
)
def test_bytes_that_are_not_utf_8(text: bytes, scan: ModuleType) -> None:
    for body in (b'{"s":"' + text + b'"}', b'{"' + text + b'":1}', b'{"s":"' + text):
        assert outcomes([body], SHAPES) == [Outcome.UNSURE]
        assert check_body(body, SHAPES).problem is not None


def test_limits(scan: ModuleType) -> None:
    sure, unsure = Outcome.FITS, Outcome.UNSURE
    nested = b'{"v":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}"
    assert outcomes([nested, nested.replace(b"[]", b"[[]]"), nested.replace(b"[]", b"[{}]")], ANY_OBJECT) == [
        sure,
        unsure,
        unsure,
    ]
    digits = b"1" * NUMBER_BYTES_MAX
    assert outcomes([b'{"v":%s}' % digits, b'{"v":%s1}' % digits], ANY_OBJECT) == [sure, unsure]
    name = b"n" * (NAME_BYTES_MAX - 2)
    assert outcomes([b'{"%s":1}' % name, b'{"%sn":1}' % name], ANY_OBJECT) == [sure, unsure]
    many = json.dumps({f"name{number}": 1 for number in range(3000)}).encode()
    assert outcomes([many, b"{}"], ANY_OBJECT) == [unsure, sure]
    times = json.dumps({"a": [1] * 100}).encode()
    shape = object_of({"a": Shape(Kind.ARRAY, "an array", item=Shape(Kind.TIMESTAMP, "timestamp"))})
    assert outcomes([times, b'{"a":[1]}'], shape, TimeUnit.MILLIS) == [unsure, Outcome.HAS_TIMES]
    assert Checker(shape, TimeUnit.MILLIS).checked(pa.array([times])).field("text")[0].as_py().count("Z") == 100


def test_a_name_counts_once_for_each_object(scan: ModuleType) -> None:
    once = b'{"k":{"k":{"k":1},"l":1},"l":[{"k":1},{"k":1}]}'
    assert outcomes([once, once, b'{"k":{"l":1},"l":1,"k":1}', once], ANY_OBJECT) == [1, 1, 0, 1]
    assert outcomes([b'{"\\u006b":1}', b'{"ab":1,"a":1,"b":1,"":1}', b'{"":1,"":1}'], ANY_OBJECT) == [0, 1, 0]


def test_slices_texts_and_large_arrays(scan: ModuleType) -> None:
    bodies = [b"[1]", FITS, b'{"n":1.5}', None, b"{}"]
    expected = ["n: 1.5 is not a whole number, but the field is bigint at byte 5", "no body", None]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()):
        array_ = pa.array(bodies, pa.binary()).cast(kind)
        assert Checker(SHAPES).problems(array_.slice(2)).to_pylist() == expected
    assert Checker(SHAPES).problems(pa.array([], pa.binary())).to_pylist() == []
    assert Checker(SHAPES).problems(pa.nulls(2, pa.binary())).to_pylist() == ["no body"] * 2


def test_bodies_outside_the_buffer_are_refused(scan: ModuleType) -> None:
    program = json_columns._program(ANY_OBJECT, None)
    slots = array("q", bytes(8 * scan.slot_numbers()))
    checks: Any = scan.Scan(*program, slots, False)
    for offsets, rows in (([0, 3], 1), ([0, -1], 1), ([2, 1], 1), ([0], 1), ([0, 2, 2], 2)):
        with pytest.raises(ValueError, match=r"outside|too short"):
            checks.check(b"{}", array("i", offsets), rows, bytearray(1), array("q"))
    with pytest.raises(ValueError, match="too few slots"):
        scan.Scan(*program, array("q", [0]), False)


def test_constants() -> None:
    module = kernel("arrow._json_cy", "interpreted")
    assert {kind.name: code for kind, code in CODES.items()} == {kind.name: getattr(module, kind.name) for kind in Kind}
    assert {one.name: int(one) for one in Outcome} == {one.name: getattr(module, one.name) for one in Outcome}
    assert (module.DEPTH_MAX, module.NUMBER_BYTES_MAX, module.NAME_BYTES_MAX) == (
        DEPTH_MAX,
        NUMBER_BYTES_MAX,
        NAME_BYTES_MAX,
    )
