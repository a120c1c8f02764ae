"""Checks JSON bodies against declared types; the rules are in docs/bodies.md.

Spark's and DuckDB's JSON readers each accept texts that are no JSON, and give different values for them. A body is
therefore checked here before they see it. A body that passes has one meaning, and both give it.

The scan goes over bytes and stops at the first problem, so that every problem has a field and a position.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from rucola.arrow.json_shape import ANY, Kind, Shape, TimeUnit
from rucola.arrow.json_values import Misfit, check_number, check_text, time_text

DEPTH_MAX = 200
"""Largest number of objects and arrays around a value; Spark's reader stops at 1,000, Python at its recursion limit."""
NAME_BYTES_MAX = 50_000
NUMBER_BYTES_MAX = 1000
"""As in Spark's reader, which fails beyond; both hold for all fields."""
_SHOWN_MAX = 40
_PATH_MAX = 8

_SPACE = re.compile(rb"[ \t\n\r]*+")
_TEXT = re.compile(rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_WORD = re.compile(rb"true|false|null")
_NO_NUMBER = re.compile(rb"-?(?:NaN|Infinity|INF)", re.IGNORECASE)


class Problem(NamedTuple):
    """Why a body does not fit.

    Attributes:
        path: names and indexes that lead to the value; empty for the body itself.
        what: what is wrong.
        position: of the first byte that is wrong, counted from 0.
    """

    path: tuple[str | int, ...]
    what: str
    position: int

    def __str__(self) -> str:
        where = _shown_path(self.path)
        return f"{where}: {self.what} at byte {self.position}" if where else f"{self.what} at byte {self.position}"


class Checked(NamedTuple):
    """The result for one body.

    Attributes:
        problem: the first problem; None if the body fits.
        text: the body with whole numbers of timestamps replaced by ISO texts; None if there are none.
    """

    problem: Problem | None
    text: bytes | None = None


def check_body(body: bytes, shape: Shape, unit: TimeUnit | None = None) -> Checked:
    """Checks one body.

    Args:
        body: the bytes.
        shape: an object, with the declared fields.
        unit: of whole numbers in fields of type timestamp; without it they are a problem.
    """
    scan = _Scan(body, unit)
    try:
        scan.body_of(shape)
    except Misfit as misfit:
        return Checked(Problem(tuple(scan.path), misfit.what, misfit.position))
    return Checked(None, scan.rewritten())


class _Scan:
    """One pass over a body. Methods take a position and return the position after what they have read."""

    def __init__(self, body: bytes, unit: TimeUnit | None) -> None:
        self.path: list[str | int] = []
        self._body = body
        self._unit = unit
        self._times: list[tuple[int, int, bytes]] = []

    def body_of(self, shape: Shape) -> None:
        at = self._space(0)
        if self._body[at : at + 1] != b"{":
            raise Misfit(f"{self._named(at)}, not an object", at)
        end = self._space(self._object(at, shape, 1))
        if end < len(self._body):
            raise Misfit("text after the object", end)

    def rewritten(self) -> bytes | None:
        if not self._times:
            return None
        parts, done = [], 0
        for start, end, text in self._times:
            parts += [self._body[done:start], text]
            done = end
        return b"".join([*parts, self._body[done:]])

    def _value(self, at: int, shape: Shape, depth: int) -> int:
        first = self._body[at : at + 1]
        if first == b'"':
            text, end = self._text(at)
            check_text(text, shape, at)
            return end
        if first in {b"{", b"["}:
            if depth == DEPTH_MAX:
                raise Misfit(f"more than {DEPTH_MAX} objects and arrays around a value", at)
            wanted = (Kind.OBJECT, Kind.MAP) if first == b"{" else (Kind.ARRAY,)
            if shape.kind not in (*wanted, Kind.ANY, Kind.STRING):
                raise Misfit(f"{self._named(at)}, but the field is {shape.name}", at)
            return (self._object if first == b"{" else self._array)(at, shape, depth + 1)
        if word := _WORD.match(self._body, at):
            if first != b"n" and shape.kind not in (Kind.BOOLEAN, Kind.ANY, Kind.STRING):
                raise Misfit(f"{word[0].decode()}, but the field is {shape.name}", at)
            return word.end()
        return self._number(at, shape)

    def _number(self, at: int, shape: Shape) -> int:
        found = _NUMBER.match(self._body, at)
        if found is None:
            raise Misfit(self._no_value(at), at)
        if found.end() - at > NUMBER_BYTES_MAX:
            raise Misfit(f"a number of more than {NUMBER_BYTES_MAX:,} characters", at)
        token = found[0].decode()
        if shape.kind is Kind.TIMESTAMP:
            self._times.append((at, found.end(), time_text(token, self._unit, at)))
        else:
            check_number(token, shape, at)
        return found.end()

    def _object(self, at: int, shape: Shape, depth: int) -> int:
        seen: set[str] = set()
        fields, others = shape.fields, (shape.item or ANY) if shape.kind is Kind.MAP else ANY
        at = self._space(at + 1)
        if self._body[at : at + 1] == b"}":
            return at + 1
        while True:
            if self._body[at : at + 1] != b'"':
                raise self._missing("name of a field", at)
            name, end = self._text(at)
            if end - at > NAME_BYTES_MAX:
                raise Misfit(f"a field with a name of more than {NAME_BYTES_MAX:,} bytes", at)
            self.path.append(name)
            if name in seen:
                raise Misfit("a second field of this name", at)
            seen.add(name)
            at = self._space(end)
            if self._body[at : at + 1] != b":":
                raise self._missing("colon", at)
            at = self._space(self._value(self._space(at + 1), fields.get(name, others), depth))
            self.path.pop()
            mark = self._body[at : at + 1]
            if mark == b"}":
                return at + 1
            if mark != b",":
                raise self._missing("comma and no end of the object", at)
            at = self._space(at + 1)

    def _array(self, at: int, shape: Shape, depth: int) -> int:
        item = (shape.item or ANY) if shape.kind is Kind.ARRAY else ANY
        at = self._space(at + 1)
        if self._body[at : at + 1] == b"]":
            return at + 1
        number = 0
        while True:
            self.path.append(number)
            at = self._space(self._value(at, item, depth))
            self.path.pop()
            mark = self._body[at : at + 1]
            if mark == b"]":
                return at + 1
            if mark != b",":
                raise self._missing("comma and no end of the array", at)
            at = self._space(at + 1)
            number += 1

    def _text(self, at: int) -> tuple[str, int]:
        found = _TEXT.match(self._body, at)
        assert found is not None
        end = found.end()
        stopped = self._body[end : end + 1]
        if stopped != b'"':
            what = {b"": "the body ends within a text", b"\\": "an unknown escape in a text"}
            raise Misfit(what.get(stopped, "a control character in a text"), end)
        raw = self._body[at + 1 : end]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Misfit("not UTF-8", at + 1 + error.start) from None
        if b"\\" in raw:
            text = json.loads(f'"{text}"')
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Misfit("half of a surrogate pair in a text", at) from None
        return text, end + 1

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._body, at)
        assert found is not None
        return found.end()

    def _missing(self, what: str, at: int) -> Misfit:
        return Misfit(f"no {what}" if at < len(self._body) else "the body ends", at)

    def _no_value(self, at: int) -> str:
        if at == len(self._body):
            return "the body ends"
        found = _NO_NUMBER.match(self._body, at)
        return f"{found[0].decode()} is not JSON" if found else "no JSON value"

    def _named(self, at: int) -> str:
        """What begins at ``at``, for errors."""
        first = self._body[at : at + 1]
        names = {b"": "nothing", b"[": "an array", b"{": "an object", b'"': "a text"}
        if first in names:
            return names[first]
        if _WORD.match(self._body, at):
            return "null" if first == b"n" else "a boolean"
        return "a number" if _NUMBER.match(self._body, at) else "no JSON"


def _shown_path(path: tuple[str | int, ...]) -> str:
    shown = ""
    for one in path[:_PATH_MAX]:
        if isinstance(one, int):
            shown += f"[{one}]"
        else:
            shown += ("." if shown else "") + _shown_name(one)
    return shown + ("..." if len(path) > _PATH_MAX else "")


def _shown_name(name: str) -> str:
    """Senders choose names, and errors go into logs and properties of messages."""
    short = name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "..."
    return short if name.isidentifier() else json.dumps(short)
