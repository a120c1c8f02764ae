"""SQL92 filters: the same results as RocketMQ's, positions of errors, and bounded work."""

from __future__ import annotations

import json
import lzma
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import kernel
from tests.sql_outcomes import outcome

from rucola.errors import FormatError
from rucola.filter.sql import SqlExpression, TruthValue, compile_sql
from rucola.filter.sql import program as program_module
from rucola.filter.sql.grammar import DEPTH_MAX, LENGTH_MAX
from rucola.filter.sql.instructions import Op
from rucola.filter.sql.numbers import parse_double, parse_integer
from rucola.filter.sql.program import Type

CASES = Path(__file__).parents[2] / "golden" / "filter" / "filter_cases.json.xz"
RESULTS = {True: TruthValue.TRUE, False: TruthValue.FALSE, None: TruthValue.NULL}
DEVIATIONS = {
    "long-1295": "longer than an expression may be; the reference takes any length, here 100,006 characters",
}


@pytest.fixture
def in_form(form, monkeypatch):
    monkeypatch.setattr(program_module, "_sql_cy", kernel("filter.sql._sql_cy", form))
    return form


@cache
def cases() -> list[dict[str, Any]]:
    return json.loads(lzma.decompress(CASES.read_bytes()))


def expression_of(case: dict[str, Any]) -> str:
    parts = case["expression_parts"] if "expression_parts" in case else [[case["expression"], 1]]
    return "".join(text * times for text, times in parts)


def compiled(text: str) -> SqlExpression | None:
    try:
        return compile_sql(text)
    except FormatError:
        return None


def test_compiles_what_the_reference_compiles():
    answers = {case["id"]: compiled(expression_of(case)) is not None for case in cases()}
    theirs = {case["id"]: case["compile"] == "ok" for case in cases()}
    assert {name for name in theirs if answers[name] != theirs[name]} == set(DEVIATIONS)


def test_evaluates_as_the_reference(in_form):
    """Expressions have the same result (true, false, null, error) as in RocketMQ, for their
    stored text.
    """
    seen = 0
    for case in cases():
        expression = None if case["id"] in DEVIATIONS or case["compile"] != "ok" else compile_sql(expression_of(case))
        if expression is None:
            continue
        for evaluation in case["evaluations"]:
            if evaluation.get("typed"):
                continue
            properties = evaluation["properties"]
            expected = RESULTS[evaluation["result"]] if "result" in evaluation else TruthValue.ERROR
            # A record cannot hold other values.
            if all(value and "\x01" not in value and "\x02" not in value for value in properties.values()):
                assert outcome(expression, properties) is expected, (case["id"], properties)
                seen += 1
    assert seen == 5717


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("a = ", 4, "one of"),
        ("a = 'x", 4, "a token"),
        ("a > 'abc'", 4, "a property or number"),
        ("a = NULL", 4, "a value that can be compared"),
        ("a between 10 and 0", 17, "at least 10"),
        ("a in (5)", 6, "STRING"),
        ("5", 0, "a condition"),
        ("b = 1 and a = 9223372036854775808", 14, "a number up to"),
        ("a = 0.0", 4, "a number between"),
        ("'x' in ('x')", 0, "a property before IN"),
    ],
)
def test_errors_name_the_position(text, position, expected):
    with pytest.raises(FormatError) as caught:
        compile_sql(text)
    assert caught.value.position == position
    assert expected in caught.value.expected


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "(a = 1)",
        "a IN (" + "'x'," * 1_000_000 + "'x')",
        "a = '" + "x" * LENGTH_MAX,
        "-(" * 30 + "a" + " between 1 and 2)" * 30 + " between 1 and 2",
        "/*" + "*" * (LENGTH_MAX - 10),
        "'" * (LENGTH_MAX - 1),
    ],
    ids=["parentheses", "too deep", "not", "long list", "long text", "doubling", "comment", "quotes"],
)
def test_costly_expressions_are_refused(text):
    assert compiled(text) is None


