"""Tag expressions of subscriptions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.errors import FormatError
from rucola.filter import TagExpression, parse_tag_expression, parse_tags


@pytest.mark.parametrize(
    ("expression", "tags", "codes"),
    [
        ("TagA", ("TagA",), {2598919}),
        ("TagB || TagA", ("TagA", "TagB"), {2598919, 2598920}),
        ("TagA||TagA||", ("TagA",), {2598919}),
        (" a | b ", ("a | b",), {90655103}),
        ("AaAa || BBBB", ("AaAa", "BBBB"), {2031744}),  # the same hash code
        ("* || a", ("*", "a"), {42, 97}),
        ("\u00e9", ("\u00e9",), {233}),
        ("\U0001f600", ("\U0001f600",), {1772899}),
        ("zzzzzz", ("zzzzzz",), {-685785664}),
    ],
)
def test_tags(expression: str, tags: tuple[str, ...], codes: set[int]) -> None:
    assert parse_tag_expression(expression) == TagExpression(expression, tags, frozenset(codes))
    assert parse_tags(expression) == codes


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_all(expression: str | None) -> None:
    parsed = parse_tag_expression(expression)
    assert parsed == TagExpression("*", (), frozenset())
    assert parsed.matches_all and parsed.matches(None) and parsed.matches("x")
    assert parse_tags(expression) is None


@pytest.mark.parametrize("expression", ["||", " || ", "||||", " "])
def test_separators_only(expression: str) -> None:
    with pytest.raises(FormatError, match="separators"):
        parse_tag_expression(expression)


def test_matching_is_exact() -> None:
    parsed = parse_tag_expression("AaAa || x")
    assert parsed.matches("AaAa") and parsed.matches("x")
    assert not parsed.matches("BBBB") and not parsed.matches(None) and not parsed.matches("X")


@given(st.text(st.sampled_from("a|* \u00e9b"), max_size=12))
def test_any_expression(expression: str) -> None:
    try:
        parsed = parse_tag_expression(expression)
    except FormatError:
        assert not expression.replace("|", "").strip()
        return
    assert list(parsed.tags) == sorted(set(parsed.tags))
    assert json.dumps(sorted(parsed.codes))
    assert all(parsed.matches(tag) for tag in parsed.tags)
