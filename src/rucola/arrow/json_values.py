"""Rules for single values of JSON bodies: which numbers and texts a declared type takes."""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation

from rucola.arrow.json_shape import Kind, Shape, TimeUnit

_SHOWN_MAX = 40
_WHOLE_CHARS_MAX = 20
"""More characters than any whole number of 64 bits has."""
_EXPONENT_MAX = 1000
"""For decimals, zeros as well: nobody should have to write their zeros out."""
_SINGLE_END = 2.0**128 - 2.0**103
"""The least double that becomes infinite as a number of 32 bits."""
_MICROS = {TimeUnit.SECONDS: 1_000_000, TimeUnit.MILLIS: 1000, TimeUnit.MICROS: 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MOST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,9})?"
    r"(Z|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?)?)?)?"
)


class Misfit(Exception):  # noqa: N818 - it never leaves the scan
    """A value, or the text around it, breaks a rule.

    Attributes:
        what: what is wrong.
        position: where, in bytes from the start of the body.
    """

    def __init__(self, what: str, position: int) -> None:
        super().__init__(what)
        self.what = what
        self.position = position


def check_number(token: str, shape: Shape, at: int) -> None:
    """Checks a number against its field's type.

    Args:
        token: the number as it is written; JSON's grammar is already checked.
        shape: the declared type.
        at: position of the number.

    Raises:
        Misfit: the type takes no number, or not this one.
    """
    if shape.kind in (Kind.ANY, Kind.STRING):
        return
    if shape.kind is Kind.WHOLE:
        if not token.removeprefix("-").isdigit():
            raise Misfit(f"{_shown(token)} is not a whole number, but the field is {shape.name}", at)
        limit = 1 << (shape.bits - 1)
        if len(token) > _WHOLE_CHARS_MAX or not -limit <= int(token) < limit:
            raise _beyond(token, shape, at)
    elif shape.kind is Kind.REAL:
        value = abs(float(token))
        if math.isinf(value) or (shape.bits == 32 and value >= _SINGLE_END):
            raise _beyond(token, shape, at)
    elif shape.kind is Kind.DECIMAL:
        _check_decimal(token, shape, at)
    else:
        raise Misfit(f"a number, but the field is {shape.name}", at)


def check_text(text: str, shape: Shape, at: int) -> None:
    """Checks a text against its field's type; arguments and errors as in ``check_number``."""
    if shape.kind in (Kind.ANY, Kind.STRING):
        return
    if shape.kind is Kind.DECIMAL and _NUMBER.fullmatch(text):
        _check_decimal(text, shape, at)
    elif shape.kind in _TEXT_RULES:
        if not _TEXT_RULES[shape.kind](text):
            raise Misfit(f"a text that is no {shape.name}", at)
    else:
        raise Misfit(f"a text, but the field is {shape.name}", at)


def time_text(token: str, unit: TimeUnit | None, at: int) -> bytes:
    """The time that a whole number means, as a JSON text in ISO form.

    Args:
        token: the number as it is written.
        unit: its unit; None if none is declared.
        at: position of the number.

    Raises:
        Misfit: no unit is declared, the number is not whole, or the time is outside the years 1 to 9999.
    """
    if unit is None:
        raise Misfit(f"{_shown(token)} for a timestamp, and integer_times is not given", at)
    if not token.removeprefix("-").isdigit():
        raise Misfit(f"{_shown(token)} is not a whole number of {unit}", at)
    micros = int(token) * _MICROS[unit] if len(token) <= _WHOLE_CHARS_MAX else _MOST_US + 1
    if not _LEAST_US <= micros <= _MOST_US:
        raise Misfit(f"{_shown(token)} {unit} is outside the years 1 to 9999", at)
    when = _EPOCH + timedelta(microseconds=micros)
    return f'"{when.replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'.encode()


def time_range(unit: TimeUnit) -> tuple[int, int]:
    """The least and the largest whole number of ``unit`` that is in the years 1 to 9999."""
    return -(-_LEAST_US // _MICROS[unit]), _MOST_US // _MICROS[unit]


def _check_decimal(token: str, shape: Shape, at: int) -> None:
    try:
        value = Decimal(token)
    except InvalidOperation:
        raise _beyond(token, shape, at) from None
    digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
    assert isinstance(exponent, int)
    if abs(exponent) > _EXPONENT_MAX or (value and value.adjusted() >= shape.precision - shape.scale):
        raise _beyond(token, shape, at)
    if not value:
        return
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    if exponent + zeros < -shape.scale:
        raise Misfit(f"{_shown(token)} has more than {shape.scale} digits after the point", at)


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    try:
        return found is not None and bool(date(*map(int, found.groups())))
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if found is None or not _is_date(found[1]):
        return False
    return int(found[2] or 0) < 24 and int(found[3] or 0) < 60 and int(found[4] or 0) < 60


def _is_local_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    return found is not None and found[5] is None and _is_time(text)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_TEXT_RULES = {
    Kind.DATE: _is_date,
    Kind.TIMESTAMP: _is_time,
    Kind.LOCAL_TIMESTAMP: _is_local_time,
    Kind.BINARY: _is_base64,
}


def beyond(shape: Shape) -> str:
    """How an error says that a number is whole, but too large for its type; the text ends with it."""
    return f"is beyond {shape.name}"


def _beyond(token: str, shape: Shape, at: int) -> Misfit:
    return Misfit(f"{_shown(token)} {beyond(shape)}", at)


def _shown(token: str) -> str:
    return token if len(token) <= _SHOWN_MAX else token[:_SHOWN_MAX] + "..."