def test_the_worst_that_is_taken_ends_soon(in_form):
    """Expressions that could be costly are evaluated quickly: a search for a long text at each position of another one,
    and numbers with thousands of digits.
    """
    expression = compile_sql("a CONTAINS '" + "x" * 8000 + "y' OR a > 5 OR a = 1")
    assert outcome(expression, {"a": "x" * 32_000}) is TruthValue.ERROR
    assert outcome(expression, {"a": "9" * 32_000}) is TruthValue.ERROR
    deep = compile_sql("(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX)
    assert outcome(deep, {"a": "1"}) is TruthValue.TRUE
    nested = compile_sql("a = (" * 1000 + "a = '1'" + ")" * 1000)
    assert outcome(nested, {}) is TruthValue.NULL


def test_many_messages_in_one_call(in_form):
    expression = compile_sql("a = 'x' AND b > 3")
    texts = [
        b"a\x01x\x02b\x015\x02",
        b"a\x01x\x02",
        b"",
        b"b\x01no\x02a\x01x",
        b"a\x01x\x02b\x012",
        b"\x01\x02a\x02=\x01",
    ]
    places = array("q")
    source = b"??"
    for text in texts:
        places.extend((len(source), len(text)))
        source += text + b"#"
    outcomes = bytearray(len(texts))
    assert expression.match(source, places, len(texts), outcomes) == 1
    assert [TruthValue(o).name for o in outcomes] == ["TRUE", "NULL", "NULL", "ERROR", "FALSE", "NULL"]
    for bad in ([0, len(source) + 1], [len(source), 1], [-1, 1], [0, -1]):
        with pytest.raises(ValueError, match="outside"):
            expression.match(source, array("q", bad), 1, outcomes)
    with pytest.raises(ValueError, match="too short for the texts"):
        expression.match(source, places, len(texts) + 1, bytearray(100))


@given(st.text(alphabet="ab'()=<>-+.,019 \nNOTINANDRSLUFE/*", max_size=60), st.binary(max_size=60))
def test_any_text_compiles_or_is_refused_and_any_properties_are_judged(text, properties):
    expression = compiled(text)
    if expression is not None:
        assert outcome(expression, properties) in TruthValue


@given(
    st.one_of(st.floats().map(repr), st.integers().map(str), st.text(alphabet="0123456789.eE+-xfdNaI ", max_size=12))
)
def test_forms_agree_on_numbers(text):
    """Numbers that the kernel reads itself are equal to those of the general path."""
    expression = compile_sql("a = 1.5 OR a = 3 OR a = 3000000000")
    assert outcome(expression, {"a": text}) in TruthValue
    exact = parse_double(text.encode())
    literal = compile_sql("a >= b AND a <= b")
    if exact is not None:
        assert outcome(literal, {"a": text, "b": text}) is not TruthValue.ERROR


@pytest.mark.parametrize(
    ("text", "integer", "double"),
    [
        ("5", 5, 5.0), ("+5", 5, 5.0), ("-0", 0, -0.0), ("٣", 3, None), (" 5", None, 5.0), ("5L", None, None),
        ("5d", None, 5.0), ("0x1p-3", None, 0.125), ("NaNx", None, None), ("-Infinity", None, float("-inf")),
        ("1_0", None, None), ("", None, None), ("2147483648", None, 2147483648.0), ("9" * 2000, None, None),
    ],
)  # fmt: skip
def test_numbers_as_java_reads_them(text, integer, double):
    assert parse_integer(text.encode(), 31) == integer
    assert parse_double(text.encode()) == double


def test_kernel_restates_the_operations():
    constants = vars(kernel("filter.sql._sql_cy", "interpreted"))
    for prefix, enum in (("OP_", Op), ("TYPE_", Type), ("", TruthValue)):
        for member in enum:
            assert constants[prefix + member.name] == member
