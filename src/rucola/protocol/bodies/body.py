"""Base class of typed bodies: converts them to and from JSON.

A body class is a dataclass with one annotated attribute per member. The member's JSON name is the attribute in camel
case, or the name in the class attribute ``json_names``. The reader is as lenient as fastjson (``protocol.md`` 1.9,
2.4): it accepts numbers as strings, strings as numbers, and enums by name or ordinal. Absent and null members take the
default; unknown members are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from enum import Enum
from functools import partial
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from rucola.common.data_version import DataVersion
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.headers.header import camel_case

Reader = Callable[[str, Any], Any]


class Body:
    """Base of all JSON bodies."""

    __slots__ = ()

    json_names: ClassVar[Mapping[str, str]] = {}
    """JSON names by attribute, for attributes whose JSON name is not their own name in camel case."""

    def encode(self) -> bytes:
        """Encodes the body as JSON: keys are sorted, members that are None are left out. Only maps with queues as
        keys are not standard JSON: each such key becomes an object.
        """
        return fastjson.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Returns the members by JSON name, as values for ``fastjson.dumps``; members that are None are included."""
        return {member.json_name: _plain(getattr(self, member.attribute)) for member in _plan(type(self))}

    @classmethod
    def decode(cls, source: bytes | bytearray | memoryview) -> Self:
        """Reads a body.

        Raises:
            FormatError: the source is not a JSON object, or a member has the wrong type.
        """
        return cls.from_dict(fastjson.load_object(source, cls.__name__))

    @classmethod
    def from_dict(cls, data: Mapping[Any, Any]) -> Self:
        """Reads a parsed body.

        Raises:
            FormatError: a member has the wrong type, or a member without default is missing.
        """
        values: dict[str, Any] = {}
        for member in _plan(cls):
            value = data.get(member.json_name)
            what = f"{cls.__name__}, {member.json_name}"
            if value is not None:
                values[member.attribute] = member.read(what, value)
            elif member.required:
                raise FormatError(what, 0, "a value", "none")
        return cls(**values)


class _Member(NamedTuple):
    attribute: str
    json_name: str
    read: Reader
    required: bool


_PLANS: dict[type[Body], tuple[_Member, ...]] = {}


def _plan(body: type[Body]) -> tuple[_Member, ...]:
    known = _PLANS.get(body)
    if known is None:
        known = _PLANS[body] = _declared(body)
    return known


def _declared(body: type[Body]) -> tuple[_Member, ...]:
    hints = get_type_hints(body)
    members = []
    for entry in fields(body):  # type: ignore[arg-type]  # every subclass is a dataclass
        required = entry.default is MISSING and entry.default_factory is MISSING
        json_name = body.json_names.get(entry.name) or camel_case(entry.name)
        members.append(_Member(entry.name, json_name, _reader(hints[entry.name]), required))
    return tuple(members)


def message_queue_from_dict(data: Mapping[Any, Any]) -> MessageQueue:
    """Reads a queue from a parsed body.

    Raises:
        FormatError: a member is missing or has the wrong type.
    """
    return MessageQueue(
        _read_str("MessageQueue, topic", data.get("topic")),
        _read_str("MessageQueue, brokerName", data.get("brokerName")),
        _read_int("MessageQueue, queueId", data.get("queueId")),
    )


def message_queue_to_dict(queue: MessageQueue) -> dict[str, Any]:
    """Returns the members that describe ``queue`` in a body."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


_FROM_DICT: dict[type, Callable[[Mapping[Any, Any]], Any]] = {
    DataVersion: DataVersion.from_dict,
    MessageQueue: message_queue_from_dict,
    SubscriptionGroupConfig: SubscriptionGroupConfig.from_dict,
    TopicConfig: TopicConfig.from_dict,
}
"""Value types that occur in bodies but are not bodies."""


def _plain(value: Any) -> Any:
    if isinstance(value, MessageQueue):
        return message_queue_to_dict(value)
    if isinstance(value, (Body, DataVersion, SubscriptionGroupConfig, TopicConfig)):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        if any(isinstance(key, MessageQueue) for key in value):
            return fastjson.bean_keyed([(_plain(key), _plain(value[key])) for key in sorted(value)])
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value) if fastjson.are_scalars(value) else [_plain(member) for member in value]
    if isinstance(value, (set, frozenset)):
        ordered = sorted(value)
        return ordered if fastjson.are_scalars(ordered) else [_plain(member) for member in ordered]
    return value


def _reader(hint: Any) -> Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _reader(next(option for option in arguments if option is not type(None)))
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin in (list, frozenset):
        return partial(_read_list, origin, _reader(arguments[0]))
    if origin is dict:
        return partial(_read_dict, _reader(arguments[0]), _reader(arguments[1]))
    if issubclass(hint, Enum):
        return partial(_read_enum, hint)
    from_dict = hint.from_dict if issubclass(hint, Body) else _FROM_DICT[hint]
    return partial(_read_object, from_dict)


def _read_str(what: str, value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) in (int, float, bool):
        return str(value).lower()
    raise FormatError(what, 0, "a string", repr(value)[:80])


def _read_int(what: str, value: Any) -> int:
    if type(value) is str and len(value) <= 20:
        with suppress(ValueError):
            value = int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    raise FormatError(what, 0, "a 64-bit number", repr(value)[:80])


def _read_float(what: str, value: Any) -> float:
    if type(value) in (int, float):
        return float(value)
    if type(value) is str and len(value) <= 64:
        with suppress(ValueError):
            return float(value)
    raise FormatError(what, 0, "a number", repr(value)[:80])


def _read_bool(what: str, value: Any) -> bool:
    if type(value) is bool:
        return value
    if value in (0, 1, "true", "false"):
        return value in (1, "true")
    raise FormatError(what, 0, "true or false", repr(value)[:80])


def _read_any(_what: str, value: Any) -> Any:
    return value


_SCALARS: dict[Any, Reader] = {Any: _read_any, str: _read_str, int: _read_int, float: _read_float, bool: _read_bool}


def _read_list(kind: Callable[[list[Any]], Any], read: Reader, what: str, value: Any) -> Any:
    if type(value) is not list:
        raise FormatError(what, 0, "an array", repr(value)[:80])
    return kind([read(what, member) for member in value])


def _read_dict(read_key: Reader, read: Reader, what: str, value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise FormatError(what, 0, "an object", repr(value)[:80])
    return {read_key(what, key): read(what, member) for key, member in value.items() if member is not None}


def _read_enum(kind: type[Enum], what: str, value: Any) -> Enum:
    members = list(kind)
    if type(value) is int and 0 <= value < len(members):
        return members[value]
    if type(value) is str and value in kind.__members__:
        return kind[value]
    raise FormatError(what, 0, f"one of {', '.join(kind.__members__)}, or its number", repr(value)[:80])


def _read_object(from_dict: Callable[[Mapping[Any, Any]], Any], what: str, value: Any) -> Any:
    if isinstance(value, tuple):  # a bean that is the key of a map
        value = dict(value)
    if type(value) is not dict:
        raise FormatError(what, 0, "an object", repr(value)[:80])
    try:
        return from_dict(value)
    except (TypeError, ValueError) as error:
        raise FormatError(what, 0, "members of the declared types", str(error)[:200]) from error
