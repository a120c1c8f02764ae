"""Parameters of an address as the data class of a view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints
from urllib.parse import urlencode

from rucola.common.numbers import INT64_MAX, number_in
from rucola.console.visit import BadQueryError

T = TypeVar("T")
VALUE_CHARACTERS_MAX = 8192


def parse_query(kind: type[T], values: Mapping[str, str], characters_max: int = VALUE_CHARACTERS_MAX) -> T:
    """Makes the query ``kind`` from parameters; those that it does not have are ignored.

    Raises:
        BadQueryError: a parameter is missing, or its value is not allowed.
    """
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for entry in fields(kind):  # type: ignore[arg-type]
        text = values.get(entry.name)
        if text is None:
            if entry.default is MISSING:
                raise BadQueryError(entry.name, "", "a value")
            continue
        if len(text) > characters_max:
            raise BadQueryError(entry.name, text[:40], f"at most {characters_max} characters")
        given[entry.name] = _parsed(entry.name, text, hints[entry.name])
    return kind(**given)


def query_text(query: Any, **changes: object) -> str:
    """The part of an address behind the question mark: what differs from the defaults, and ``changes``."""
    values = {entry.name: getattr(query, entry.name) for entry in fields(query)} | changes
    defaults = {entry.name: entry.default for entry in fields(query)}
    return urlencode(
        {
            name: "true" if value is True else str(value)
            for name, value in values.items()
            if value is not None and value is not False and value != defaults.get(name)
        }
    )


def _parsed(name: str, text: str, hint: Any) -> Any:
    if hint is str:
        return text
    if hint is bool:
        if text not in ("true", "false", "1", "0", "on", ""):
            raise BadQueryError(name, text, "true or false")
        return text in ("true", "1", "on")
    value = number_in(text or "0", -INT64_MAX, INT64_MAX)
    if value is None:
        raise BadQueryError(name, text, "a whole number")
    return value
