"""The JSON dialect of bodies: writes standard JSON, except in ``bean_keyed``, and reads what fastjson writes
(``protocol.md`` 1.9).

``loads`` tries standard JSON first. If that fails, it also accepts strings in single quotes, and map keys that are
numbers, JSON objects (beans) or plain identifiers. In both cases, it replaces ``{"$ref": "$.path"}`` by the value at
that path. Numbers and identifiers as keys become strings. A bean as key becomes a tuple of its (name, value) pairs,
sorted by name: ``dict(key)`` restores the bean if none of its values is an object or array.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Self

from rucola.common.json_library import orjson
from rucola.errors import FormatError

DEPTH_MAX = 32
"""Maximum nesting depth of objects and arrays."""
BYTES_MAX = 16 * 1024 * 1024
"""Size limit of a body in bytes; equal to the size limit of a frame."""
_RESOLVED_MAX = 1 << 20
"""Largest total number of members at one nesting depth of a body with references. Without this limit, a few hundred
bytes of references could expand to billions of members.
"""

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPES = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_LITERALS = {"true": True, "false": False, "null": None}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


class ReadBody(bytes):
    """A body that is parsed when it is made, on any thread: for a ``ReadBody``, ``loads`` returns its ``value`` without
    parsing it again. The caller must not change the value.

    Attributes:
        value: the result of ``loads`` for the same bytes.

    Raises:
        FormatError: see ``loads``.
    """

    value: Any

    def __new__(cls, source: bytes | bytearray | memoryview) -> Self:
        """Parses ``source``."""
        self = super().__new__(cls, source)
        self.value = loads(source)
        return self


def loads(source: bytes | bytearray | memoryview) -> Any:
    """Parses the value in ``source``.

    Raises:
        FormatError: the source is not JSON in this dialect, repeats a key in an object, or exceeds a limit (length,
            depth, number of members after references are replaced). A reference that leads to no value, or to a value
            that encloses the reference, is an error, too.
    """
    if isinstance(source, ReadBody):
        return source.value
    source = bytes(source)
    if len(source) > BYTES_MAX:
        raise FormatError("JSON body", 0, f"at most {BYTES_MAX} bytes", str(len(source)))
    try:
        value = orjson.loads(source)
    except orjson.JSONDecodeError:
        value = _Parser(source).document()
    else:
        _check_depth(value)
        json.loads(source, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    return _resolve(value) if b"$ref" in source else value


def dumps(value: Any) -> bytes:
    """Returns standard JSON that every peer can read: keys sorted, numeric keys quoted, members that are None left
    out.
    """
    return orjson.dumps(_without_none(value), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def bean_keyed(table: Iterable[tuple[Any, Any]]) -> orjson.Fragment:
    """Encodes a map whose keys are objects; standard JSON forbids such keys. A value for ``dumps`` may contain the
    result.
    """
    return orjson.Fragment(b"{" + b",".join([dumps(key) + b":" + dumps(value) for key, value in table]) + b"}")


def are_scalars(values: Iterable[Any]) -> bool:
    """Whether all values are strings, numbers, booleans or None. This check is fast: no Python code runs per value."""
    return _SCALARS.issuperset(map(type, values))


def load_object(source: bytes | bytearray | memoryview, what: str) -> dict[Any, Any]:
    """Parses the object in ``source``.

    Args:
        source: the encoded object.
        what: what the error calls the value if the value is not an object.

    Raises:
        FormatError: ``loads`` fails, or the value is not an object.
    """
    value = loads(source)
    if type(value) is not dict:
        raise FormatError(what, 0, "a JSON object", type(value).__name__)
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: member if type(member) in _SCALARS else _without_none(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value) if are_scalars(value) else [_without_none(member) for member in value]
    return value


def _check_depth(value: Any, members_max: int = BYTES_MAX) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        if sum([len(outer) for outer in level if isinstance(outer, (dict, list))]) > members_max:
            raise FormatError("JSON body", 0, f"at most {members_max} members on a level", "more")
        level = [member for outer in level if isinstance(outer, (dict, list)) for member in _members(outer)]
        if not level:
            return
    raise FormatError("JSON body", 0, f"at most {DEPTH_MAX} levels", "more")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise FormatError("JSON body", 0, "each key once", ", ".join([name for name, _ in pairs])[:200])


def _members(value: dict[Any, Any] | list[Any]) -> list[Any]:
    return value if isinstance(value, list) else list(value.values())


class _Parser:
    """A recursive-descent parser for the decoded text; positions in errors count characters."""

    __slots__ = ("_at", "_depth", "_text")

    def __init__(self, source: bytes) -> None:
        try:
            self._text = source.decode()
        except UnicodeDecodeError as error:
            raise FormatError("JSON body", error.start, "UTF-8", error.reason) from error
        self._at = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._space()
        if self._at != len(self._text):
            raise self._error("the end")
        return value

    def _value(self) -> Any:
        self._space()
        first = self._text[self._at : self._at + 1]
        if first == "{":
            return self._nested(self._object)
        if first == "[":
            return self._nested(self._array)
        if first in _PLAIN:
            return self._string(first)
        return self._literal()

    def _nested(self, read: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"at most {DEPTH_MAX} levels")
        self._at += 1
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        if self._take("}"):
            return members
        while True:
            key = self._key()
            if not self._take(":"):
                raise self._error("':'")
            if key in members:
                raise self._error(f"each key once, not a second {str(key)[:64]}")
            members[key] = self._value()
            if self._take("}"):
                return members
            if not self._take(","):
                raise self._error("',' or '}'")

    def _array(self) -> list[Any]:
        members: list[Any] = []
        if self._take("]"):
            return members
        while True:
            members.append(self._value())
            if self._take("]"):
                return members
            if not self._take(","):
                raise self._error("',' or ']'")

    def _key(self) -> Any:
        self._space()
        first = self._text[self._at : self._at + 1]
        if first in _PLAIN:
            return self._string(first)
        if first == "{":
            return _as_key(self._nested(self._object))
        match = _NUMBER.match(self._text, self._at) or _IDENTIFIER.match(self._text, self._at)
        if match is None:
            raise self._error("a key")
        self._at = match.end()
        return match[0]

    def _string(self, quote: str) -> str:
        parts = []
        self._at += 1
        while True:
            match = _PLAIN[quote].match(self._text, self._at)
            assert match is not None  # the pattern matches even the empty string
            parts.append(match[0])
            self._at = match.end()
            after = self._text[self._at : self._at + 1]
            if after == quote:
                self._at += 1
                return "".join(parts)
            if after != "\\":
                raise self._error(f"{quote} or an escape")
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter != "u":
            if letter not in _ESCAPES:
                raise self._error("an escape")
            self._at += 2
            return _ESCAPES[letter]
        unit = self._unit()
        if 0xD800 <= unit < 0xDC00 and self._text.startswith("\\u", self._at):
            low = self._unit()
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + low - 0xDC00)
            unit = 0xD800
        if 0xD800 <= unit < 0xE000:
            raise self._error("a surrogate pair")
        return chr(unit)

    def _unit(self) -> int:
        digits = self._text[self._at + 2 : self._at + 6]
        if re.fullmatch("[0-9a-fA-F]{4}", digits) is None:
            raise self._error("four hexadecimal digits")
        self._at += 6
        return int(digits, 16)

    def _literal(self) -> Any:
        match = _NUMBER.match(self._text, self._at)
        if match is not None:
            if match.end() - self._at > 64:
                raise self._error("a number of at most 64 characters")
            number = float(match[0]) if match[1] or match[2] else int(match[0])
            if type(number) is int and not -(1 << 63) <= number < 1 << 64:
                raise self._error("an integer of at most 64 bits")
            self._at = match.end()
            return number
        match = _IDENTIFIER.match(self._text, self._at)
        if match is None or match[0] not in _LITERALS:
            raise self._error("a value")
        self._at = match.end()
        return _LITERALS[match[0]]

    def _take(self, character: str) -> bool:
        self._space()
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None  # the pattern matches even the empty string
        self._at = match.end()

    def _error(self, expected: str) -> FormatError:
        return FormatError("JSON body", self._at, expected, repr(self._text[self._at : self._at + 20]) or "the end")


def _as_key(value: Any) -> Any:
    """Returns ``value`` in a hashable form."""
    if isinstance(value, dict):
        return tuple(sorted(((str(name), _as_key(member)) for name, member in value.items()), key=lambda pair: pair[0]))
    if isinstance(value, list):
        return tuple(_as_key(member) for member in value)
    return value


def _resolve(root: Any) -> Any:
    """Replaces each ``{"$ref": path}`` by the value at the path, and refuses a reference to a value that encloses the
    reference. If the value at the path is itself a reference, it is not resolved any further.
    """
    places: list[tuple[Any, Any, str, list[Any]]] = []
    _find_references(root, [root], places)
    targets = []
    for _, _, path, enclosing in places:
        target = _at_path(root, path)
        if any(target is outer for outer in enclosing):
            raise FormatError("JSON body", 0, "a reference to a value that does not enclose it", path)
        targets.append(target)
    for (container, key, _, _), target in zip(places, targets, strict=True):
        container[key] = target
    _check_depth(root, _RESOLVED_MAX)
    return root


def _find_references(value: Any, enclosing: list[Any], places: list[tuple[Any, Any, str, list[Any]]]) -> None:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        if isinstance(member, dict) and len(member) == 1 and isinstance(member.get("$ref"), str):
            places.append((value, key, member["$ref"], enclosing))
        else:
            _find_references(member, [*enclosing, member], places)


def _at_path(root: Any, path: str) -> Any:
    value, at = root, 1
    while path.startswith("$") and at < len(path):
        match = _STEP.match(path, at)
        try:
            if match is None:
                break
            value = value[match[1]] if match[1] else value[int(match[2])]
        except (KeyError, IndexError, TypeError):
            break
        at = match.end()
    else:
        if path.startswith("$"):
            return value
    raise FormatError("JSON body", 0, "a reference to a value in the body", path)
