"""What a query's filters say about the lite topic of a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rucola.arrow.filters import Call, ColumnRef, Literal, Node, values_of

LITE_TOPIC = "liteTopic"
_CODE_POINT_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class LiteCondition:
    """A message can pass only if its lite topic meets all conditions. A message in no lite topic meets only
    ``is_null``, if that is not set to False.

    Attributes:
        names: the lite topic is one of these; None for any.
        least: the lite topic is this text or a greater one, by code points.
        below: the lite topic is less than this text; None for no limit.
        is_null: whether the message is in no lite topic; None for either.
    """

    names: frozenset[str] | None = None
    least: str = ""
    below: str | None = None
    is_null: bool | None = None

    @property
    def matches_all(self) -> bool:
        """Whether every message can pass."""
        return self == EVERY_LITE

    def __and__(self, other: LiteCondition) -> LiteCondition:
        """Both conditions."""
        names = self.names if other.names is None else other.names
        if self.names is not None and other.names is not None:
            names = self.names & other.names
        is_null = self.is_null if other.is_null is None else other.is_null
        if {self.is_null, other.is_null} == {True, False}:
            names, is_null = frozenset(), None
        limits = [limit for limit in (self.below, other.below) if limit is not None]
        return LiteCondition(names, max(self.least, other.least), min(limits, default=None), is_null)


EVERY_LITE = LiteCondition()


def one_of(values: Iterable[object]) -> LiteCondition:
    """The condition that the lite topic equals one of ``values``; null equals nothing."""
    return LiteCondition(names=frozenset(value for value in values if isinstance(value, str)))


def starts_with(prefix: str) -> LiteCondition:
    """The condition that the lite topic begins with ``prefix``."""
    return LiteCondition(least=prefix, below=_after(prefix), is_null=False)


def at_least(value: str) -> LiteCondition:
    """The condition that the lite topic is ``value`` or greater."""
    return LiteCondition(least=value, is_null=False)


def at_most(value: str) -> LiteCondition:
    """The condition that the lite topic is ``value`` or less."""
    return LiteCondition(below=value + "\0", is_null=False)


def lite_condition(node: Node) -> LiteCondition:
    """What a PyArrow filter says about column ``liteTopic``; a part of unknown form says nothing."""
    if isinstance(node, Literal | ColumnRef):
        return EVERY_LITE
    if node.function in ("and", "and_kleene"):
        found = EVERY_LITE
        for one in node.arguments:
            found &= lite_condition(one)
        return found
    values = values_of(node, LITE_TOPIC)
    if values is not None:
        return one_of(values)
    if node.function == "invert" and isinstance(node.arguments[0], Call) and node.arguments[0].function == "is_null":
        inner = lite_condition(node.arguments[0])
        return EVERY_LITE if inner.matches_all else LiteCondition(is_null=False)
    if ColumnRef(LITE_TOPIC) not in node.arguments:
        return EVERY_LITE
    return _of_column(node.function, node.values) if len(node.arguments) == 1 else _compared(node)


def _of_column(function: str, values: tuple[object, ...]) -> LiteCondition:
    """The condition of a function of column ``liteTopic``."""
    match function:
        case "is_null":
            return LiteCondition(is_null=True)
        case "is_valid":
            return LiteCondition(is_null=False)
        case "starts_with" if values and isinstance(values[0], str):
            return starts_with(values[0])
    return EVERY_LITE


def _compared(node: Call) -> LiteCondition:
    """The condition of a comparison of column ``liteTopic`` with another value."""
    first, second = node.arguments[:2]
    function = node.function
    other = second if isinstance(first, ColumnRef) else first
    if not isinstance(other, Literal) or not isinstance(other.value, str):
        return EVERY_LITE
    if function.startswith("greater" if other is second else "less"):
        return at_least(other.value)
    if function.startswith("less" if other is second else "greater"):
        return at_most(other.value)
    return EVERY_LITE


def _after(prefix: str) -> str | None:
    """The least text that is greater than every text with ``prefix``; None if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _CODE_POINT_MAX:
            return prefix[:at] + chr(following)
    return None
