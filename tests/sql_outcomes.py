"""Evaluates one SQL92 expression for one message."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from rucola.filter.sql.program import SqlExpression, TruthValue


def outcome(expression: SqlExpression, properties: Mapping[str, str] | bytes) -> TruthValue:
    """What ``expression`` says of these properties, or of this text as it is stored."""
    text = properties if isinstance(properties, bytes) else stored(properties)
    outcomes = bytearray(1)
    expression.match(text, array("q", (0, len(text))), 1, outcomes)
    return TruthValue(outcomes[0])


def stored(properties: Mapping[str, str]) -> bytes:
    """The properties as a record stores them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode("utf-8", "surrogatepass")
