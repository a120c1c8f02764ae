"""Values as JSON, and the schemas of their types. Both follow the annotations of data classes.

A field of type ``Large`` becomes text: a browser would round numbers above 2**53. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from rucola.console.cluster.snapshot import Large

_SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
    object: {},
}
_LARGE = {"type": "string", "format": "int64"}


def to_json(value: Any, hint: Any) -> Any:
    """A value of the type ``hint`` in the form that orjson writes."""
    if value is None:
        return None
    if is_dataclass(hint) and isinstance(hint, type):
        return {name: to_json(getattr(value, name), kind) for name, kind in members(hint)}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return str(value) if hint == Large else to_json(value, arguments[0])
    if origin in (Union, UnionType):
        return to_json(value, _matching(value, arguments))
    if _is_kind(origin, Mapping):
        return {str(key): to_json(one, arguments[1]) for key, one in value.items()}
    if _is_kind(origin, Sequence) or _is_kind(origin, AbstractSet):
        return [to_json(one, arguments[0]) for one in value]
    return value.value if isinstance(value, Enum) else value


def schema(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type. Schemas of data classes are added to ``named`` and referred to."""
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in named:
            named[hint.__name__] = {}  # the type may contain itself
            named[hint.__name__] = {
                "type": "object",
                "description": (hint.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
                "properties": {name: schema(kind, named) for name, kind in members(hint)},
                "required": [name for name, _ in members(hint)],
            }
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return dict(_LARGE) if hint == Large else schema(arguments[0], named)
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one, named) for one in arguments]}
    if _is_kind(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(arguments[1], named)}
    if _is_kind(origin, Sequence) or _is_kind(origin, AbstractSet):
        return {"type": "array", "items": schema(arguments[0], named)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        kind = "integer" if issubclass(hint, int) else "string"
        return {"type": kind, "enum": [one.value for one in hint]}
    raise TypeError(f"no schema for {hint!r}")


@cache
def members(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names and types of a data class's fields."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple((entry.name, hints[entry.name]) for entry in fields(kind))


def _matching(value: Any, hints: Sequence[Any]) -> Any:
    """The member of a union that a value belongs to."""
    for hint in hints:
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else get_origin(hint) or hint
        if plain is not NoneType and isinstance(plain, type) and isinstance(value, plain):
            return hint
    return Any


def _is_kind(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)
