"""Bodies as text, JSON and hexdump."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.console.messages.body import HEX_BYTES, WINDOW_BYTES, guess_of, hexdump, indent_json, view_body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "empty"),
        (b'{"a": 1}', "json"),
        (b"  [1]", "json"),
        (b"[1", "text"),
        (b"plain", "text"),
        ("caf\u00e9".encode(), "text"),
        (b"\xff\xfe", "binary"),
        (b"a\x00b", "binary"),
        (("x" + "\u00e9" * WINDOW_BYTES).encode(), "text"),
    ],
)
def test_guesses(body: bytes, expected: str) -> None:
    assert guess_of(body) == expected


def test_json_keeps_its_numbers() -> None:
    text = '{"big":12345678901234567890.10,"s":"a\\"{,","e":[],"o":{ },"l":[1,-2e+3]}'
    shown = indent_json(text)
    assert "12345678901234567890.10" in shown and '"s": "a\\"{,"' in shown and '"e": []' in shown and '"o": {}' in shown
    assert shown.splitlines()[-1] == "}" and '  "big": ' in shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_indented_json_is_the_same_document(value: object) -> None:
    assert json.loads(indent_json(json.dumps(value))) == value


@given(st.text())
def test_any_text_can_be_indented(text: str) -> None:
    indent_json(text)


def test_windows_cover_a_body() -> None:
    body = bytes(range(256)) * 1000
    at, parts = 0, 0
    while at < len(body):
        view = view_body(body, "hex", at)
        assert view.begin == at and view.end - view.begin <= HEX_BYTES
        at, parts = int(view.end), parts + 1
    assert parts == -(-len(body) // HEX_BYTES)
    assert view_body(body, "hex", 10**12).begin < len(body) and view_body(body, "text", -5).begin == 0


def test_a_hexdump() -> None:
    assert hexdump(b"0123456789abcdef!", 16).splitlines() == [
        "00000010  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000020  21                                                !",
    ]
