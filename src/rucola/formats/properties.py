"""Message properties as text: ``name 0x01 value 0x02`` for each pair (RocketMQ 5.3.3, ``MessageDecoder``).

A reader accepts a missing last 0x02 and ignores items without name or value. If a name occurs several times, the last
value counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from rucola.common.java import hash_map_order

PROPERTIES_BYTES_MAX: Final = 32767


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encodes ``properties`` as text, in their order. Whatever ``decode_properties`` has returned can be encoded; this
    includes values with U+0001.

    Raises:
        ValueError: a name is empty or holds U+0001, or a name or value holds U+0002.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    separators = text.count("\x01")
    in_names = separators != len(properties) and any("\x01" in name for name in properties)
    if in_names or text.count("\x02") != len(properties) or "" in properties:
        raise ValueError("a property name is empty or holds U+0001, or a name or value holds U+0002")
    return text.encode("utf-8", "surrogatepass")


def decode_properties(text: bytes | bytearray | memoryview) -> dict[str, str]:
    """Decodes the properties in ``text``; bytes that are not UTF-8 become U+FFFD."""
    result: dict[str, str] = {}
    for piece in str(text, "utf-8", "replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            result[name] = value
    return result


def java_order(pairs: Iterable[tuple[str, str]], capacity: int = 16) -> dict[str, str]:
    """Returns ``pairs`` in the order in which RocketMQ writes them: the iteration order of a ``HashMap``.

    Args:
        capacity: 16 for a new map, 128 for a map that RocketMQ parsed from text.
    """
    values = dict(pairs)
    return {name: values[name] for name in _order(tuple(values), capacity)}


@lru_cache(maxsize=256)
def _order(names: tuple[str, ...], capacity: int) -> tuple[str, ...]:
    """Returns ``names`` in a ``HashMap``'s order; cached, because messages of the same sender have the same names."""
    return tuple(hash_map_order(names, capacity))
