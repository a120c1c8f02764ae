"""Base class of typed headers: converts them to and from ext fields.

A header class is a dataclass with one annotated attribute per field. The field's wire name is the attribute in camel
case, or the name in the class attribute ``wire_names``. On the wire all values are strings (``protocol.md`` 1.4);
fields that are None are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from rucola.common.java import parse_boolean
from rucola.errors import FormatError

Int = Annotated[int, 32]
Long = Annotated[int, 64]
"""Types of integer fields. Java reads an ``Int`` as ``int`` (32 bits), and a ``Long`` as ``long`` (64 bits)."""


class CommandHeader:
    """Base of all headers."""

    __slots__ = ()

    wire_names: ClassVar[Mapping[str, str]] = {}
    """Wire names by attribute, for attributes whose wire name is not their own name in camel case."""

    def to_ext_fields(self) -> dict[str, str]:
        """Returns the fields as strings, except those that are None."""
        texts: dict[str, str] = {}
        for slot in _slots(type(self)):
            value = getattr(self, slot.attribute)
            if value is not None:
                texts[slot.wire_name] = ("true" if value else "false") if type(value) is bool else str(value)
        return texts

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str]) -> Self:
        """Reads the fields that this class declares; ignores all others.

        Raises:
            FormatError: a field without default is missing, or its text does not have the declared type.
        """
        values: dict[str, Any] = {}
        for slot in _slots(cls):
            text = ext_fields.get(slot.wire_name)
            if text is not None:
                values[slot.attribute] = slot.read(f"{cls.__name__}, field {slot.wire_name}", text)
            elif slot.required:
                raise FormatError(f"{cls.__name__}, field {slot.wire_name}", 0, "a value", "none")
        return cls(**values)


class _Slot(NamedTuple):
    attribute: str
    wire_name: str
    read: Callable[[str, str], Any]
    required: bool


_SLOTS: dict[type[CommandHeader], tuple[_Slot, ...]] = {}


def _slots(header: type[CommandHeader]) -> tuple[_Slot, ...]:
    known = _SLOTS.get(header)
    if known is None:
        known = _SLOTS[header] = _declared(header)
    return known


def _declared(header: type[CommandHeader]) -> tuple[_Slot, ...]:
    hints = get_type_hints(header, include_extras=True)
    slots = []
    for entry in fields(header):  # type: ignore[arg-type]  # every subclass is a dataclass
        required = entry.default is MISSING and entry.default_factory is MISSING
        wire_name = header.wire_names.get(entry.name) or camel_case(entry.name)
        slots.append(_Slot(entry.name, wire_name, _reader(hints[entry.name]), required))
    return tuple(slots)


def camel_case(name: str) -> str:
    """Converts a name to camel case: ``default_topic_queue_nums`` becomes ``defaultTopicQueueNums``."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _reader(hint: Any) -> Callable[[str, str], Any]:
    if get_origin(hint) in (Union, UnionType):
        hint = next(option for option in get_args(hint) if option is not type(None))
    if hint is str:
        return _read_str
    if hint is bool:
        return _read_bool
    if hint == Int:
        return _read_int
    if hint == Long:
        return _read_long
    raise TypeError(f"a header field cannot be of type {hint}")


def _read_str(_what: str, text: str) -> str:
    return text


def _read_bool(_what: str, text: str) -> bool:
    return parse_boolean(text)


def _read_int(what: str, text: str) -> int:
    return _number(what, text, 32)


def _read_long(what: str, text: str) -> int:
    return _number(what, text, 64)


def _number(what: str, text: str, bits: int) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    # int() accepts more than Java: spaces, underscores, digits of other scripts.
    if digits.isascii() and digits.isdigit() and len(digits) <= 64:
        value = int(text)
        if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            return value
    raise FormatError(what, 0, f"a {bits}-bit number", repr(text[:80]))
