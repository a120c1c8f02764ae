"""Changes of the attributes of topics and consumer groups (RocketMQ 5.3.3, ``AttributeUtil``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from rucola.common.numbers import number_in
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode


class Attribute(NamedTuple):
    """An attribute that a topic or a group may have."""

    changeable: bool
    check: Callable[[str], str | None]
    """Returns what is wrong with a value."""


def one_of(*values: str) -> Callable[[str], str | None]:
    """The check of an attribute with one of several values."""

    def check(value: str) -> str | None:
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return check


def any_text(_value: str) -> str | None:
    """The check of an attribute with any value."""
    return None


def in_range(low: int, high: int) -> Callable[[str], str | None]:
    """The check of an attribute with a number from ``low`` to ``high``."""

    def check(value: str) -> str | None:
        return None if number_in(value, low, high) is not None else f"value is not in range({low}, {high})"

    return check


def change_attributes(
    allowed: Mapping[str, Attribute], kind: str, known: Mapping[str, str] | None, changes: Iterable[str]
) -> dict[str, str]:
    """Applies changes, each ``+key=value`` or ``-key``.

    Args:
        kind: what has the attributes: ``topic`` or ``group``.
        known: the current attributes; None if it is new.

    Raises:
        BrokerError: SYSTEM_ERROR with RocketMQ's text; INVALID_PARAMETER if a change is malformed, or the attribute
            cannot be changed.
    """
    attributes = dict(known or {})
    seen = set()
    for change in changes:
        key, _, value = change[1:].partition("=")
        if change[0] not in "+-" or not key or (change[0] == "+" and not value):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"attribute change {change!r}: +key=value or -key expected"
            )
        attribute = allowed.get(key)
        if attribute is None:
            raise _refusal(f"unsupported key: {key}")
        if key in seen:
            raise _refusal(f"key duplication: {key}")
        seen.add(key)
        if known is None and change[0] == "-":
            raise _refusal(f"only add attribute is supported while creating {kind}. key: {key}")
        if known is not None and not attribute.changeable:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"{key} of a {kind} cannot be changed")
        if change[0] == "-":
            attributes.pop(key, None)
            continue
        problem = attribute.check(value)
        if problem is not None:
            raise _refusal(problem)
        attributes[key] = value
    return attributes


def _refusal(text: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, text)
