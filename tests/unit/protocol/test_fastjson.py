"""The JSON dialect of bodies, fastjson."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.golden import all_frames

from rucola.errors import FormatError
from rucola.protocol import fastjson

BEAN = (("brokerName", "b"), ("queueId", 1), ("topic", "t"))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (b'{"a":[1,-2.5,true,null,"x"]}', {"a": [1, -2.5, True, None, "x"]}),
        (b'{0:"a",10:"b",-1:"c"}', {"0": "a", "10": "b", "-1": "c"}),
        (b'{{"topic":"t","queueId":1,"brokerName":"b"}:12}', {BEAN: 12}),
        (b'{"x":{{"brokerName":"b","queueId":1,"topic":"t"}:{"y":{1:2}}}}', {"x": {BEAN: {"y": {"1": 2}}}}),
        (b"{'a':'it\\'s \"x\"',\"b\":0}", {"a": 'it\'s "x"', "b": 0}),
        (b"{name:1,$x:2,_y9:3}", {"name": 1, "$x": 2, "_y9": 3}),
        (b' { 0 : [ ] , 1 : { } } \r\n\t', {"0": [], "1": {}}),
        (b'{0:"\\u0041\\ud83d\\ude00\\n\\/"}', {"0": "A\U0001f600\n/"}),
        (b"{0:1e3,1:-0.5E-1,2:0}", {"0": 1000.0, "1": -0.05, "2": 0}),
        (b'{{"a":[1,{"b":null}]}:1}', {(("a", (1, (("b", None),))),): 1}),
        (b"[]", []),
        (b"7", 7),
    ],
)  # fmt: skip
def test_reads(source: bytes, value: Any) -> None:
    assert fastjson.loads(source) == value
    assert fastjson.loads(memoryview(source)) == value


@pytest.mark.parametrize(
    "source",
    [
        b"", b"{", b"}", b"{0:1", b"{0:1,}", b"{0:1 2:3}", b"{0:}", b"{0}", b"{0:1}x", b"[1,]", b"[1 2]", b"[", b"{:1}",
        b"{0:'}", b"{0:'\\", b"{0:'\\x'}", b"{0:'\\u12'}", b"{0:'\\ud800'}", b"{0:'\\ud800\\u0041'}", b"{0:'\\udc00'}",
        b"{0:'\n'}", b"{0:tru}", b"{0:NaN}", b"{0:01}", b"{0:-}", b"{0:\xff}", b"{0:" + b"9" * 65 + b"}", b"{[1]:2}",
        b"nul", b"{0:1}{0:1}",
    ],
)  # fmt: skip
def test_refuses(source: bytes) -> None:
    with pytest.raises(FormatError):
        fastjson.loads(source)


@pytest.mark.parametrize("inner", [b"1", b"x"])
def test_depth(inner: bytes) -> None:
    key = b"0" if inner == b"x" else b'"0"'
    value = b"1"
    deepest = b"[" * 31 + b"{" + key + b":" + value + b"}" + b"]" * 31
    assert isinstance(fastjson.loads(deepest), list)
    with pytest.raises(FormatError, match="32 levels"):
        fastjson.loads(b"[" + deepest + b"]")
    with pytest.raises(FormatError):
        fastjson.loads(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(FormatError):
        fastjson.loads(b"{0:" * 100_000)


def test_depth_counts_levels_and_not_members() -> None:
    assert fastjson.loads(b"[" + b",".join([b"{0:1}"] * 100) + b"]") == [{"0": 1}] * 100


def test_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "BYTES_MAX", 4)
    assert fastjson.loads(b"[10]") == [10]
    with pytest.raises(FormatError, match="at most 4 bytes"):
        fastjson.loads(b"[100]")


def test_references() -> None:
    source = b'{"a":{"x":[{"y":1},{"y":2}]},"b":{"$ref":"$.a"},"c":[{"$ref":"$.a.x[1]"}],0:{"$ref":"$.a.x"}}'
    value = fastjson.loads(source)
    assert value["b"] == value["a"] and value["c"] == [{"y": 2}] and value["0"] == [{"y": 1}, {"y": 2}]
    assert fastjson.loads(b'{"$ref":"$.a","b":1}') == {"$ref": "$.a", "b": 1}
    assert fastjson.loads(b'{"a":"$ref"}') == {"a": "$ref"}


@pytest.mark.parametrize(
    "source",
    [
        b'{"a":{"$ref":"$"}}', b'{"a":{"b":{"$ref":"$.a"}}}', b'{"a":{"$ref":"$.b"}}', b'{"a":{"$ref":".."}}',
        b'{"a":[1],"b":{"$ref":"$.a[1]"}}', b'{"a":1,"b":{"$ref":"$.a.x"}}', b'{"a":1,"b":{"$ref":"$a"}}',
        b'{"a":1,"b":{"$ref":""}}',
    ],
)  # fmt: skip
def test_references_that_lead_nowhere(source: bytes) -> None:
    with pytest.raises(FormatError, match="reference"):
        fastjson.loads(source)


def test_writes() -> None:
    assert fastjson.dumps({"b": 1, "a": None, "c": {"z": [None, {"y": None}], "x": frozenset({"t"})}}) == (
        b'{"b":1,"c":{"x":["t"],"z":[null,{}]}}'
    )
    assert fastjson.dumps({1: "b", 0: "a"}) == b'{"0":"a","1":"b"}'


def test_a_list_of_names_takes_no_step_per_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, decoding a list of 1,000 names took 4 ms."""
    steps = []
    without_none = fastjson._without_none
    monkeypatch.setattr(fastjson, "_without_none", lambda value: steps.append(value) or without_none(value))
    names = [f"member-{number}" for number in range(1000)]
    assert fastjson.loads(fastjson.dumps({"names": names, "mixed": ["a", None, 1, True]})) == {
        "names": names,
        "mixed": ["a", None, 1, True],
    }
    assert len(steps) == 3


def test_recorded_bodies_cut_anywhere() -> None:
    bodies = {entry.body for entry in all_frames() if entry.body[:2] in (b'{"', b"{{") and len(entry.body) < 700}
    dialect = []
    for body in bodies:
        fastjson.loads(body)
        try:
            json.loads(body)
        except ValueError:
            dialect.append(body)
    assert len(dialect) > 5
    for body in dialect[:5]:
        for size in range(len(body)):
            with pytest.raises(FormatError):
                fastjson.loads(body[:size])
        with pytest.raises(FormatError):
            fastjson.loads(body + b"}")


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | text | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_both_parsers_read_what_is_written(value: Any) -> None:
    written = fastjson.dumps(value)
    if b"$ref" not in written:
        assert fastjson.loads(written) == value
        assert fastjson._Parser(written).document() == value


@given(
    st.one_of(
        st.binary(max_size=40), st.text(st.sampled_from("{}[]:,'\"\\u0019aetruefnl$.- \n"), max_size=40).map(str.encode)
    )
)
def test_any_bytes(source: bytes) -> None:
    try:
        fastjson.loads(source)
    except FormatError as error:
        assert str(error)
