"""Which attributes a topic may have (RocketMQ 5.3.3, ``TopicAttributes`` and ``AttributeUtil``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rucola.common.numbers import INT64_MAX
from rucola.common.topic_config import MESSAGE_TYPE, MIXED
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

_NOT_SERVED = {
    "cleanup.policy": ("DELETE", "this broker keeps all messages of a topic until they expire"),
    "reserve.time": ("-1", "messages of all topics are kept for fileReservedTime"),
}
"""Attributes that have no effect on this broker. Each maps to the only value that the broker accepts, and to the reason
why it refuses other values.
"""


class _Attribute(NamedTuple):
    changeable: bool
    check: Callable[[str], str | None]
    """Returns what is wrong with a value."""


def _one_of(*values: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return check


def _reserve_time(value: str) -> str | None:
    digits = value.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19 or not -1 <= int(value) <= INT64_MAX:
        return f"value is not in range(-1, {INT64_MAX})"
    return None


_ATTRIBUTES = {
    MESSAGE_TYPE: _Attribute(True, _one_of("UNSPECIFIED", "TRANSACTION", "FIFO", MIXED, "DELAY", "NORMAL")),
    "queue.type": _Attribute(False, _one_of("BatchCQ", "SimpleCQ")),
    "cleanup.policy": _Attribute(False, _one_of("DELETE", "COMPACTION")),
    "reserve.time": _Attribute(True, _reserve_time),
}


def change_attributes(known: Mapping[str, str] | None, changes: str) -> dict[str, str]:
    """Applies ``+key=value,-key`` to the attributes of a topic.

    Args:
        known: the current attributes; None for a new topic.

    Raises:
        BrokerError: SYSTEM_ERROR with RocketMQ's text; INVALID_PARAMETER if the change is malformed or would have no
            effect, or the attribute cannot be changed.
    """
    attributes = dict(known or {})
    seen = set()
    for change in filter(None, changes.split(",")):
        key, _, value = change[1:].partition("=")
        if change[0] not in "+-" or not key or (change[0] == "+" and not value):
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"attribute change {change!r}: +key=value or -key expected"
            )
        attribute = _ATTRIBUTES.get(key)
        if attribute is None:
            raise _refusal(f"unsupported key: {key}")
        if key in seen:
            raise _refusal(f"key duplication: {key}")
        seen.add(key)
        if known is None and change[0] == "-":
            raise _refusal(f"only add attribute is supported while creating topic. key: {key}")
        if known is not None and not attribute.changeable:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"{key} of a topic cannot be changed")
        if change[0] == "-":
            attributes.pop(key, None)
            continue
        problem = attribute.check(value)
        if problem is not None:
            raise _refusal(problem)
        _refuse_without_effect(key, value)
        attributes[key] = value
    return attributes


def without_effect(attributes: Mapping[str, str]) -> list[str]:
    """The attributes that have no effect on this broker. A topic that a RocketMQ broker created may have them."""
    return [key for key, (served, _) in _NOT_SERVED.items() if attributes.get(key, served) != served]


def _refuse_without_effect(key: str, value: str) -> None:
    """Refuses attributes that would have no effect, because accepting one would be a false promise."""
    served, reason = _NOT_SERVED.get(key, (value, ""))
    if value != served:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, f"{key}={value} is not supported: {reason}; {served} is allowed"
        )


def _refusal(text: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, text)
