"""Decides which keys and physical offsets to look up in an index, so that no wanted message is missed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from rucola.common.message_const import KEY_SEPARATOR
from rucola.formats.message_id import parse_offset_message_id

LOOKUP_KEYS_MAX = 100


class KeyLookup(NamedTuple):
    """A message is wanted if it has one of ``keys`` in KEYS or as UNIQ_KEY, or is at one of ``physical_offsets``."""

    keys: frozenset[str]
    physical_offsets: frozenset[int] = frozenset()


def lookup_of_columns(keys: Collection[object] | None, ids: Collection[object] | None) -> KeyLookup | None:
    """The lookup for messages whose column ``keys`` has one of ``keys``, and whose column ``msgId`` has one of ``ids``.

    Args:
        keys: wanted values of column ``keys``; None for any value.
        ids: wanted values of column ``msgId``; None for any value.

    Returns:
        The lookup: by ``keys``, or by ``ids`` if ``keys`` is None or has more than ``LOOKUP_KEYS_MAX`` values. None if
        ``ids``, too, is None or has too many values. None also if a value to look up is null or its first key is empty,
        because an index has no entries for such keys.
    """
    if keys is not None and len(keys) <= LOOKUP_KEYS_MAX:
        # A value may hold several keys, separated by spaces. The index has each of them, so a lookup of the first key
        # finds the message.
        first = [value.split(KEY_SEPARATOR)[0] if isinstance(value, str) else "" for value in keys]
        return None if "" in first else KeyLookup(frozenset(first))
    if ids is not None and len(ids) <= LOOKUP_KEYS_MAX:
        names = frozenset(value for value in ids if isinstance(value, str))
        return None if "" in names or len(names) < len(ids) else lookup_of(names)
    return None


def lookup_of(keys: Iterable[str]) -> KeyLookup:
    """The lookup for messages that have one of ``keys`` in KEYS or as their id."""
    keys = frozenset(keys)
    return KeyLookup(keys, frozenset(_offsets_of(keys)))


def _offsets_of(ids: Iterable[str]) -> Iterator[int]:
    """The physical offsets in message ids made by brokers; messages without UNIQ_KEY have such ids."""
    for one in ids:
        with suppress(ValueError):
            yield parse_offset_message_id(one).physical_offset
